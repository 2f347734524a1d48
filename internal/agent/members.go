package agent

import (
	"slices"

	"github.com/mpiv/mpiv/internal/control"
)

// everyone is the processes that still run.
func (a *Agent) everyone() []*process {
	return slices.DeleteFunc(slices.Clone(a.processes), func(p *process) bool { return !p.started || p.exited })
}

// members is the processes that run and have been told Start, and so what has changed
// since. Who has joined may not have been heard to be started yet.
func (a *Agent) members() []*process {
	return slices.DeleteFunc(slices.Clone(a.processes), func(p *process) bool { return !p.joined || p.exited })
}

// tellMembers tells m to all who take part but some, with one message to each host.
func (a *Agent) tellMembers(m control.Message, but func(*process) bool) {
	to := a.listeners(but)
	for _, h := range a.hosts {
		if len(to[h]) > 0 {
			h.place.send(m, to[h]...)
		}
	}
}

// listeners is who takes part but some, by host.
func (a *Agent) listeners(but func(*process) bool) map[*host][]int {
	on := make(map[*host][]int, len(a.hosts))
	for _, p := range a.members() {
		if p.listens() && (but == nil || !but(p)) {
			on[p.host] = append(on[p.host], p.index)
		}
	}
	return on
}
