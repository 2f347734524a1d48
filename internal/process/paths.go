package process

import (
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
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
	left           uint64 // by the last look
	passed         control.Passed
	heard          bool // something has come since the last reading
	sent, messages uint64
	size           sensors.SizeClass
	network        topology.Class
}

// A pathReport is the readings of the paths to other hosts.
type pathReport struct {
	p   *Process
	due *alarm.Alarm // it is time to look

	mu      sync.Mutex // guards what follows
	courses map[int]*course
	last    time.Time // when it was looked
	told    time.Time // and when a reading was made of that
	next    time.Time // when one is to be made
	polled  time.Time // when lookInTime was last called
}

// reportPaths sends readings of the paths to other hosts, until the job ends.
func (p *Process) reportPaths() {
	r := &pathReport{p: p, due: alarm.New(), courses: map[int]*course{}}
	defer r.due.Close()
	r.last = time.Now()
	r.reported(r.last)
	r.due.Set(path.Look)
	p.engine.LookWhilePolling(r.lookInTime)
	for {
		select {
		case <-r.due.C:
			if told := r.look(); len(told.Links) > 0 || len(told.Heard) > 0 || len(told.Passed) > 0 {
				p.agent.Send(control.Message{Paths: &told}) // if that fails, Receive will
			}
		case <-p.stopped:
			return
		}
	}
}

// lookInTime looks in the thread of who polls, so that reportPaths need not wake but to report.
func (r *pathReport) lookInTime(now time.Time) {
	if !r.mu.TryLock() { // somebody looks
		return
	}
	defer r.mu.Unlock()
	r.polled = now
	if now.Sub(r.last) >= path.Look && now.Before(r.next) {
		r.see(now)
		r.due.Set(min(2*path.Look, r.next.Sub(now)))
	}
}

// reported notes that a reading is made. The next is made when others of the host wake, too: the agent, and other processes. mu is held.
func (r *pathReport) reported(now time.Time) {
	r.told = now
	d := alarm.Until(r.p.options.Paths)
	if d < r.p.options.Paths/2 {
		d += r.p.options.Paths
	}
	r.next = now.Add(d)
}

// see looks at all paths. mu is held.
func (r *pathReport) see(now time.Time) {
	passed := now.Sub(r.last)
	r.last = now
	for peer, c := range r.courses {
		if l := r.p.engine.Link(peer); l.Conn != nil {
			c.look(l.Conn, now, passed)
		}
	}
}

// look looks, and is the reading, if it is time for that. While no rank lives here there is little to see, and it is looked
// seldom.
func (r *pathReport) look() (told control.Paths) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now() // who polls may have looked since the alarm went off
	r.see(now)
	told.Over = now.Sub(r.told)
	due := !now.Before(r.next)
	if due {
		r.reported(now)
	}
	pace := path.Look
	if now.Sub(r.polled) < path.Look { // who polls looks before
		pace *= 2
	}
	if pace = min(pace, r.next.Sub(now)); len(r.p.engine.Local()) == 0 {
		pace = r.next.Sub(now)
	}
	r.due.Set(pace)
	if !due {
		return told
	}
	for _, l := range r.p.fabric.Links() {
		if r.courses[l.Process] == nil {
			r.courses[l.Process] = &course{}
		}
		if l.InUse >= 0 {
			r.courses[l.Process].network = l.Candidates[l.InUse].Class
		}
	}
	for peer, c := range r.courses {
		if c.heard {
			c.heard = false
			told.Heard = append(told.Heard, peer)
		}
		if c.passed.In > 0 || c.passed.Out > 0 {
			c.passed.Peer = peer
			told.Passed = append(told.Passed, c.passed)
			c.passed = control.Passed{}
		}
		if reading, any := c.Read(told.Over); any {
			sent, _ := r.p.engine.Traffic(peer)
			told.Links = append(told.Links, control.PathReading{Reading: reading, Peer: peer, Class: c.network, Size: c.class(sent.Messages, sent.Bytes, reading.Bytes), Sent: sent.Bytes})
		}
	}
	return told
}

// look looks at the connection in use.
func (c *course) look(conn transport.Conn, now time.Time, passed time.Duration) {
	switch conn := conn.(type) {
	case transport.Measured:
		c.see(conn.Path(), now, passed)
	case transport.Counted: // or the bytes would be taken for those of others
		c.count(conn.Passed())
	}
}

// see takes how the path is now.
func (c *course) see(info transport.PathInfo, now time.Time, passed time.Duration) {
	c.See(info, now, passed)
	c.heard = c.heard || info.Received > c.received
	c.count(max(info.Sent, info.Delivered), info.Received) // where some is lost, the rest is acknowledged late
}

// count takes what has left, and what has come, ever.
func (c *course) count(sent, received uint64) {
	c.passed.Out += grown(&c.left, sent)
	c.passed.In += grown(&c.received, received)
}

// grown is by how much a counter has grown since the last look. One that is less is of another connection.
func grown(last *uint64, now uint64) uint64 {
	before := *last
	*last = now
	if now < before {
		return now
	}
	return now - before
}

// class is how long messages are lately; of how many and how many bytes were sent, ever. Where there never was one, what
// is delivered is the state of ranks that move: that is as long as it is.
func (c *course) class(messages, bytes, delivered uint64) sensors.SizeClass {
	switch {
	case messages > c.messages:
		c.size = sensors.ClassOf(int((bytes - c.sent) / (messages - c.messages)))
		c.messages, c.sent = messages, bytes
	case c.messages == 0:
		return sensors.ClassOf(int(delivered))
	}
	return c.size
}
