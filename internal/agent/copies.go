package agent

import (
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/topology"
)

// Each host has a buddy, another host whose agent keeps copies of its snapshots. The
// job's first agent knows of every copy, and nobody but it says that a snapshot is
// covered: what ranks have forgotten, it can have them do without.

// A version of a rank's state: a snapshot of the life that began in an epoch.
type version struct {
	epoch  uint32
	number uint64
}

func (v version) before(w version) bool {
	return v.epoch < w.epoch || v.epoch == w.epoch && v.number < w.number
}

// A since is what a rank has gone on from, in an epoch.
type since struct {
	epoch uint32
	from  version
}

// A stored snapshot is in a file on a host.
type stored struct {
	version
	host *host
	file string
}

// outlives tells whether the job goes on when a host is lost.
func (a *Agent) outlives() bool {
	return a.copies && a.toldStart && !a.ending && !a.mourning && a.interrupts == 0
}

// ofCopies is told by this host's buddies what agents of others say in a message.
func (a *Agent) ofCopies(m control.FromAgent) {
	a.post(func() {
		i := slices.IndexFunc(a.hosts, func(h *host) bool { return h.here })
		switch {
		case m.Refused != nil:
			a.detail("a connection was refused: %s", m.Refused.Reason)
			a.refusedOne(a.hereName(), m.Refused.Reason)
		case i < 0:
		case m.Holds != nil:
			a.holds(a.hosts[i], *m.Holds)
		case m.Uncopied != nil:
			a.uncopied(a.hosts[i], *m.Uncopied)
		case m.Brought != nil:
			a.brought(a.hosts[i], *m.Brought)
		}
	})
}

// pairHosts tells each host its buddy: the one that it has, or the next that is there. One
// that is distrusted it has only if there is no other, and one that was left only if all others
// are distrusted or were left, too: what cannot be witnessed in time holds up all that leaves.
func (a *Agent) pairHosts() {
	if !a.survival.copied {
		return
	}
	for i, h := range a.hosts {
		if !h.able() {
			continue
		}
		buddy := h.buddy
		fits := func(g *host) bool { return g.able() && !g.apart() && !a.survival.apart[[2]*host{h, g}] }
		if buddy != nil && !fits(buddy) {
			buddy = nil
		}
		for k := 1; k < len(a.hosts); k++ {
			g := a.hosts[(i+k)%len(a.hosts)]
			if fits(g) && (buddy == nil || a.worse(buddy, g)) {
				buddy = g
			}
		}
		told, first := control.Buddy{}, false
		if buddy != nil {
			told = a.takes(buddy)
		} else {
			first = !a.survival.alone[h] // until its agent is told that there is none, what hangs on choices waits
			a.coverAll(h)
		}
		if buddy != h.buddy || first {
			h.buddy = buddy
			if buddy != nil {
				a.witnessed(h, buddy)
			}
			a.tellOfCopies(h, control.ToAgent{Buddy: &told})
		}
	}
}

// worse tells whether g is less of a buddy than h. One whose agent is to end waits for another to have its copies.
func (a *Agent) worse(g, h *host) bool {
	if g.evicted != h.evicted {
		return g.evicted
	}
	if g.Distrusted != h.Distrusted {
		return g.Distrusted
	}
	return a.left(g) && !a.left(h)
}

// left tells whether ranks are kept off a host.
func (a *Agent) left(h *host) bool {
	return a.policy != nil && a.policy.machine.Left(h.name)
}

// lookForLeft has hosts find other buddies than those that ranks are kept off since.
func (a *Agent) lookForLeft() {
	var now []string
	for _, h := range a.hosts {
		if h.able() && a.left(h) {
			now = append(now, h.name)
		}
	}
	if !slices.Equal(now, a.policy.left) {
		a.policy.left = now
		a.pairHosts()
	}
}

// able is true for a host that has processes and is not lost.
func (h *host) able() bool {
	return h.place != nil && !h.lost && len(h.processes) > 0 && h.adding == nil
}

