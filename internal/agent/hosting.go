package agent

import (
	"bytes"
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/rundir"
)

// What an agent runs on its host, and what it tells the head of it.

// house makes what the processes here need, and where mpivrun finds the job.
func (d *deputy) house() error {
	if d.crew != nil {
		return nil
	}
	dir, err := rundir.Make(rundir.Root(), d.boot.Job)
	if err != nil {
		return err
	}
	if err = dir.Belongs(d.boot.Job); err != nil {
		dir.Remove()
		return err
	}
	c, err := crew.New(dir.Path, d)
	if err != nil {
		dir.Remove()
		return err
	}
	if d.asked, err = net.ListenUnix("unix", &net.UnixAddr{Name: rundir.AskSocket(dir.Path), Net: "unix"}); err != nil {
		c.Close()
		dir.Remove()
		return err
	}
	d.dir, d.crew = dir, c
	d.buried.Store(c)
	if d.copies != nil {
		if err := d.copies.Home(dir.Path); err != nil {
			return err
		}
	}
	c.Accept(d.asked, d.question)
	return nil
}

// run starts this host's processes.
func (d *deputy) run(r control.Run) {
	fail := func(err error) {
		for _, s := range r.Processes {
			d.Forked(s.Index, 0, err)
		}
	}
	if err := d.house(); err != nil {
		fail(err)
		return
	}
	d.running = true
	var err error
	for _, s := range r.Processes {
		if err = d.add(s); err != nil {
			break
		}
	}
	if err == nil {
		err = d.crew.Start(crew.Job{Token: r.Token, Networks: r.Networks, Options: r.Options, Bind: r.Bind, Guard: d.orders.Guard})
	}
	if err != nil {
		fail(err)
		return
	}
	if r.Options.Paths > 0 {
		readHost(d.crew, d.copies, func(r control.HostReading) { d.say(control.FromAgent{Host: &r}) })
	}
	if r.Metrics != "" {
		d.serveMetrics(r.Metrics)
	}
}

// add adds s to the crew.
func (d *deputy) add(s control.Spawn) (err error) {
	m := crew.Process{
		Index: s.Index, Ranks: s.Ranks, Credentials: s.Credentials,
		Program: crew.Program{Path: s.Path, Args: s.Args, Env: s.Env, Dir: s.Dir},
	}
	if m.File, err = m.Program.Find(); err != nil {
		return err
	}
	if s.Input {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		m.Input, m.CloseInput = r, true
		d.input = newFeeder(w, func(n int, broken bool) {
			d.say(control.FromAgent{Taken: &control.Taken{Process: s.Index, Bytes: n, Broken: broken}})
		})
	}
	for i := range m.Output {
		to := stdio{s.Index, i == 1}
		m.Output[i] = &stream{screen: new(screen), w: upward{d, to, d.window(to)}, prompt: s.Input}
	}
	return d.crew.Add(m)
}

// window is what of an output may be on its way.
func (d *deputy) window(of stdio) *window {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.windows[of]
	if w == nil {
		w = newWindow()
		d.windows[of] = w
	}
	return w
}

// upward is an output of a process: it goes to the first agent.
type upward struct {
	d      *deputy
	of     stdio
	window *window
}

// Write sends whole lines, whatever has room just then: where a piece ends, another process's line may come.
func (u upward) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		n := min(len(p)-sent, pieceBytes)
		if lines := bytes.LastIndexByte(p[sent:sent+n], '\n') + 1; lines > 0 {
			n = lines
		}
		if !u.window.take(n) {
			return sent, syscall.EPIPE
		}
		u.d.say(control.FromAgent{Output: &control.Output{Process: u.of.process, Stderr: u.of.stderr, Data: p[sent : sent+n]}})
		sent += n
	}
	return len(p), nil
}

// What the crew reports goes to the first agent.

func (d *deputy) Forked(process, pid int, err error) {
	f := control.Forked{Process: process, PID: pid}
	if err != nil {
		f.Error, f.Code = err.Error(), 1
		if ee, ok := errors.AsType[*exit.Error](err); ok {
			f.Code = ee.Code
		}
	}
	d.say(control.FromAgent{Forked: &f})
}

func (d *deputy) Said(process int, m *control.Message) {
	if m != nil {
		if m.Saved != nil && d.copies != nil {
			d.copies.Saved(*m.Saved)
		}
		if m.Paths != nil {
			d.office.heard(*m.Paths)
		}
		shorten(m)
	}
	d.say(control.FromAgent{Said: &control.Said{Process: process, Message: m}})
}

// countsMost is how many counts fit a message to the first agent.
const countsMost = control.FromAgentBytes / 64

// shorten takes out of m what would make it longer than the first agent reads: it
// then does without some answers.
func shorten(m *control.Message) {
	counts := func(ranks []control.RankReport) (n int) {
		for _, r := range ranks {
			n += 8 + len(r.Sent) + len(r.Received) + len(r.Offered)
		}
		return n
	}
	if m.Report != nil && counts(m.Report.Ranks) > countsMost {
		m.Report.Ranks = nil
	}
	if m.Finished != nil && counts(m.Finished.Reports) > countsMost {
		m.Finished.Reports = nil
	}
}

func (d *deputy) Refused(reason string) {
	d.strangers.Add(1)
	d.say(control.FromAgent{Refused: &control.Refused{Reason: reason}})
}

func (d *deputy) Exited(process int, status syscall.WaitStatus) {
	d.say(control.FromAgent{Exited: &control.Exited{Process: process, Status: uint32(status)}})
}

func (d *deputy) Stopped(process int, why string) {
	d.say(control.FromAgent{Stopped: &control.Stopped{Process: process, Why: why}})
}

func (d *deputy) Drained(process int) {
	d.say(control.FromAgent{Drained: &control.Drained{Process: process}})
}
