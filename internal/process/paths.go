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
				courses[peer].See(m.Path(), now, passed)
			}
		}
		if now.Sub(told) < p.options.Paths-path.Look/2 { // ticks are not exact
			continue
		}
		over := now.Sub(told)
		told = now
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
		var all []control.PathReading
		for peer, c := range courses {
			if r, any := c.Read(over); any {
				sent, _ := p.engine.Traffic(peer)
				all = append(all, control.PathReading{Reading: r, Peer: peer, Class: c.network, Size: c.class(sent.Messages, sent.Bytes), Sent: sent.Bytes})
			}
		}
		if len(all) > 0 {
			p.agent.Send(control.Message{Paths: &control.Paths{Links: all}}) // if that fails, Receive will
		}
	}
}

// class is how long messages are lately; of how many and how many bytes were sent, ever.
func (c *course) class(messages, bytes uint64) sensors.SizeClass {
	if messages > c.messages {
		c.size = sensors.ClassOf(int((bytes - c.sent) / (messages - c.messages)))
		c.messages, c.sent = messages, bytes
	}
	return c.size
}
