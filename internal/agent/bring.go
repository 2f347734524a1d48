package agent

import (
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// What a rank goes on from is a snapshot and the choices since then. Those of a host that
// is lost are where its buddies are: at the last, or, while that has not been told all, at
// the one before. So each of them is asked.

// bring is choices of a rank on their way from host to host.
type bring struct {
	rank     int
	from, to *host
}

// choicesAt tells whether all that is known of the choices of a rank, which will go on
// from st, is at a host. If not they are sent there.
func (a *Agent) choicesAt(rank int, st stored, to *host) bool {
	s := &a.survival
	there := true
	for _, from := range a.choosersOf(rank, st.epoch) {
		b := bring{rank, from, to}
		if from == to || s.bringing[b] {
			continue
		}
		there = false
		if _, asked := s.bringing[b]; !asked {
			s.bringing[b] = false
			a.detail("rank %d: its choices are sent from host %s to host %s", rank, from.name, to.name)
			a.tellOfCopies(from, control.ToAgent{Copy: &control.Copy{Rank: rank, Epoch: st.epoch, To: a.takes(to)}})
		}
	}
	return there
}

// choosersOf is the hosts that may know choices of a rank's lives, back to the life that
// began in an epoch.
func (a *Agent) choosersOf(rank int, back uint32) (all []*host) {
	s := &a.survival
	for _, epoch := range a.livesOf(rank, back) {
		home := s.homes[control.Life{Rank: rank, Epoch: epoch}]
		if home == nil {
			continue
		}
		known := s.witnesses[home]
		if home.able() && !a.witnessesKnow(home) {
			known = []*host{home}
		}
		for _, h := range known {
			if h.able() && !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
	}
	return all
}

// choicesLost tells whether all who know what a rank has chosen in its last life are lost, and it is not where the rank
// will go on: it would go another way, and contradict what others have had from it.
func (a *Agent) choicesLost(rank int, to *process) bool {
	s := &a.survival
	home := s.homes[control.Life{Rank: rank, Epoch: a.livesOf(rank, 0)[0]}]
	witness := s.informed[home]
	there := to != nil && (s.bringing[bring{rank, home, to.host}] || s.bringing[bring{rank, witness, to.host}])
	return home != nil && !home.able() && witness != nil && !witness.able() && !there
}

// witnessesKnow tells whether the witnesses of a host know enough of what was chosen there.
// Where ranks go on, those know what nobody elsewhere was to hear before it was witnessed; and
// what a lost witness knew the next may not know yet.
func (a *Agent) witnessesKnow(home *host) bool {
	known := a.survival.witnesses[home]
	return len(known) > 0 && !a.livesOn(home) && !slices.ContainsFunc(known, func(h *host) bool { return !h.able() })
}

// witnessed notes that choices that are made on home may be known on h.
func (a *Agent) witnessed(home, h *host) {
	if known := a.survival.witnesses[home]; !slices.Contains(known, h) {
		a.survival.witnesses[home] = append(known, h)
	}
}

// dyingMost is for a process of a host that still answers: short of what a host may be
// silent.
const dyingMost = time.Second

// dying tells whether a process that is out of the job may record choices that count, and send
// what hangs on them. To end may take one that starves a second, so if its witnesses know
// enough they are told to hear no more.
func (a *Agent) dying(x stranded) bool {
	home := x.p.host
	if !a.survival.copied || x.p.exited || !home.able() || time.Now().After(x.end) {
		return false
	}
	if !a.witnessesKnow(home) {
		return true
	}
	for _, h := range a.survival.witnesses[home] {
		a.closeBook(x.p, h)
	}
	return false
}

// closeBook has h hear no more of what the ranks of p, which may live, choose. Nobody opens the book again: another
// head must not have p go on.
func (a *Agent) closeBook(p *process, h *host) {
	if p.closed[h] != nil {
		return
	}
	a.condemn(p)
	if p.closed == nil {
		p.closed = map[*host][]control.Life{}
	}
	for _, r := range p.ranks {
		l := control.Life{Rank: r, Epoch: a.livesOf(r, 0)[0]}
		p.closed[h] = append(p.closed[h], l)
		a.tellOfCopies(h, control.ToAgent{Close: &control.Close{Rank: l.Rank, Epoch: l.Epoch, For: max(closedFor, 2*a.job.Silence)}})
	}
}

// refuseNoMore is told that p has ended: it chooses no more.
func (a *Agent) refuseNoMore(p *process) {
	for h, all := range p.closed {
		for _, l := range all {
			if h.able() {
				a.tellOfCopies(h, control.ToAgent{Close: &control.Close{Rank: l.Rank, Epoch: l.Epoch}})
			}
		}
	}
	p.closed = nil
}

// closedFor is how long after a rank has gone on elsewhere nobody hears what its process
// chooses, if it does not end: by then all have been told that it is lost, or are lost
// themselves. Short of the time after which another would be told (carryTime, internal/buddy).
const closedFor = 4 * time.Second

// livesOn tells whether a host has ranks whose process goes on.
func (a *Agent) livesOn(h *host) bool {
	return slices.ContainsFunc(h.processes, func(i int) bool {
		p := a.processes[i]
		return len(p.ranks) > 0 && !p.exited && !p.judged && !p.condemned && !p.linkEnded
	})
}

// brought is told that choices have come to h.
func (a *Agent) brought(h *host, m control.Brought) {
	if home := a.hostOf(m.Agent); m.Rank < 0 && home != nil && !a.superseded(home, h) {
		a.survival.informed[home] = h
		if m.None { // without it ranks would go the same way
			delete(a.survival.informed, home)
		}
	}
	for b := range a.survival.bringing {
		if b.rank == m.Rank && b.to == h && a.agentOf(b.from) == m.Agent {
			a.survival.bringing[b] = true
		}
	}
	a.goOn()
}

// superseded tells whether h was a buddy of home, whose next has said that it knows all, too: what h says has been long on its way.
func (a *Agent) superseded(home, h *host) bool {
	known := a.survival.informed[home]
	return known != nil && known == home.buddy && known != h
}

// unbrought is told that h cannot send to g.
func (a *Agent) unbrought(h, g *host, rank int) {
	for b := range a.survival.bringing {
		if b.from == h && b.to == g && b.rank == rank {
			a.survival.bringing[b] = true // what is there has to do
			a.goOn()
		}
	}
}

// broughtAll forgets what was on its way for a rank that goes on.
func (a *Agent) broughtAll(rank int) {
	for b := range a.survival.bringing {
		if b.rank == rank {
			delete(a.survival.bringing, b)
		}
	}
}