// takes is where the agent of h takes copies.
func (a *Agent) takes(h *host) control.Buddy {
	b, port := control.Buddy{Agent: a.agentOf(h)}, h.copies
	if h.here {
		port = a.buddies.Port()
	}
	for _, n := range a.networksOf(h) {
		if addr := net.JoinHostPort(n.Address, strconv.Itoa(port)); n.Class != topology.SameHost && !slices.Contains(b.Addrs, addr) {
			b.Addrs = append(b.Addrs, addr)
		}
	}
	return b
}

// hostOf is the host of an agent, by the index that others know it by; nil: there is none.
func (a *Agent) hostOf(agent int) *host {
	for _, h := range a.hosts {
		if a.agentOf(h) == agent {
			return h
		}
	}
	return nil
}

// agentOf is the index of a host's agent.
func (a *Agent) agentOf(h *host) int {
	if h.here {
		return 0
	}
	return h.index + 1
}

// tellOfCopies tells the agent of h.
func (a *Agent) tellOfCopies(h *host, m control.ToAgent) {
	if r, elsewhere := h.place.(*remote); elsewhere {
		r.order(m)
	} else {
		a.buddies.Do(m)
	}
}

// copied tells whether snapshots cover something only when they have a copy.
func (a *Agent) copied() bool {
	able := 0
	for _, h := range a.hosts {
		if h.able() {
			able++
		}
	}
	return a.copies && (able > 1 || a.survival.copied)
}

// store notes where a snapshot is. Of a life there is one file on a host; lives before
// are of use until this one is covered.
func (a *Agent) store(rank int, st stored) {
	s := &a.survival
	if now := s.since[rank]; st.epoch < now.epoch && now.from.before(st.version) {
		return // the rank may have gone another way since
	}
	all := slices.DeleteFunc(s.stored[rank], func(o stored) bool { return o.host == st.host && o.file == st.file })
	s.stored[rank] = append(all, st)
}

// storedOf is where snapshots of a rank are that it can go on from, the newest first.
func (a *Agent) storedOf(rank int) []stored {
	s := &a.survival
	s.stored[rank] = slices.DeleteFunc(s.stored[rank], func(st stored) bool { return st.host.lost || st.before(s.covered[rank]) })
	all := slices.Clone(s.stored[rank])
	slices.SortStableFunc(all, func(x, y stored) int {
		switch {
		case y.before(x.version):
			return -1
		case x.before(y.version):
			return 1
		}
		return 0
	})
	return all
}

// savedOn is told that p has saved a rank, on its host.
func (a *Agent) savedOn(p *process, m control.Saved) {
	v := version{m.Epoch, m.Number}
	a.store(m.Rank, stored{v, p.host, m.File})
	if !a.copied() {
		if a.survival.covered[m.Rank].epoch < v.epoch { // others do not wait to be told, but what was before can go
			a.cover(p, m.Rank, v)
		}
		return
	}
	if p.host.here {
		a.buddies.Saved(m)
	}
	if p.host.buddy == nil {
		a.warnOfOneCopy(p.host)
		a.cover(p, m.Rank, v)
		return
	}
	for _, st := range a.survival.stored[m.Rank] { // it was not heard when it was said
		if st.host != p.host && !st.host.lost && !st.before(v) {
			a.cover(p, m.Rank, st.version)
		}
	}
}

// savedBefore is told, by who took a rank, of its last snapshot: its old process may not
// have been heard.
func (a *Agent) savedBefore(rank int, m control.Saved) {
	h := a.survival.homes[control.Life{Rank: rank, Epoch: m.Epoch}]
	if h == nil || h.lost {
		return
	}
	a.store(rank, stored{version{m.Epoch, m.Number}, h, m.File})
	if h.here && a.copied() {
		a.buddies.Saved(m)
	}
}

// cover says that a snapshot of a rank in p is covered. Then the host of p removes what lives
// before have left there.
func (a *Agent) cover(p *process, rank int, v version) {
	if old := a.survival.covered[rank]; old.before(v) {
		a.survival.covered[rank] = v
		if old.epoch < v.epoch {
			a.forgetLives(rank)
		}
		a.record(ledger.Entry{Covered: &ledger.Covered{Rank: rank, Version: ledger.Version{Epoch: v.epoch, Number: v.number}}})
	}
	p.send(control.Message{Covered: &control.Covered{Rank: rank, Epoch: v.epoch, Number: v.number}})
}

