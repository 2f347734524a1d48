package libp2p

import (
	"io"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// A gater bounds the connections that were accepted and whose handshake of libp2p has not ended: libp2p gives each of
// them 15 s, and refuses all others while they are too many. Here the oldest goes for one more, if it has had its time.
type gater Endpoint

// A silent is one of them.
type silent struct {
	conn  network.ConnMultiaddrs
	since time.Time
}

func (g *gater) InterceptAccept(c network.ConnMultiaddrs) bool {
	e := (*Endpoint)(g)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.silents) >= max(1, e.opt.Handshakes/2) {
		oldest := e.silents[0]
		if time.Since(oldest.since) < grace {
			e.strangers.Add(1)
			return false
		}
		e.silents = e.silents[1:]
		if c, ok := oldest.conn.(io.Closer); ok && !e.ended {
			e.running.Go(func() { c.Close() })
		}
	}
	e.silents = append(e.silents, silent{c, time.Now()})
	return true
}

// InterceptSecured is told that a peer has shown its key, which may be any: over TCP it has still to choose a
// multiplexer, and remains one of the silent until it has.
func (g *gater) InterceptSecured(_ network.Direction, _ peer.ID, c network.ConnMultiaddrs) bool {
	if _, err := c.RemoteMultiaddr().ValueForProtocol(ma.P_TCP); err != nil || circuit(c.RemoteMultiaddr()) {
		g.speaks(func(s network.ConnMultiaddrs) bool { return s == c })
	}
	return true
}

// speaks forgets the last of the silent that is so: earlier ones with the same ends are no more.
func (g *gater) speaks(is func(network.ConnMultiaddrs) bool) {
	e := (*Endpoint)(g)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, s := range slices.Backward(e.silents) {
		if is(s.conn) {
			e.silents = slices.Delete(e.silents, i, i+1)
			return
		}
	}
}

func (g *gater) InterceptPeerDial(peer.ID) bool               { return true }
func (g *gater) InterceptAddrDial(peer.ID, ma.Multiaddr) bool { return true }
func (g *gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	g.speaks(func(s network.ConnMultiaddrs) bool {
		return s.RemoteMultiaddr().Equal(c.RemoteMultiaddr()) && s.LocalMultiaddr().Equal(c.LocalMultiaddr())
	})
	return true, 0
}
