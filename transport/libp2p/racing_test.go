package libp2p

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// gone is a connection to a peer that has ended.
type gone struct {
	network.Conn
	peer peer.ID
}

func (g gone) RemotePeer() peer.ID { return g.peer }

// racing is a network to which the peer connects again, and joins, once it was asked for its connections, if it can.
type racing struct {
	network.Network
	e      *Endpoint
	joined bool
}

func (r *racing) ConnsToPeer(id peer.ID) []network.Conn {
	if r.e.mu.TryLock() {
		r.e.mu.Unlock()
		r.e.join(id)
		r.joined = true
	}
	return nil
}

func TestWhoComesBackIsAMember(t *testing.T) {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1"})
	require.NoError(t, err)
	defer e.Close()
	e.join("x")
	n := &racing{Network: e.host.Network(), e: e}
	(*watch)(e).Disconnected(n, gone{peer: "x"})
	require.Equal(t, n.joined, e.member("x"))
}
