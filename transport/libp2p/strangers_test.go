package libp2p_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	p2p "github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/internal/streams"
	"github.com/mpiv/mpiv/transport/libp2p"
)

func TestMembersKnowEachOther(t *testing.T) {
	a := authority(t)
	x, y := listen(t, libp2p.Options{TLS: member(t, a, 0).TLS()}), listen(t, libp2p.Options{TLS: member(t, a, 1).TLS()})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, x.Addr(), far.Peer())
	for i, c := range []transport.Conn{near, far} {
		name, err := member(t, a, 2).Verify(c.(transport.Authenticated).Certificate())
		require.NoError(t, err)
		require.Equal(t, 1-i, name.Index)
	}
}

func TestStrangersAreTurnedAway(t *testing.T) {
	a := authority(t)
	secret := [16]byte{1, 2, 3}
	other := member(t, authority(t), 1).TLS()
	other.VerifyConnection = func(tls.ConnectionState) error { return nil } // it does not mind who we are
	borrowed := member(t, a, 1).TLS()                                       // another's certificate, with a key of its own
	borrowed.Certificates[0].PrivateKey = other.Certificates[0].PrivateKey
	tests := []struct {
		name string
		at   *tls.Config // of who is dialed
		by   libp2p.Options
	}{
		{"another authority", member(t, a, 0).TLS(), libp2p.Options{TLS: other, Secret: secret}},
		{"another's certificate", member(t, a, 0).TLS(), libp2p.Options{TLS: borrowed, Secret: secret}},
		{"no certificate", member(t, a, 0).TLS(), libp2p.Options{Secret: secret}},
		{"a certificate where nobody shows one", nil, libp2p.Options{TLS: member(t, a, 1).TLS(), Secret: secret}},
		{"another secret", nil, libp2p.Options{Secret: [16]byte{1, 2, 4}}},
		{"another secret, of a member", member(t, a, 0).TLS(), libp2p.Options{TLS: member(t, a, 1).TLS()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, x := listen(t, libp2p.Options{Secret: secret, TLS: tt.at}), listen(t, tt.by)
			_, err := x.Dial(t.Context(), e.Addr())
			require.Error(t, err)
			require.ErrorContains(t, err, string(e.Addr()))
			eventually(t, "the stranger to be counted", func() bool { return e.Strangers() > 0 })
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer stop()
			_, err = e.Accept(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, "a stranger was accepted")
		})
	}
}

// knock is a libp2p host, not of this package, that is connected to e.
func knock(t *testing.T, e *libp2p.Endpoint) (host.Host, peer.ID) {
	h, err := p2p.New(p2p.NoListenAddrs, p2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { h.Close() })
	first, _, _ := strings.Cut(e.Addr().Local(), ",")
	a, err := ma.NewMultiaddr(first)
	require.NoError(t, err)
	info, err := peer.AddrInfoFromP2pAddr(a)
	require.NoError(t, err)
	require.NoError(t, h.Connect(t.Context(), *info))
	return h, info.ID
}

func TestWhoIsSilentIsSentAway(t *testing.T) {
	e := listen(t, libp2p.Options{Patience: 300 * time.Millisecond, Handshakes: 2})
	var hosts []host.Host
	var id peer.ID
	for range 3 {
		var h host.Host
		h, id = knock(t, e)
		hosts = append(hosts, h)
	}
	s, err := hosts[0].NewStream(t.Context(), id, "/mpiv/1")
	if err == nil {
		s.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	}
	for _, h := range hosts {
		eventually(t, "the stranger to be cut off", func() bool { return h.Network().Connectedness(id) == network.NotConnected })
	}
	require.GreaterOrEqual(t, e.Strangers(), uint64(3))
	friend := listen(t, libp2p.Options{})
	_, err = friend.Dial(t.Context(), e.Addr())
	require.NoError(t, err)
}

func TestWhoIsSilentKeepsNobodyOut(t *testing.T) {
	e := listen(t, libp2p.Options{Patience: time.Minute, Handshakes: 4})
	for range 4 {
		knock(t, e)
	}
	time.Sleep(110 * time.Millisecond) // so that all have had their time
	_, err := listen(t, libp2p.Options{}).Dial(t.Context(), e.Addr())
	require.NoError(t, err)
	require.NotZero(t, e.Strangers())
}

