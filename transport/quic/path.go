package quic

import (
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// A conn is a Conn whose path is measured.
type conn struct {
	*streams.Conn
	q     *quic.Conn
	gauge gauge
}

// Path implements transport.Measured.
func (c *conn) Path() transport.PathInfo {
	taken, waiting := c.Progress()
	return c.gauge.read(c.q.ConnectionStats(), taken, waiting, time.Now())
}

// A gauge makes of what quic-go counts how a path does. What was acknowledged is not among
// that: it is about what had been sent a round trip ago, and no more than what had been when
// something came last. The zero value is for a connection that was not looked at yet.
type gauge struct {
	mu        sync.Mutex // guards what follows
	looks     []look     // those of the last round trip, and one before
	heard     uint64     // packets, by the last look
	answered  uint64     // what had been sent by the last look that saw more of them
	delivered uint64
	taken     uint64 // by the streams
	busy      bool   // something was on its way, by the last look
	queued    bool   // the path is what limits
	full      uint64 // until so much is delivered
	lost      uint64 // packets
	left      look   // by when so much had been sent, of which some is on its way
}

// A look is what had been sent at a time: bytes, but for those that were lost.
type look struct {
	at   time.Time
	sent uint64
}

const (
	leastLook = time.Millisecond
	mostLooks = 512
	// ownAcks is bytes on their way that may be acknowledgements, which nobody acknowledges.
	ownAcks = 100
	// queueLeast is bytes on their way that may stand in a queue; fewer may be acknowledgements.
	queueLeast = 16 << 10
	// queueDelay beyond twice the shortest round trip is more than busy cores take.
	queueDelay = 5 * time.Millisecond
)

// read takes what quic-go counts at now, how many bytes the streams have taken, ever, and how
// many wait for that.
func (g *gauge) read(s quic.ConnectionStats, taken uint64, waiting int, now time.Time) transport.PathInfo {
	g.mu.Lock()
	defer g.mu.Unlock()
	sent := g.delivered
	if s.BytesSent > s.BytesLost { // what was lost may turn out not to have been
		sent = max(sent, s.BytesSent-s.BytesLost)
	}
	unheard := s.PacketsReceived == g.heard
	if !unheard {
		g.heard, g.answered = s.PacketsReceived, sent
	}
	idle := waiting == 0 && taken == g.taken && !g.busy
	g.taken = taken
	g.look(now, sent)
	g.delivered = max(g.delivered, min(g.sentAt(now.Add(-s.SmoothedRTT)), g.answered))
	if idle {
		g.delivered = sent
	}
	onWay := sent - g.delivered
	if onWay <= ownAcks {
		onWay = 0
	}
	g.busy = waiting > 0 || onWay > 0
	// Where bytes wait and the path is not full, it is the peer who takes no more, or the cores
	// that are busy. It is full if about a congestion window is on its way, and if some of it gets
	// lost, or none is answered. What it is full of arrives as fast as it lets it; what is sent
	// after that, as fast as the program does.
	switch {
	case waiting > 0:
		g.full = sent + uint64(waiting)
		g.queued = onWay >= s.CongestionWindow/2 || s.PacketsLost > g.lost || unheard && onWay > 0
	case !g.busy || g.delivered >= g.full:
		g.queued = false
	}
	g.lost = s.PacketsLost
	p := transport.PathInfo{RTT: s.SmoothedRTT, Unacked: waiting + int(onWay), Queued: g.queued, Stalled: -1, Retransmits: s.PacketsLost, Delivered: g.delivered, Sent: s.BytesSent, Received: s.BytesReceived}
	if onWay < queueLeast || g.delivered >= g.left.sent {
		g.left = look{now, sent}
	}
	if onWay >= queueLeast { // nothing need wait to be sent: a window that has grown large is never full
		p.Standing = s.SmoothedRTT >= 2*s.MinRTT+queueDelay
		p.Oldest = now.Sub(g.left.at)
	}
	return p
}

// look notes what has been sent.
func (g *gauge) look(now time.Time, sent uint64) {
	if n := len(g.looks); n > 0 && now.Sub(g.looks[n-1].at) < leastLook {
		return
	}
	if len(g.looks) == mostLooks {
		g.looks = append(g.looks[:0], g.looks[mostLooks/2:]...)
	}
	g.looks = append(g.looks, look{now, sent})
}

// sentAt is what had been sent at a time, and forgets what was before.
func (g *gauge) sentAt(at time.Time) uint64 {
	i := 0
	for i+1 < len(g.looks) && !g.looks[i+1].at.After(at) {
		i++
	}
	g.looks = append(g.looks[:0], g.looks[i:]...)
	from := g.looks[0]
	if len(g.looks) == 1 || at.Before(from.at) {
		return from.sent
	}
	to := g.looks[1]
	return from.sent + uint64(float64(to.sent-from.sent)*float64(at.Sub(from.at))/float64(to.at.Sub(from.at)))
}
