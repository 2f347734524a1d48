package libp2p_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/libp2p"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for: %s", what)
		}
	}
}

func authority(t *testing.T) *identity.Authority {
	a, err := identity.NewAuthority("job")
	require.NoError(t, err)
	return a
}

func member(t *testing.T, a *identity.Authority, index int) *identity.Identity {
	c, err := a.Issue(identity.Process, index)
	require.NoError(t, err)
	i, err := c.Open()
	require.NoError(t, err)
	return i
}

// box is a Receiver that keeps what arrives.
type box struct{ got []string }

func (b *box) Place(_ []byte, n int) []byte     { return make([]byte, n) }
func (b *box) Receive(header, body []byte) bool { return transport.Receive(b, header, body) }
func (b *box) Arrived(_, body []byte)           { b.got = append(b.got, string(body)) }
func (b *box) Pulled(uint64, error)             {}

func say(t *testing.T, from, to transport.Conn, text string, bulk bool) {
	t.Helper()
	require.NoError(t, from.Send(transport.Message{Header: make([]byte, transport.HeaderLen), Body: []byte(text), Bulk: bulk}))
	require.NoError(t, from.Flush())
	in := new(box)
	eventually(t, "the message", func() bool {
		_, err := to.Poll(in)
		require.NoError(t, err)
		return len(in.got) == 1
	})
	require.Equal(t, text, in.got[0])
}

// Two processes that nobody can dial meet on a relay.
func TestTwoMeetOnARelay(t *testing.T) {
	a := authority(t)
	ids := []*identity.Identity{member(t, a, 0), member(t, a, 1), member(t, a, 2)}
	secret := [16]byte{1}
	relay, err := libp2p.Network().Listen(t.Context(), transport.Site{Address: "127.0.0.1", Secret: secret, TLS: ids[2].TLS()})
	require.NoError(t, err)
	defer relay.Close()
	hidden := func(i int) *libp2p.Endpoint {
		return listen(t, libp2p.Options{
			Secret: secret, TLS: ids[i].TLS(), Relays: []string{string(relay.Addr())}, Punch: 10 * time.Millisecond,
		})
	}
	x, y := hidden(0), hidden(1)
	for _, part := range strings.Split(y.Addr().Local(), ",") {
		require.Contains(t, part, "/p2p-circuit/", "it listens elsewhere than on the relay")
	}
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	say(t, near, far, "through the relay", false)
	say(t, far, near, strings.Repeat("back in bulk ", 15_000), true)
	for i, c := range []transport.Conn{near, far} {
		name, err := ids[0].Verify(c.(transport.Authenticated).Certificate())
		require.NoError(t, err)
		require.Equal(t, 1-i, name.Index)
	}
	// More than the relays of the public network let through.
	in := new(counter)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, near.MaxBody()), Bulk: true}
	for sent := 0; in.n < 16; {
		if sent < 16 && near.Send(m) == nil {
			sent++
		}
		_, err := far.Poll(in)
		require.NoError(t, err)
	}
	require.NoError(t, near.Close())
	eventually(t, "the end", func() bool { _, err = far.Poll(in); return err != nil })
	require.ErrorIs(t, err, transport.ErrBroken)
}

type counter struct {
	box
	n int
}

func (c *counter) Place([]byte, int) []byte         { return nil }
func (c *counter) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *counter) Arrived(_, _ []byte)              { c.n++ }

// A relay serves its job only.
func TestARelayRefusesStrangers(t *testing.T) {
	a := authority(t)
	relay, err := libp2p.Listen(t.Context(), libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 0).TLS(), Relay: true})
	require.NoError(t, err)
	defer relay.Close()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	stranger := member(t, authority(t), 1).TLS()
	accepts := member(t, a, 1).TLS().VerifyConnection
	stranger.VerifyConnection = accepts // so that it is the relay that refuses
	_, err = libp2p.Listen(ctx, libp2p.Options{TLS: stranger, Relays: []string{string(relay.Addr())}})
	require.ErrorContains(t, err, "hung up")
	eventually(t, "the stranger to be counted", func() bool { return relay.Strangers() > 0 })
}
