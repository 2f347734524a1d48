package quic_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/quic"
)

// A nat passes packets between one client and a server, and rebinds: from then
// on the server sees the client at another port.
type nat struct {
	inside *net.UDPConn // where the client sends to
	to     *net.UDPAddr
	most   int // longer packets are dropped
	done   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	client  *net.UDPAddr
	outside *net.UDPConn // from where the server is sent to
}

func newNAT(t *testing.T, to string, most int) *nat {
	addr, err := net.ResolveUDPAddr("udp", to)
	require.NoError(t, err)
	n := &nat{to: addr, most: most}
	n.inside, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	n.rebind(t)
	n.done.Go(func() {
		b := make([]byte, 1<<16)
		for {
			k, from, err := n.inside.ReadFromUDP(b)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.client = from
			out := n.outside
			n.mu.Unlock()
			if k <= n.most {
				out.WriteToUDP(b[:k], n.to)
			}
		}
	})
	t.Cleanup(func() {
		n.inside.Close()
		n.mu.Lock()
		n.outside.Close()
		n.mu.Unlock()
		n.done.Wait()
	})
	return n
}

func (n *nat) rebind(t *testing.T) {
	out, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.outside != nil {
		n.outside.Close()
	}
	n.outside = out
	n.done.Go(func() {
		b := make([]byte, 1<<16)
		for {
			k, _, err := out.ReadFromUDP(b)
			if err != nil {
				return
			}
			n.mu.Lock()
			client := n.client
			n.mu.Unlock()
			if k <= n.most {
				n.inside.WriteToUDP(b[:k], client)
			}
		}
	})
}

// numbers is a Receiver that checks that numbers arrive in order, none missing.
type numbers struct {
	t    *testing.T
	next uint64
}

func (n *numbers) Place(_ []byte, k int) []byte     { return make([]byte, k) }
func (n *numbers) Pulled(uint64, error)             {}
func (n *numbers) Receive(header, body []byte) bool { return transport.Receive(n, header, body) }
func (n *numbers) Arrived(_, body []byte) {
	require.Equal(n.t, n.next, binary.LittleEndian.Uint64(body))
	n.next++
}

// exchange sends count numbers from a to b, and waits until they are there.
func exchange(t *testing.T, a, b transport.Conn, at *numbers, count uint64) {
	t.Helper()
	first := at.next
	for sent := first; at.next < first+count; {
		if sent < first+count {
			body := make([]byte, 10_000)
			binary.LittleEndian.PutUint64(body, sent)
			err := a.Send(transport.Message{Header: make([]byte, transport.HeaderLen), Body: body})
			if err == nil {
				sent++
			} else {
				require.ErrorIs(t, err, transport.ErrFull)
			}
		}
		for _, c := range []transport.Conn{a, b} {
			_, err := c.Poll(at)
			require.NoError(t, err)
		}
		if sent == first+count && at.next < sent {
			woken := make(chan struct{}, 1)
			b.Arm(func() { woken <- struct{}{} })
			select {
			case <-woken:
			case <-time.After(20 * time.Second):
				t.Fatalf("%d of %d messages arrived in 20 s", at.next-first, count)
			}
		}
	}
}

func TestAConnectionSurvivesThatANATRebinds(t *testing.T) {
	x, y := listen(t, quic.Options{}), listen(t, quic.Options{})
	n := newNAT(t, y.Addr().Local(), 1<<16)
	near, err := x.Dial(t.Context(), transport.Addr("quic:"+n.inside.LocalAddr().String()))
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	at := &numbers{t: t}
	exchange(t, near, far, at, 100)
	for range 2 { // quic-go has connection IDs for so many
		n.rebind(t)
		exchange(t, near, far, at, 100)
	}
	back := &numbers{t: t}
	exchange(t, far, near, back, 100)
}

// A tunnel on the way takes less than the ends, and nobody says so. A path must take 1200 bytes, by RFC 9000.
func TestAPathThatDropsWhatIsLong(t *testing.T) {
	x, y := listen(t, quic.Options{}), listen(t, quic.Options{})
	n := newNAT(t, y.Addr().Local(), 1200)
	near, err := x.Dial(t.Context(), transport.Addr("quic:"+n.inside.LocalAddr().String()))
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	exchange(t, near, far, &numbers{t: t}, 100)
	exchange(t, far, near, &numbers{t: t}, 100)
}

func TestAConnectionSurvivesThatItsDialerMoves(t *testing.T) {
	x, y := listen(t, quic.Options{}), listen(t, quic.Options{})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	at := &numbers{t: t}
	exchange(t, near, far, at, 100)
	old := x.Addr()
	for i := 2; i < 4; i++ {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		require.NoError(t, x.Rebind(ctx, fmt.Sprintf("127.0.0.%d:0", i)), "move %d", i)
		require.NotEqual(t, old, x.Addr())
		exchange(t, near, far, at, 100)
	}
	back := &numbers{t: t}
	exchange(t, far, near, back, 100)

	// It is found at its new address.
	_, err = y.Dial(t.Context(), x.Addr())
	require.NoError(t, err)
	_, err = x.Accept(t.Context())
	require.NoError(t, err)

	require.ErrorContains(t, x.Rebind(t.Context(), "127.0.0.4:0"), "moved 2 times")
	require.Error(t, y.Rebind(t.Context(), "192.0.2.1:0"), "an address that this host has not")
	require.NoError(t, x.Close())
	require.True(t, errors.Is(x.Rebind(t.Context(), "127.0.0.3:0"), net.ErrClosed))
}
