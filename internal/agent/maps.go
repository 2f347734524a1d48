package agent

import (
	"maps"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

// A live move is told at once to those whom it concerns, and to the others with the next sign
// of life of the head, or when one of them turns out to need it: a message waits there that
// was sent by a newer map, or somebody has sent where the rank is no more. The interest group
// is that of Frechette and Avresky, "Method for Task Migration in Grid Environments". Who is
// lost is told to all at once, since all have to refuse it.

// tellMap tells where the rank of m, which has come, is.
func (a *Agent) tellMap(m *move) {
	place := control.Message{Place: &control.Place{Epoch: m.epoch, Ranks: []control.Placement{{Rank: m.rank, Process: m.to.index}}}}
	concerned, all := a.concerned(m)
	to := a.listeners(nil)
	now, later := 0, 0
	for _, h := range a.hosts {
		switch {
		case len(to[h]) == 0:
		case all || concerned[h]:
			h.place.send(place, to[h]...)
			now++
		default:
			h.place.sendLater(place, to[h]...)
			later++
		}
	}
	if later == 0 {
		return
	}
	a.detail("rank %d has come to process %d: %d hosts are told at once, %d later", m.rank, m.to.index, now, later)
}

// concerned is the hosts that m concerns: those from which and to which the rank goes, where
// memory is shared with it; those of ranks with which it exchanges messages; and those that
// have asked. It may be that all are, for nothing is known of its messages.
func (a *Agent) concerned(m *move) (some map[*host]bool, all bool) {
	if a.policy == nil {
		return nil, true
	}
	group := a.policy.machine.Group(topology.Rank(m.rank))
	if len(group) == 0 {
		return nil, true
	}
	some = map[*host]bool{m.from.host: true, m.to.host: true}
	for _, r := range group {
		if p := a.processOf(int(r)); p != nil {
			some[p.host] = true
		}
	}
	maps.Copy(some, m.asking)
	return some, false
}

// behind is told that a process has to hear of a map: one that it will be told later, or that
// of a move under way.
func (a *Agent) behind(m control.Behind) {
	if m.Process < 0 || m.Process >= len(a.processes) {
		return
	}
	h := a.processes[m.Process].host
	a.detail("process %d has to know where ranks are: host %s is told", m.Process, h.name)
	for _, mv := range a.survival.moving {
		if mv.asking == nil {
			mv.asking = map[*host]bool{}
		}
		mv.asking[h] = true
	}
	if h.able() {
		h.place.hurry()
	}
}
