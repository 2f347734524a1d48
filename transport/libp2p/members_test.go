package libp2p

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// An ended is a connection to a peer that has ended.
type ended struct {
	network.Conn
	peer peer.ID
}

func (c ended) RemotePeer() peer.ID { return c.peer }

func TestWhoIsConnectedRemainsAMember(t *testing.T) {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1"})
	require.NoError(t, err)
	defer e.Close()
	x, err := Listen(t.Context(), Options{Address: "127.0.0.1"})
	require.NoError(t, err)
	defer x.Close()
	_, err = x.Dial(t.Context(), e.Addr())
	require.NoError(t, err)
	id := x.host.ID()
	e.mu.Lock()
	guests := len(e.guests)
	e.mu.Unlock()
	require.Zero(t, guests, "it would be sent away when its time is over")
	(*watch)(e).Disconnected(e.host.Network(), ended{peer: id})
	require.True(t, e.member(id), "it has another connection")
}