// forgetLives forgets the lives of a rank before that of which a snapshot is covered. It goes on
// from none of them, so nobody asks for what was chosen there.
func (a *Agent) forgetLives(rank int) {
	s := &a.survival
	v := s.covered[rank]
	old := func(epoch uint32) bool { return epoch < v.epoch }
	for _, epoch := range append([]uint32{1}, s.past[rank]...) {
		if old(epoch) {
			delete(s.homes, control.Life{Rank: rank, Epoch: epoch})
		}
	}
	s.past[rank] = slices.DeleteFunc(s.past[rank], old)
	// A copy, as callers go through what there was.
	s.stored[rank] = slices.DeleteFunc(slices.Clone(s.stored[rank]), func(st stored) bool { return st.before(v) })
}

// coverAll is for a host that has no buddy.
func (a *Agent) coverAll(h *host) {
	a.survival.alone[h] = true
	a.warnOfOneCopy(h)
	for _, i := range h.processes {
		p := a.processes[i]
		for _, r := range p.ranks {
			for _, st := range a.survival.stored[r] {
				if st.host == h {
					a.cover(p, r, st.version)
				}
			}
		}
	}
}

// warnOfOneCopy says, once there are ranks on h, that nobody has copies of what they save.
func (a *Agent) warnOfOneCopy(h *host) {
	if a.survival.warned[h] {
		return
	}
	var ps []*process
	for _, i := range h.processes {
		if p := a.processes[i]; !p.judged && len(p.ranks) > 0 {
			ps = append(ps, p)
		}
	}
	if len(ps) > 0 {
		a.survival.warned[h] = true
		a.warn("host %s: no other host can keep copies of the snapshots of %s: the loss of this host would be the loss of the job", h.name, names(ps))
	}
}

// holds is told that there is a copy on h.
func (a *Agent) holds(h *host, m control.Holds) {
	if h.lost || m.Rank < 0 || a.processOf(m.Rank) == nil {
		return
	}
	v := version{m.Epoch, m.Number}
	a.store(m.Rank, stored{v, h, m.File})
	if p := a.processOf(m.Rank); p.host != h && !p.exited && v.epoch >= a.survival.since[m.Rank].epoch {
		a.cover(p, m.Rank, v)
	}
	if a.survival.fetching[m.Rank] == h {
		delete(a.survival.fetching, m.Rank)
	}
	a.tellState(m.Rank, time.Time{})
	a.goOn()
}

// uncopied is told that the agent of h could not send a copy. The two hosts do not work
// together any more.
func (a *Agent) uncopied(h *host, m control.Uncopied) {
	g := a.hostOf(m.Agent)
	if g == nil || g.lost || h.lost || a.ending {
		return
	}
	a.warn("host %s: the snapshots of its ranks cannot be copied to host %s, so another is looked for: %s", h.name, g.name, printable(m.Reason))
	a.survival.apart[[2]*host{h, g}] = true
	if h.buddy == g {
		h.buddy = nil
	}
	a.pairHosts()
	if h.buddy == nil { // it may wait to be told that there is none
		a.tellOfCopies(h, control.ToAgent{Buddy: &control.Buddy{}})
	}
	a.unbrought(h, g, m.Rank)
	if a.survival.fetching[m.Rank] == g {
		delete(a.survival.fetching, m.Rank)
		a.goOn()
	}
}

// fetch has a copy sent to where the rank will go on from it.
func (a *Agent) fetch(rank int, st stored, to *host) {
	s := &a.survival
	if s.fetching[rank] == to {
		return
	}
	s.fetching[rank], s.fetchedFrom[rank] = to, st.host
	a.detail("rank %d: its snapshot %d is sent from host %s to host %s", rank, st.number, st.host.name, to.name)
	a.tellOfCopies(st.host, control.ToAgent{Copy: &control.Copy{Rank: rank, Epoch: st.epoch, File: st.file, To: a.takes(to)}})
}
