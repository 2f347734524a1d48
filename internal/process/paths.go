package process

import (
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// pathLook is how often a path is looked at, to know for how long it had something to
// carry.
const pathLook = sensors.SlotTime

// pathHangs is for how long nothing was acknowledged of what is on its way when the path
// is what limits, though the program may have no more to send.
const pathHangs = 100 * time.Millisecond

// A course is what one link does between two readings.
type course struct {
	begun           bool
	delivered, sent uint64
	messages        uint64
	bytes, pending  uint64
	busy, limited   time.Duration
	slots           sensors.Slots
	rtt             time.Duration
	size            sensors.SizeClass
	network         topology.Class
}

// reportPaths sends readings of the paths to other hosts, until the job ends.
func (p *Process) reportPaths() {
	tick := time.NewTicker(pathLook)
	defer tick.Stop()
	courses := map[int]*course{}
	last := time.Now()
	told := last
	for {
		var now time.Time
		select {
		case now = <-tick.C:
		case <-p.stopped:
			return
		}
		passed := now.Sub(last)
		last = now
		for peer := range courses {
			if l := p.engine.Link(peer); l.Conn != nil {
				m, measured := l.Conn.(transport.Measured)
				if !measured {
					continue
				}
				courses[peer].see(m.Path(), now, passed)
			}
		}
		if now.Sub(told) < p.options.Paths {
			continue
		}
		over := now.Sub(told)
		told = now
		for _, l := range p.fabric.Links() {
			if courses[l.Process] == nil {
				courses[l.Process] = &course{}
			}
			if l.InUse >= 0 {
				courses[l.Process].network = l.Candidates[l.InUse].Class
			}
		}
		var all []control.PathReading
		for peer, c := range courses {
			if r, any := c.read(over); any {
				sent, _ := p.engine.Traffic(peer)
				r.Peer, r.Size = peer, c.class(sent.Messages, sent.Bytes)
				r.Sent = sent.Bytes
				all = append(all, r)
			}
		}
		if len(all) > 0 {
			p.agent.Send(control.Message{Paths: &control.Paths{Links: all}}) // if that fails, Receive will
		}
	}
}

// see takes how the path is now, and was since the last look, which passed before.
func (c *course) see(path transport.PathInfo, now time.Time, passed time.Duration) {
	if c.begun && path.Delivered >= c.delivered {
		c.bytes += path.Delivered - c.delivered
	} // else the connection is another
	c.begun, c.delivered = true, path.Delivered
	c.pending, c.rtt = uint64(path.Unacked), path.RTT
	if path.Unacked > 0 { // a program that does not read is no fault of the path
		c.busy += passed
		c.slots.Mark(now.Add(-max(passed-pathLook, 0)), now)
		if path.Queued || path.Stalled >= pathHangs {
			c.limited += passed
		}
	}
}

// read is what was seen since the last time; false if there is nothing to tell.
func (c *course) read(over time.Duration) (control.PathReading, bool) {
	r := control.PathReading{Class: c.network, Over: int64(over), Bytes: c.bytes, Busy: int64(min(c.busy, over)), Slots: c.slots, Pending: c.pending, Limited: 2*c.limited > c.busy, RTT: int64(c.rtt)}
	c.bytes, c.busy, c.limited, c.slots = 0, 0, 0, sensors.Slots{}
	return r, r.Bytes > 0 || r.Pending > 0
}

// class is how long messages are lately; of how many and how many bytes were sent, ever.
func (c *course) class(messages, bytes uint64) sensors.SizeClass {
	if messages > c.messages {
		c.size = sensors.ClassOf(int((bytes - c.sent) / (messages - c.messages)))
		c.messages, c.sent = messages, bytes
	}
	return c.size
}
