package agent

import (
	"slices"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

// Hosts behind different address translations do not reach each other. Networks that can go through
// a relay, as that of libp2p, have them meet at processes of hosts that both reach: these begin first.

// relaysMost is of how many processes the addresses are told.
const relaysMost = 4

// open is the processes of hosts that are not behind an address translation.
func (a *Agent) open() (all []*process) {
	for _, p := range a.processes {
		if !p.host.apart() && p.host.adding == nil && !p.judged {
			all = append(all, p)
		}
	}
	return all
}

// relays is where some of them, of as many hosts as there are, are reached from others.
func (a *Agent) relays() (addrs []string) {
	all := slices.DeleteFunc(a.open(), func(p *process) bool { return !p.ready })
	slices.SortStableFunc(all, func(p, q *process) int { return p.slot - q.slot })
	for _, p := range all[:min(len(all), relaysMost)] {
		for _, x := range p.addrs {
			if x.Class != topology.SameHost {
				addrs = append(addrs, x.Addr)
			}
		}
	}
	return addrs
}

// runApart has the processes of hosts that are behind address translations started, if it is time for that: the others
// are ready, or have ended, or late: then their program may not be one that ever will be.
func (a *Agent) runApart(late bool) {
	if !a.awaitsOpen || a.ending || !late && slices.ContainsFunc(a.open(), func(p *process) bool { return !p.ready }) {
		return
	}
	a.awaitsOpen = false
	if err := a.runElsewhere(true); err != nil {
		a.fail(verdict{code: 1, text: err.Error()})
	}
}

// callBack has a process that p may not reach connect to it.
func (a *Agent) callBack(p *process, index int) {
	if index < 0 || index >= len(a.processes) {
		return
	}
	if q := a.processes[index]; q != p && q.joined && !q.exited {
		q.send(control.Message{Call: &control.Call{Process: p.index}})
	}
}

// forgetApart is for a job that ends before they have been started.
func (a *Agent) forgetApart() {
	if a.awaitsOpen {
		a.awaitsOpen = false
		a.forget(func(p *process) bool { return p.host.apart() })
	}
}
