package libp2p

import (
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// A gater bounds the connections that were accepted and whose peers have not shown their keys: libp2p gives each of
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
	if len(e.silents) >= e.opt.Handshakes/2 {
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

func (g *gater) InterceptSecured(_ network.Direction, _ peer.ID, c network.ConnMultiaddrs) bool {
	e := (*Endpoint)(g)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.silents {
		if e.silents[i].conn == c {
			e.silents = append(e.silents[:i:i], e.silents[i+1:]...)
			break
		}
	}
	return true
}

func (g *gater) InterceptPeerDial(peer.ID) bool               { return true }
func (g *gater) InterceptAddrDial(peer.ID, ma.Multiaddr) bool { return true }
func (g *gater) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) {
	return true, 0
}
