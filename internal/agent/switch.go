package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

// The remedy of another network: the processes of two hosts are told to avoid the one they use. Which path
// they take instead they find themselves, and they go back in time. The plan is done when all who were
// seen to use that network are seen to use another.

const (
	avoidFor     = 30 * time.Second // is a network avoided. Then it is tried again
	detourWithin = 2 * time.Second  // all are to use another
)

// A detour is under way.
type detour struct {
	hosts [2]*host
	avoid topology.Class
	pairs [][2]int // of processes that talked over it
	began time.Time
	ended func(err error)
}

// takeDetour performs a plan to use another network between two hosts.
func (a *Agent) takeDetour(act adapt.Act, ended func(err error)) {
	d := &detour{began: time.Now(), ended: ended}
	class, err := topology.ParseClass(act.Leave)
	if err != nil {
		ended(err)
		return
	}
	d.avoid = class
	for _, h := range a.hosts {
		switch h.name {
		case act.From.Host:
			d.hosts[0] = h
		case act.To.Host:
			d.hosts[1] = h
		}
	}
	for pair, f := range a.policy.flows {
		if d.concerns(a, pair) && f.network == class && d.began.Sub(f.read) < 2*time.Second {
			d.pairs = append(d.pairs, pair)
		}
	}
	if d.pairs == nil {
		ended(fmt.Errorf("nothing goes between %s and %s over %v any more", act.From.Host, act.To.Host, class))
		return
	}
	a.policy.detours = append(a.policy.detours, d)
	a.tellToAvoid(d, avoidFor)
}

// concerns tells whether two processes are on the detour's two hosts.
func (d *detour) concerns(a *Agent, pair [2]int) bool {
	p, q := a.processes[pair[0]].host, a.processes[pair[1]].host
	return p == d.hosts[0] && q == d.hosts[1] || p == d.hosts[1] && q == d.hosts[0]
}

// tellToAvoid tells the processes of both hosts; for zero, that it is over.
func (a *Agent) tellToAvoid(d *detour, length time.Duration) {
	for i, h := range d.hosts {
		other := d.hosts[1-i]
		m := control.Avoid{Processes: slices.Clone(other.processes), Class: d.avoid, For: length, Why: "the leader's order"}
		for _, index := range h.processes {
			if p := a.processes[index]; p.joined && !p.judged {
				p.send(control.Message{Avoid: &m})
			}
		}
	}
}

// watchDetours ends those whose processes have all changed over, and those whose time is up.
func (a *Agent) watchDetours(now time.Time) {
	open := a.policy.detours
	a.policy.detours = nil
	for _, d := range open {
		seen, stayed := 0, 0
		for _, pair := range d.pairs {
			f := a.policy.flows[pair]
			switch {
			case f == nil || f.read.Before(d.began): // it has had nothing to send since
			case f.network == d.avoid:
				stayed++
			default:
				seen++
			}
		}
		late := now.Sub(d.began) >= detourWithin
		switch {
		case seen == len(d.pairs), late && seen > 0 && stayed == 0:
			d.ended(nil)
		case late:
			a.tellToAvoid(d, 0)
			d.ended(fmt.Errorf("%d of %d pairs of processes were seen to use another network than %v within %v", seen, len(d.pairs), d.avoid, detourWithin))
		default:
			a.policy.detours = append(a.policy.detours, d)
		}
	}
}

// networkClasses is of what classes the networks of a host are, the best first.
func (a *Agent) networkClasses(h *host) (classes []topology.Class) {
	for _, n := range a.networksOf(h) {
		if n.Class != topology.SameHost && !slices.Contains(classes, n.Class) {
			classes = append(classes, n.Class)
		}
	}
	slices.Sort(classes)
	return classes
}

// severalNetworks tells whether some host of the job has networks of several classes.
func (a *Agent) severalNetworks() bool {
	return slices.ContainsFunc(a.hosts, func(h *host) bool { return len(a.networkClasses(h)) > 1 })
}
