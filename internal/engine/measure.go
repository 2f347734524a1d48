package engine

import (
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// A LinkInfo is how the link to a process does.
type LinkInfo struct {
	Conn       transport.Conn // nil if there is none
	Generation uint32         // of Conn, or of the last one
	Lost       error          // why the last one was given up, if it broke
	Firm       bool           // Conn must not be replaced: what was sent over it might be lost
	Wanted     bool           // there is no Conn, and something to send

	Outstanding bool   // something is to come of the peer: an acknowledgement, an answer or a body
	Backlog     bool   // Conn took less than there is to send
	Drained     uint64 // how often there was nothing more to send
	Heard       uint64 // grows with all that comes from the peer, unless Firm
	PeerPace    uint64 // bytes a second that the peer has said it can send
	PeerPaces   uint64 // how often it has said so
}

// Link is how the link to a process does.
func (e *Engine) Link(process int) LinkInfo {
	l := e.link(process)
	l.mu.Lock()
	defer l.mu.Unlock()
	return LinkInfo{
		Conn: l.conn, Generation: l.generation, Lost: l.why, Firm: l.firmLocked(), Wanted: l.conn == nil && l.wanted,
		Outstanding: l.kept > 0 || l.logged > 0 || l.queue.head != nil || len(l.bulk) > 0 || len(l.parts) > 0 || l.ctl.size() > 0,
		Backlog:     l.stuck != stuckNone || len(l.bulk) > 0,
		Drained:     l.drained, Heard: l.heard.Get(), PeerPace: l.peerPace, PeerPaces: l.peerPaces,
	}
}

// Traffic is messages of the program, and their bytes.
type Traffic struct{ Messages, Bytes uint64 }

// Traffic is what has been handed to the link to a process, and what has arrived
// through it.
func (e *Engine) Traffic(process int) (sent, received Traffic) {
	l := e.link(process)
	e.enter()
	defer e.leave()
	l.mu.Lock()
	defer l.mu.Unlock()
	sent, received = Traffic{l.before.sent, l.sent}, Traffic{l.before.got, l.got}
	for _, b := range *e.boxes.Load() {
		b.streams.all(func(s *stream) {
			if e.peers[s.peer].link.Load() == l {
				sent.Messages += s.sent
				received.Messages += s.got
			}
		})
	}
	return sent, received
}

// counts is messages that went over a link, and are not counted in the streams that go over it
// now: of ranks that have left it, or less those of ranks that have come with theirs. They may
// be below zero, of which the sum takes no notice.
type counts struct{ sent, got uint64 }

// leaves has the messages of s count for the link that it leaves. mu is held.
func (c *counts) leaves(s *stream) { c.sent, c.got = c.sent+s.sent, c.got+s.got }

// comes has the messages of s not count for the link to which it comes. mu is held.
func (c *counts) comes(s *stream) { c.sent, c.got = c.sent-s.sent, c.got-s.got }

// known is the stream of r; nil if there is none yet.
func (t *streamTable) known(r topology.Rank) *stream {
	return t.pages[uint32(r)/pageStreams].Load()[uint32(r)%pageStreams].Load()
}

// Ping asks the peer for an answer, which comes within some milliseconds whatever
// its program does, and tells it how many bytes a second the path takes; 0 if that
// is not known.
func (e *Engine) Ping(process int, pace uint64) {
	l := e.link(process)
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
	e.enter()
	defer e.leave()
	e.fence(e.link(process))
}

// fence is Fence while polling is held.
func (e *Engine) fence(l *link) {
	l.unplace()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fenced, l.early, l.earlyBytes = true, nil, 0
	if l.conn != nil {
		l.detach()
		l.why = ErrFenced
		e.refreshActive(l)
	}
}
