package engine

import (
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// Traffic is messages of the program, and their bytes.
type Traffic struct{ Messages, Bytes uint64 }

// A LinkInfo is how the link to a process does.
type LinkInfo struct {
	Conn       transport.Conn // nil if there is none
	Generation uint32         // of Conn, or of the last one
	Lost       error          // why the last one was given up, if it broke
	Stable     bool           // Conn must not be replaced
	Wanted     bool           // there is no Conn, and something to send

	Outstanding bool    // something is to come of the peer: an acknowledgement, an answer or a body
	Backlog     bool    // Conn took less than there is to send
	Drained     uint64  // how often there was nothing more to send
	Sent        Traffic // handed to the link
	Received    Traffic // arrived
	Heard       uint64  // grows with all that comes from the peer
	PeerPace    uint64  // bytes a second that the peer has said it can send
	PeerPaces   uint64  // how often it has said so
}

// Link is how the link to a process does.
func (e *Engine) Link(process int) LinkInfo {
	l := e.links[process]
	l.mu.Lock()
	i := LinkInfo{
		Conn: l.conn, Generation: l.generation, Lost: l.why, Stable: l.stable, Wanted: l.conn == nil && l.wanted,
		Outstanding: l.kept.head != nil || l.queue.head != nil || len(l.bulk) > 0 || len(l.parts) > 0 || l.ctl.size() > 0,
		Backlog:     l.stuck != stuckNone || len(l.bulk) > 0,
		Drained:     l.drained, Sent: l.sent, PeerPace: l.peerPace, PeerPaces: l.peerPaces,
	}
	controls := l.controls
	l.mu.Unlock()
	i.Received = Traffic{atomic.LoadUint64(&l.got.Messages), atomic.LoadUint64(&l.got.Bytes)}
	i.Heard = controls + i.Received.Messages + i.Received.Bytes
	return i
}

// count counts what has arrived of n bytes. Polling is held.
func (l *link) count(messages, n uint64) {
	release.Store64(&l.got.Messages, l.got.Messages+messages)
	release.Store64(&l.got.Bytes, l.got.Bytes+n)
}

// Ping asks the peer for an answer, which comes within some milliseconds whatever
// its program does, and tells it how many bytes a second the path takes; 0 if that
// is not known.
func (e *Engine) Ping(process int, pace uint64) {
	l := e.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.ctl.size() > 0 {
		return // what is there to send is as good
	}
	l.pings++
	l.control(wire.Header{Kind: wire.Ping, Seq: l.pings, Ack: pace}, nil)
	l.pump()
}

// Fence ends the connection to a process and refuses it from now on. What is sent
// to it waits.
func (e *Engine) Fence(process int) {
	l := e.links[process]
	e.enter()
	defer e.leave()
	l.unplace()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fenced = true
	if l.conn != nil {
		l.detach()
		l.why = ErrFenced
		e.refreshActive()
	}
}