// manyStreams opens up to 200 streams that say too little; what e had at most.
func manyStreams(e *libp2p.Endpoint, open func() (network.Stream, error), say string) (most int) {
	for range 200 {
		s, err := open()
		if err != nil {
			break
		}
		if _, err := s.Write([]byte(say)); err != nil {
			break
		}
		most = max(most, e.Streams())
	}
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		most = max(most, e.Streams())
	}
	return most
}

func TestAStrangerHasFewStreams(t *testing.T) {
	t.Run("of this protocol", func(t *testing.T) {
		e := listen(t, libp2p.Options{Patience: time.Minute})
		h, id := knock(t, e)
		most := manyStreams(e, func() (network.Stream, error) { return h.NewStream(t.Context(), id, "/mpiv/1") }, "mpiv")
		require.LessOrEqual(t, most, 20, "with those that are ours")
		require.NotZero(t, e.Strangers())
		eventually(t, "the stranger to be cut off", func() bool { return h.Network().Connectedness(id) == network.NotConnected })
	})
	t.Run("of none", func(t *testing.T) {
		e := listen(t, libp2p.Options{Patience: time.Minute})
		h, id := knock(t, e)
		most := manyStreams(e, func() (network.Stream, error) { return h.Network().NewStream(t.Context(), id) }, "\x13")
		require.LessOrEqual(t, most, 20, "with those that are ours")
	})
}

func TestAMemberHasManyStreams(t *testing.T) {
	x, y := listen(t, libp2p.Options{}), listen(t, libp2p.Options{})
	for range 20 {
		_, err := x.Dial(t.Context(), y.Addr())
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, y.Streams(), 40)
}

func TestALieAboutALengthBreaksTheConnection(t *testing.T) {
	e := listen(t, libp2p.Options{})
	h, id := knock(t, e)
	var lanes [2]network.Stream
	for i := range lanes {
		s, err := h.NewStream(t.Context(), id, "/mpiv/1")
		require.NoError(t, err)
		_, err = s.Write(streams.Hello{Lane: i, Proof: proof.Of([16]byte{}, libp2p.Name, []byte(h.ID()), []byte(id)), ID: [16]byte{1}, Addr: "libp2p:/p2p/x"}.Append(nil))
		require.NoError(t, err)
		lanes[i] = s
	}
	c, err := e.Accept(t.Context())
	require.NoError(t, err)
	prefix := make([]byte, 4+transport.HeaderLen)
	binary.LittleEndian.PutUint32(prefix, uint32(c.MaxBody()+1))
	_, err = lanes[1].Write(prefix)
	require.NoError(t, err)
	eventually(t, "the end", func() bool { _, err = c.Poll(new(box)); return err != nil })
	require.ErrorIs(t, err, transport.ErrBroken)
	_, err = io.Copy(io.Discard, lanes[1])
	require.Error(t, err, "the liar's stream stays open")
}

func TestListenSaysWhatItNeeds(t *testing.T) {
	_, err := libp2p.Listen(t.Context(), libp2p.Options{})
	require.ErrorContains(t, err, "relay")
	_, err = libp2p.Listen(t.Context(), libp2p.Options{Address: "localhost"})
	require.ErrorContains(t, err, "IP address")
	_, err = libp2p.Listen(t.Context(), libp2p.Options{Relays: []string{"libp2p:host:1"}})
	require.ErrorContains(t, err, "host:1")
	x := listen(t, libp2p.Options{})
	_, err = x.Dial(t.Context(), "quic:h:1")
	require.ErrorContains(t, err, "quic:h:1")
	_, err = x.Dial(t.Context(), "libp2p:h:1")
	require.ErrorContains(t, err, "libp2p:h:1")
}

// Who connects and does not even begin libp2p's own handshake keeps nobody out.
func TestSilentSocketsKeepNobodyOut(t *testing.T) {
	e := listen(t, libp2p.Options{Address: "127.0.0.1"})
	var at string
	for _, part := range strings.Split(e.Addr().Local(), ",") {
		if f := strings.Split(part, "/"); f[3] == "tcp" {
			at = "127.0.0.1:" + f[4]
		}
	}
	for range 200 {
		c, err := net.Dial("tcp", at)
		require.NoError(t, err)
		defer c.Close()
	}
	friend := listen(t, libp2p.Options{Address: "127.0.0.1"})
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second) // libp2p gives them 15 s
	defer stop()
	var err error
	for ctx.Err() == nil {
		if _, err = friend.Dial(ctx, e.Addr()); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(t, err)
}
