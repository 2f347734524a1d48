package agent

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
)

// hostLost is told that the connection to the agent of h has ended. The agent
// ends its processes, or they end with it.
func (a *Agent) hostLost(h *host, why error) {
	if h.lost {
		return
	}
	if h.adding != nil {
		a.notAdded(h, fmt.Errorf("host %s: its agent has ended before its processes had joined: %w", h.name, why))
		return
	}
	h.lost = true
	a.record(ledger.Entry{HostLost: &ledger.HostLost{Host: h.index}})
	reported := a.reports()
	vacated := a.vacated(h)
	outlived := reported || a.outlives()
	who := a.namesOf(h)
	text := fmt.Sprintf("host %s: its agent has ended", h.name)
	if who != "" {
		text += ", and with it " + who
	}
	var quiet patient.Silent
	switch {
	case h.place.(*remote).left != "":
		text += fmt.Sprintf(": %v", why)
	case errors.As(why, &quiet):
		text = fmt.Sprintf("host %s: nothing was heard of its agent for %v", h.name, time.Duration(quiet).Round(100*time.Millisecond))
		if who != "" {
			text += fmt.Sprintf(", so that %s cannot be reached", who)
		}
	case !errors.Is(why, io.EOF):
		text += fmt.Sprintf(" (%v)", why)
	}
	a.emit(events.Event{Kind: events.HostLost, Host: h.name, Text: text})
	if len(h.processes) == 0 || !slices.ContainsFunc(a.processes, func(p *process) bool { return p.host == h && !p.judged }) {
		a.detail("%s", text)
	} else if outlived || vacated {
		a.warn("%s", text)
	} else {
		a.fail(verdict{code: 1, text: text})
	}
	lost := slices.DeleteFunc(a.endAll(h), func(p *process) bool { return !p.joined }) // of others nobody has heard
	a.answered()
	switch {
	case reported:
		a.declare(verdict{code: 1, text: text}, lost...)
	case outlived:
		a.goOnWithout(h, lost, text)
		a.reelect()
	case vacated:
		a.hostsGone()
		a.refill()
	}
}

// giveUpHosts is for a job that should have ended: a host whose agent does not
// say that its processes have is done without.
func (a *Agent) giveUpHosts() {
	for _, h := range a.hosts {
		r, elsewhere := h.place.(*remote)
		if !elsewhere || h.lost {
			continue
		}
		for _, i := range h.processes {
			// Output may wait for a screen that is held up here.
			if p := a.processes[i]; !p.judged && !p.exited || p.started && !p.drained && r.printer.idle() {
				r.end(fmt.Errorf("it was to kill its processes, and has not told their end within %v", lateEnd))
				break
			}
		}
	}
}

// namesOf lists the processes of h that have not ended.
func (a *Agent) namesOf(h *host) string {
	var ps []*process
	for _, i := range h.processes {
		if p := a.processes[i]; !p.judged {
			ps = append(ps, p)
		}
	}
	return names(ps)
}

// goOnWithout has the ranks of a host that was lost, with these processes, go on on others.
func (a *Agent) goOnWithout(h *host, lost []*process, why string) {
	for _, g := range a.hosts {
		if g.able() {
			a.tellOfCopies(g, control.ToAgent{Fence: &control.Fence{Agent: h.index + 1}})
		}
	}
	for r, to := range a.survival.fetching {
		if to == h || a.survival.fetchedFrom[r] == h {
			delete(a.survival.fetching, r)
		}
	}
	a.pairHosts()
	if a.allFinished() {
		return // the job has ended, but for its processes
	}
	a.strand(verdict{code: 1, text: why}, lost...)
	if len(a.survival.stranded) == 0 {
		a.hostsGone()
	}
}
