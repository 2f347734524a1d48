package libp2p_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/libp2p"
)

// overTCP is the address of e on TCP alone.
func overTCP(t *testing.T, e *libp2p.Endpoint) transport.Addr {
	t.Helper()
	for _, text := range strings.Split(e.Addr().Local(), ",") {
		if strings.Contains(text, "/tcp/") {
			return transport.Addr(libp2p.Name + ":" + text)
		}
	}
	require.Fail(t, "no TCP")
	return ""
}

// halfway connects to e over TCP with a key of its own, shows that, and does not go on: it chooses no multiplexer.
func halfway(t *testing.T, e *libp2p.Endpoint) net.Conn {
	t.Helper()
	text := overTCP(t, e).Local()
	a, err := ma.NewMultiaddr(text)
	require.NoError(t, err)
	info, err := peer.AddrInfoFromP2pAddr(a)
	require.NoError(t, err)
	f := strings.Split(text, "/")
	c, err := net.Dial("tcp", net.JoinHostPort(f[2], f[4]))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	const protocols = "\x13/multistream/1.0.0\n\x07/noise\n"
	_, err = io.WriteString(c, protocols)
	require.NoError(t, err)
	answer := make([]byte, len(protocols))
	_, err = io.ReadFull(c, answer)
	require.NoError(t, err)
	require.Equal(t, protocols, string(answer))
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	n, err := noise.New(noise.ID, key, nil)
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	s, err := n.SecureOutbound(ctx, c, info.ID)
	require.NoError(t, err)
	return s
}

// Who shows a key, be it any, and then goes no further, is one of few, too.
func TestWhoStopsHalfwayIsOneOfFew(t *testing.T) {
	const handshakes = 8
	e := listen(t, libp2p.Options{Address: "127.0.0.1", Handshakes: handshakes})
	var all []net.Conn
	for range 3 * handshakes {
		all = append(all, halfway(t, e))
		time.Sleep(50 * time.Millisecond) // so that there is room for the next
	}
	open := 0
	for _, c := range all {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	require.LessOrEqual(t, open, handshakes)
	time.Sleep(110 * time.Millisecond) // so that all have had their time
	friend := listen(t, libp2p.Options{Address: "127.0.0.1"})
	_, err := friend.Dial(t.Context(), overTCP(t, e))
	require.NoError(t, err)
	for range handshakes {
		halfway(t, e)
		time.Sleep(50 * time.Millisecond)
	}
	require.True(t, e.Has(friend), "who has chosen one makes no room for others")
}
