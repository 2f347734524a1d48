package agent

import (
	"syscall"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
)

// local is the Agent as the owner of this host's crew, and that crew as a place.
type local struct{ a *Agent }

func (l local) send(m control.Message, to ...int) bool { return l.a.crew.Send(m, to...) }
func (l local) sendLater(m control.Message, to ...int) { l.send(m, to...) }
func (l local) hurry()                                 {}
func (l local) kill(process int, sig syscall.Signal)   { l.a.crew.Kill(process, sig) }

func (l local) Forked(process, pid int, err error) {
	l.a.post(func() { l.a.forked(l.a.processes[process], pid, err) })
}

func (l local) Said(process int, m *control.Message) {
	l.a.post(func() { l.a.said(l.a.processes[process], m) })
}

func (l local) Refused(reason string) {
	l.a.post(func() {
		l.a.warn("a connection was refused: %s", reason)
		l.a.refusedOne(l.a.hereName(), reason)
	})
}

func (l local) Exited(process int, status syscall.WaitStatus) {
	l.a.post(func() { l.a.exited(l.a.processes[process], status) })
}

func (l local) Stopped(process int, why string) {
	l.a.post(func() { l.a.stopped(l.a.processes[process], why) })
}

func (l local) Drained(process int) {
	l.a.post(func() { l.a.drained(l.a.processes[process]) })
}

// spawn starts p on this host.
func (l local) spawn(p *process) error {
	m := crew.Process{Index: p.index, Program: p.prog.program(), Output: p.outputs()}
	var err error
	if m.File, err = m.Program.Find(); err != nil {
		return err
	}
	if m.Credentials, err = l.a.credentialsOf(p); err != nil {
		return err
	}
	return l.a.crew.Add(m)
}
