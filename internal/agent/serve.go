package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
)

// linkQueue is how many messages may wait for a process that does not read.
// When it is full a question is not asked, and who must stop is signalled.
const linkQueue = 16

// A link is the connection of a process, as the loop sees it.
type link struct {
	out chan control.Message
}

// send hands m to the process; false if it does not read.
func (l *link) send(m control.Message) bool {
	select {
	case l.out <- m:
		return true
	default:
		return false
	}
}

// accept serves each connection to l in a goroutine, until l is closed.
func (a *Agent) accept(l *net.UnixListener, serve func(*net.UnixConn)) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors; they may come back
			select {
			case <-a.done:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		if !sameUser(c) || !a.keep(c) {
			c.Close()
			continue
		}
		a.wg.Go(func() {
			defer a.forget(c)
			serve(c)
		})
	}
}

// keep and forget let closeConns end what serves c.
func (a *Agent) keep(c *net.UnixConn) bool {
	a.connMu.Lock()
	defer a.connMu.Unlock()
	if a.closed {
		return false
	}
	a.conns[c] = true
	return true
}

func (a *Agent) forget(c *net.UnixConn) {
	c.Close()
	a.connMu.Lock()
	defer a.connMu.Unlock()
	delete(a.conns, c)
}

func (a *Agent) closeConns() {
	a.connMu.Lock()
	defer a.connMu.Unlock()
	a.closed = true
	for c := range a.conns {
		c.CloseRead() // who serves it may still be answering
	}
}

// sameUser is true if c's other end is a process of this user, or of root.
func sameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Getuid()
}

// serveProcess is one process's connection.
func (a *Agent) serveProcess(c *net.UnixConn) {
	conn := control.NewConn(c)
	if conn.Send(control.Message{Welcome: &control.Welcome{Token: a.token, Options: a.job.Options}}) != nil {
		return
	}
	m, err := conn.Receive()
	if err != nil || m.Hello == nil {
		return
	}
	l := &link{out: make(chan control.Message, linkQueue)}
	welcome := make(chan *process, 1)
	a.post(func() { welcome <- a.greet(*m.Hello, l) })
	var p *process
	select {
	case p = <-welcome:
	case <-a.done:
		return
	}
	over := make(chan struct{})
	a.wg.Go(func() {
		for {
			select {
			case m := <-l.out:
				if conn.Send(m) != nil {
					return
				}
				if m.Stop != nil && p == nil {
					c.Close() // it was refused
				}
			case <-over:
				return
			case <-a.done:
				return
			}
		}
	})
	defer close(over)
	for {
		m, err := conn.Receive()
		if err != nil {
			break
		}
		if p != nil {
			a.post(func() { a.heard(p, m) })
		}
	}
	if p != nil {
		a.post(func() { a.linkEnd(p) })
	}
}

// greet is told that a process has said Hello. Nil means that it is refused.
func (a *Agent) greet(h control.Hello, l *link) *process {
	refuse := func(format string, args ...any) *process {
		reason := fmt.Sprintf(format, args...)
		l.send(control.Message{Stop: &control.Stop{Reason: reason}})
		a.warn("a connection was refused: %s", reason)
		return nil
	}
	if h.Process < 0 || h.Process >= len(a.processes) {
		return refuse("process %d is none of the job's %d", h.Process, len(a.processes))
	}
	p := a.processes[h.Process]
	if h.Version != control.Version {
		a.fail(verdict{code: 1, text: fmt.Sprintf("%s speaks version %d of the control protocol and mpivrun version %d: build the program and mpivrun from the same mpiv", p.who(), h.Version, control.Version)})
		l.send(control.Message{Stop: &control.Stop{Reason: fmt.Sprintf("mpivrun speaks version %d of the control protocol", control.Version)}})
		return nil
	}
	if p.hello != nil {
		return refuse("%s has said Hello already: was the program started a second time, by a script or by itself?", p.who())
	}
	p.hello, p.link = &h, l
	a.hellos++
	a.detail("%s: Hello from PID %d", p.who(), h.PID)
	if a.hellos == 1 {
		a.after(a.job.helloLate, a.missing)
	}
	if a.ending {
		l.send(control.Message{Stop: &control.Stop{Reason: "the job has ended"}})
		return p
	}
	if a.hellos == len(a.processes) {
		a.startRanks()
	}
	a.mixed()
	return p
}

// startRanks tells all processes what they are.
func (a *Agent) startRanks() {
	a.toldStart = true
	all := make([]control.Process, len(a.processes))
	for i, p := range a.processes {
		all[i] = control.Process{Host: a.job.Host, Slot: i, Ranks: p.ranks, Addrs: p.hello.Addrs}
	}
	for i, p := range a.processes {
		p.link.send(control.Message{Start: &control.Start{
			Job: a.job.Name, Process: i, Cores: runtime.NumCPU(), Processes: all,
		}})
	}
	a.detail("all processes are there; ranks start")
}

// missing names the processes that have not spoken while others wait for them.
func (a *Agent) missing() {
	if a.toldStart || a.ending {
		return
	}
	var silent []*process
	for _, p := range a.everyone() {
		if p.hello == nil {
			silent = append(silent, p)
		}
	}
	if len(silent) > 0 {
		a.warn("%s runs and has not called mpiv.Main for %v; the others wait for it (process %d)", names(silent), a.job.helloLate, silent[0].pid())
	}
}

// letGo ends the job when all ranks have finished: until then processes stay,
// so that what they have sent arrives. After an interrupt nobody waits for it.
func (a *Agent) letGo() {
	if a.interrupts > 0 {
		for _, p := range a.processes {
			if p.link != nil && p.allFinished() {
				p.link.send(control.Message{Stop: &control.Stop{}})
			}
		}
		return
	}
	for _, p := range a.processes {
		if !p.allFinished() {
			return
		}
	}
	for _, p := range a.processes {
		p.link.send(control.Message{Stop: &control.Stop{}})
	}
}

// heard is told what p said.
func (a *Agent) heard(p *process, m control.Message) {
	switch {
	case m.Finished != nil:
		for _, r := range m.Finished.Ranks {
			p.finished[r] = control.RankReport{Rank: r}
		}
		for _, r := range m.Finished.Reports {
			r.State = "finished"
			p.finished[r.Rank] = r
		}
		a.detail("%s: finished %v", p.who(), m.Finished.Ranks)
		a.finishedSome()
		a.letGo()
	case m.Failed != nil:
		a.rankFailed(p, *m.Failed)
	case m.Report != nil && m.Report.ID == 0:
		a.stalled()
	case m.Report != nil:
		a.report(p, *m.Report)
	}
}
