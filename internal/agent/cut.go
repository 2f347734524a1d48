package agent

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/leader"
)

// Two hosts may not reach each other, though the job's head reaches both. Their processes
// say so. A cut that ends soon is as if it had not been: connections are made again, and
// streams go on. Of one that lasts one side is left: at levels "moves" and "crashes" by the
// policy, at level "report" its ranks are declared failed. Where that cannot be the job
// ends, and says why.
const (
	cutPatience = 4 * time.Second         // for a cut to end: a connection that survives one of 2 s goes on a second after it
	cutMost     = control.AlivePatient    // for a cut that nothing is done about
	cutSilent   = 1500 * time.Millisecond // after which a cut that nobody speaks of is over
	agentsHeard = time.Second             // an agent of which nothing came for longer may be what is cut off
	cutInPart   = 3                       // times as much patience while something comes over older connections: the network may be full
)

// A cut is between two hosts. Owned by loop.
type cut struct {
	since, last time.Time // when nothing got through any more, and when that was heard last
	why         string    // of the last attempt
	acted       bool
}

func (a *Agent) pairText(pair [2]*host) string {
	return fmt.Sprintf("hosts %s and %s", pair[0].name, pair[1].name)
}

// pairOf is two hosts, in one order.
func pairOf(g, h *host) [2]*host {
	if g.index > h.index {
		g, h = h, g
	}
	return [2]*host{g, h}
}

// cutSeen is told by p that it does not reach another host.
func (a *Agent) cutSeen(p *process, m control.Cut) {
	if m.Process < 0 || m.Process >= len(a.processes) || !a.toldStart || a.ending || a.mourning || a.interrupts > 0 {
		return
	}
	q := a.processes[m.Process]
	for _, o := range []*process{p, q} {
		if o.judged || o.exited || o.stop.why != "" || o.host.lost {
			return
		}
	}
	if p.host == q.host {
		return
	}
	pair := pairOf(p.host, q.host)
	now := time.Now()
	c := a.cuts[pair]
	if c == nil {
		c = &cut{since: now.Add(-min(max(m.For, 0), now.Sub(a.began)))}
		if a.cuts == nil {
			a.cuts = map[[2]*host]*cut{}
		}
		a.cuts[pair] = c
		text := fmt.Sprintf("%s do not reach each other: %s", a.pairText(pair), printable(m.Error))
		a.emit(events.Event{Kind: events.HostsCut, Text: text})
		a.detail("%s", text)
		c.last = now
		a.watchCut(pair, c)
	}
	c.last, c.why = now, printable(m.Error)
	a.judgeCuts(now)
}

// watchCut notes the end of a cut.
func (a *Agent) watchCut(pair [2]*host, c *cut) {
	a.after(cutSilent-time.Since(c.last), func() {
		if time.Since(c.last) < cutSilent {
			a.watchCut(pair, c)
			return
		}
		delete(a.cuts, pair)
		if !c.acted && !a.ending {
			text := fmt.Sprintf("%s reach each other again, or have nothing to say", a.pairText(pair))
			a.emit(events.Event{Kind: events.HostsCut, Text: text})
			a.detail("%s", text)
		}
	})
}

// judgeCuts does something about cuts that last.
func (a *Agent) judgeCuts(now time.Time) {
	var ripe [][2]*host
	longest, due := time.Duration(0), false
	for _, pair := range slices.SortedFunc(maps.Keys(a.cuts), func(x, y [2]*host) int {
		return (x[0].index-y[0].index)<<16 + x[1].index - y[1].index
	}) {
		c := a.cuts[pair]
		lasts, patience := now.Sub(c.since), cutPatience
		if now.Sub(a.met[pair]) < agentsHeard {
			patience *= cutInPart
		}
		if r := a.unheard(pair); r != nil && lasts >= patience && now.Sub(c.last) < cutSilent {
			r.end(patient.Silent(r.ear.Heard()))
			continue
		}
		switch {
		case now.Sub(c.last) >= cutSilent || !a.hearsOf(pair[0], agentsHeard) || !a.hearsOf(pair[1], agentsHeard):
		case lasts >= a.cutBound() && !a.reports():
			text := fmt.Sprintf("%s have not reached each other for %v, though host %s reaches both (%s)", a.pairText(pair), lasts.Round(100*time.Millisecond), a.hereName(), c.why)
			switch {
			case pair[0].apart() && pair[1].apart():
				text += ". Both are behind address translations: a program that hands in libp2p, mpiv.Main(run, libp2p.Network()), has them meet at processes of another host"
			case a.job.Options.Survive == "none":
				text += ": with --survive crashes and spares ranks would have gone on where all reach each other"
			default:
				text += ", and no ranks could go on where all reach each other"
			}
			a.fail(verdict{code: 1, text: text})
			return
		case lasts >= patience/2 && !c.acted:
			ripe = append(ripe, pair)
			longest, due = max(longest, lasts), due || lasts >= patience
		}
	}
	if due && a.job.Options.Survive != "none" {
		a.leaveSides(ripe, longest)
	}
}

// cutBound is how long a cut may last. At level "none" nothing can be done about it, and what
// counts is for how long nothing may be heard.
func (a *Agent) cutBound() time.Duration {
	if a.job.Options.Survive == "none" {
		return max(cutPatience, a.job.Silence)
	}
	return max(cutMost, a.job.Silence)
}

// leaveSides has hosts left so that no cut is between the others.
func (a *Agent) leaveSides(pairs [][2]*host, lasts time.Duration) {
	told := leader.Unreached{For: lasts}
	for _, pair := range pairs {
		a.cuts[pair].acted = true
		told.Pairs = append(told.Pairs, [2]string{pair[0].name, pair[1].name})
		a.survival.apart[pair], a.survival.apart[[2]*host{pair[1], pair[0]}] = true, true // no copies are sent between them
	}
	if !a.reports() {
		a.pairHosts()
		a.tellPolicy(told)
		return
	}
	ranks := map[string]int{}
	for _, p := range a.processes {
		if !p.dead {
			ranks[p.host.name] += len(p.ranks)
		}
	}
	for _, name := range leader.Leave(told.Pairs, ranks, a.hereName()) {
		why := fmt.Sprintf("is given up: between hosts %s nothing has got through for %v", pairNames(told.Pairs, name), lasts.Round(100*time.Millisecond))
		for _, p := range a.processes {
			if p.host.name == name && !p.judged {
				p.stop.hung = why
				a.putOut(p)
			}
		}
	}
}

// pairNames is the pairs in which a host is, for people.
func pairNames(pairs [][2]string, host string) (text string) {
	for _, p := range pairs {
		if p[0] != host && p[1] != host {
			continue
		}
		if text != "" {
			text += "; "
		}
		text += p[0] + " and " + p[1]
	}
	return text
}

// unheard is the agent of one of two hosts that the head, which is on the other, does not hear. Others may: that excuses
// a link which is full, and not a cut that lasts. Nil: there is none, or the head's host is cut off from all.
func (a *Agent) unheard(pair [2]*host) *remote {
	for i, h := range pair {
		r, elsewhere := h.place.(*remote)
		if elsewhere && r.ear != nil && r.ear.Heard() >= max(a.job.Silence, agentsHeard) && pair[1-i].name == a.hereName() && !a.head.wasCutOff() {
			return r
		}
	}
	return nil
}

// hearsOf tells whether the agent of h was heard of lately.
func (a *Agent) hearsOf(h *host, lately time.Duration) bool {
	r, elsewhere := h.place.(*remote)
	return !elsewhere || r.ear != nil && r.ear.Heard() < lately
}
