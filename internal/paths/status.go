package paths

import (
	"errors"
	"fmt"
	"time"
)

var errLeft = errors.New("left by the other end")

// A Status is what a Pair does, for people.
type Status struct {
	Using    int // -1: none
	Since    time.Time
	Why      string
	Switches int
	Stalled  bool
	Routes   []RouteStatus
}

// A RouteStatus is what is known of a path.
type RouteStatus struct {
	Path
	State string // "in use", "idle", "dead since 1.2 s, …"
	RTT   time.Duration
	Out   float64 // bytes a second; 0: not measured
}

// Status is what the pair does at that time.
func (p *Pair) Status(now time.Time) Status {
	s := Status{Using: p.using, Since: p.since, Why: p.why, Switches: p.switches, Stalled: p.stalled}
	for i := range p.routes {
		r := &p.routes[i]
		s.Routes = append(s.Routes, RouteStatus{Path: r.Path, State: p.describe(i, now), RTT: r.rtt, Out: r.pace[0]})
	}
	return s
}

func (p *Pair) describe(i int, now time.Time) string {
	r := &p.routes[i]
	text := "idle"
	switch {
	case i == p.using && p.stalled:
		return "in use, " + p.stall
	case i == p.using:
		return "in use"
	case !r.dead.IsZero():
		text = fmt.Sprintf("dead since %v (%v)", round(now.Sub(r.dead)), r.err)
	case r.failures > 0 && r.err != nil:
		text = fmt.Sprintf("tried in vain (%v)", r.err)
	}
	at := r.next
	if held := p.heldUntil(i); held.After(at) {
		at = held
	}
	switch {
	case r.state != idle:
		text += ", " + r.state.String()
	case at.After(now):
		text += fmt.Sprintf(", next probe in %v", round(at.Sub(now)))
	}
	return text
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
