package process

import (
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// A course is what one link does between two readings.
type course struct {
	path.Course
	received       uint64 // by the last look
	heard          bool   // something has come since the last reading
	sent, messages uint64
	size           sensors.SizeClass
	network        topology.Class
}

// reportPaths sends readings of the paths to other hosts, until the job ends. While no
// rank lives here there is little to see, and it looks seldom.
func (p *Process) reportPaths() {
	pace := path.Look
	tick := time.NewTicker(pace)
	defer tick.Stop()
	courses := map[int]*course{}
	last := time.Now()
	toldAt := last
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
		if now.Sub(toldAt) < p.options.Paths-path.Look/2 { // ticks are not exact
			continue
		}
		over := now.Sub(toldAt)
		toldAt = now
		before := pace
		if pace = path.Look; len(p.engine.Local()) == 0 {
			pace = p.options.Paths
		}
		if pace != before {
			tick.Reset(pace)
		}
		for _, l := range p.fabric.Links() {
			if courses[l.Process] == nil {
				courses[l.Process] = &course{}
			}
			if l.InUse >= 0 {
				courses[l.Process].network = l.Candidates[l.InUse].Class
			}
		}
		told := control.Paths{Over: over}
		for peer, c := range courses {
			if c.heard {
				c.heard = false
				told.Heard = append(told.Heard, peer)
			}
			if r, any := c.Read(over); any {
				sent, _ := p.engine.Traffic(peer)
				told.Links = append(told.Links, control.PathReading{Reading: r, Peer: peer, Class: c.network, Size: c.class(sent.Messages, sent.Bytes), Sent: sent.Bytes})
			}
		}
		if len(told.Links) > 0 || len(told.Heard) > 0 {
			p.agent.Send(control.Message{Paths: &told}) // if that fails, Receive will
		}
	}
}

// see takes how the path is now.
func (c *course) see(info transport.PathInfo, now time.Time, passed time.Duration) {
	c.See(info, now, passed)
	c.heard = c.heard || info.Received > c.received
	c.received = info.Received
}

// class is how long messages are lately; of how many and how many bytes were sent, ever.
func (c *course) class(messages, bytes uint64) sensors.SizeClass {
	if messages > c.messages {
		c.size = sensors.ClassOf(int((bytes - c.sent) / (messages - c.messages)))
		c.messages, c.sent = messages, bytes
	}
	return c.size
}
