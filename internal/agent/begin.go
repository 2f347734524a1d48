package agent

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
)

// startAll has every process started.
func (a *Agent) startAll() {
	a.toldRun = true
	networks, err := a.identify()
	if err == nil && a.crew != nil {
		err = a.crew.Start(crew.Job{Token: a.token, Networks: networks, Options: a.job.Options, Bind: a.job.Bind, Guard: a.job.Guard})
	}
	if err == nil && a.head != nil {
		err = a.runElsewhere(false)
	}
	if err != nil {
		a.forgetAll()
		a.fail(verdict{code: 1, text: err.Error()})
		return
	}
	if a.awaitsOpen = slices.ContainsFunc(a.hosts, func(h *host) bool { return h.apart() && len(h.processes) > 0 }); a.awaitsOpen {
		a.after(a.job.helloLate, func() { a.runApart(true) })
		a.runApart(false)
	}
}

// identify gives the processes of this host their keys, in a job
// of several hosts, and returns their networks.
func (a *Agent) identify() (networks []control.Network, err error) {
	for _, h := range a.hosts {
		if a.head != nil && h.here {
			h.networks = h.Networks
			networks = a.networksOf(h)
		}
	}
	if a.crew == nil {
		return networks, nil
	}
	for _, p := range a.crew.Processes() {
		c, err := a.credentialsOf(a.processes[p])
		if err != nil {
			return nil, err
		}
		a.crew.Identify(p, c)
	}
	return networks, nil
}

// forgetAll is for a job whose processes are not started.
func (a *Agent) forgetAll() { a.forget(func(*process) bool { return true }) }

// forget is for processes that are not started.
func (a *Agent) forget(which func(*process) bool) {
	for _, p := range a.processes {
		if which(p) && !p.judged {
			p.judged = true
			a.running--
		}
	}
}

// forked is told that p runs, or why it does not.
func (a *Agent) forked(p *process, pid int, err error) {
	if p.judged || p.started { // its host was lost, or lies
		return
	}
	if err != nil && p.host.adding != nil {
		a.notAdded(p.host, fmt.Errorf("host %s: %w", p.host.name, err))
		return
	}
	if err != nil {
		p.judged = true
		a.running--
		code := 1
		if ee, ok := err.(*exit.Error); ok {
			code = ee.Code
		}
		text := err.Error()
		if !p.host.here {
			text = fmt.Sprintf("host %s: %s", p.host.name, text)
		}
		if p.index >= a.first && a.toldStart { // the job has its ranks
			p.exited = true
			a.emitOf(p, events.Event{Kind: events.ProcessExited, Text: text, Exited: &events.Exited{Code: code}})
			a.spareFailed(p, text)
			return
		}
		a.fail(verdict{code: code, text: text})
		return
	}
	p.started, p.pid = true, pid
	a.emitOf(p, events.Event{Kind: events.ProcessStarted, Started: &events.Started{PID: pid}})
	a.draining++
	a.detail("%s: process %d of the job started, PID %d%s", p.who(), p.index, pid, a.onHost(p))
	for _, sig := range a.passed { // it ran already, though we did not know
		p.kill(sig)
	}
	if a.ending { // too late
		p.kill(syscall.SIGKILL)
	}
}

// onHost says where p is, in a job of several hosts.
func (a *Agent) onHost(p *process) string {
	if len(a.hosts) == 1 {
		return ""
	}
	return " on host " + p.host.name
}
