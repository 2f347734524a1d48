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
		home := s.homes[life{rank, epoch}]
		if home == nil {
			continue
		}
		known := s.witnesses[home]
		// Where neighbours of the rank go on, they know what nobody was to hear before
		// its choices were witnessed: then only the host itself knows enough.
		if home.able() && (len(known) == 0 || a.livesOn(home)) {
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

// witnessed notes that choices that are made on home may be known on h.
func (a *Agent) witnessed(home, h *host) {
	if known := a.survival.witnesses[home]; !slices.Contains(known, h) {
		a.survival.witnesses[home] = append(known, h)
	}
}

// dyingMost is for a process of a host that still answers: short of what a host may be
// silent.
const dyingMost = time.Second

// dying tells whether a process that is out of the job is about to end. Until then it may
// record choices, and send what hangs on them.
func (a *Agent) dying(x stranded) bool {
	return a.survival.copied && !x.p.exited && x.p.host.able() && time.Now().Before(x.end)
}

// livesOn tells whether a host has ranks whose process goes on.
func (a *Agent) livesOn(h *host) bool {
	return slices.ContainsFunc(h.processes, func(i int) bool {
		p := a.processes[i]
		return len(p.ranks) > 0 && !p.exited && !p.judged && !p.condemned && !p.linkEnded
	})
}

// brought is told that choices have come to h.
func (a *Agent) brought(h *host, m control.Brought) {
	for b := range a.survival.bringing {
		if b.rank == m.Rank && b.to == h && a.agentOf(b.from) == m.Agent {
			a.survival.bringing[b] = true
		}
	}
	a.goOn()
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

// agentOf is the index of a host's agent.
func (a *Agent) agentOf(h *host) int {
	if h.here {
		return 0
	}
	return h.index + 1
}
