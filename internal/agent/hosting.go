package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/mpiv/mpiv/internal/control"
)

// What an agent runs on its host, and what it tells the head of it.

// house makes what the processes here need, and where mpivrun finds the job.
func (d *deputy) house() error {
	if d.crew != nil {
		return nil
	}
	c, err := newCrew(crewJob{name: d.boot.Job, runtime: RuntimeDir(), guard: d.orders.Guard}, d)
	if err != nil {
		return err
	}
	if d.asked, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(c.dir.path, askName), Net: "unix"}); err != nil {
		c.close()
		return err
	}
	d.crew = c
	d.buried.Store(c)
	if d.copies != nil {
		if err := d.copies.Home(c.dir.path); err != nil {
			return err
		}
	}
	c.wg.Go(func() { c.accept(d.asked, d.question) })
	return nil
}

// run starts this host's processes.
func (d *deputy) run(r control.Run) {
	fail := func(err error) {
		for _, s := range r.Processes {
			d.forked(s.Index, 0, err)
		}
	}
	if err := d.house(); err != nil {
		fail(err)
		return
	}
	d.running = true
	c := d.crew
	c.job.token, c.job.networks, c.job.options, c.job.bind = r.Token, r.Networks, r.Options, r.Bind
	var err error
	for _, s := range r.Processes {
		if err = d.add(c, s); err != nil {
			break
		}
	}
	if err == nil {
		err = c.start()
	}
	if err != nil {
		fail(err)
		return
	}
	if r.Options.Paths > 0 {
		c.wg.Go(func() { c.readHost(d.copies, func(r control.HostReading) { d.say(control.FromAgent{Host: &r}) }) })
	}
	if r.Metrics != "" {
		d.serveMetrics(r.Metrics)
	}
}

// add makes the child of s.
func (d *deputy) add(c *crew, s control.Spawn) error {
	m := &child{
		index: s.Index, ranks: s.Ranks, credentials: s.Credentials,
		prog: &Program{Ranks: len(s.Ranks), Path: s.Path, Args: s.Args, Env: s.Env, Dir: s.Dir},
	}
	if err := m.resolve(); err != nil {
		return err
	}
	var in *os.File
	if s.Input {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		m.ours = append(m.ours, r)
		in = r
		d.input = newFeeder(w, func(n int, broken bool) {
			d.say(control.FromAgent{Taken: &control.Taken{Process: s.Index, Bytes: n, Broken: broken}})
		})
	}
	var out [2]*stream
	for i := range out {
		to := stdio{s.Index, i == 1}
		out[i] = &stream{screen: new(screen), w: upward{d, to, d.window(to)}, prompt: s.Input}
	}
	return c.add(m, in, out, [2]*os.File{})
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

func (u upward) Write(p []byte) (int, error) {
	const piece = 64 << 10
	for sent := 0; sent < len(p); {
		n := u.window.take(min(len(p)-sent, piece))
		if n == 0 {
			return sent, syscall.EPIPE
		}
		u.d.say(control.FromAgent{Output: &control.Output{Process: u.of.process, Stderr: u.of.stderr, Data: p[sent : sent+n]}})
		sent += n
	}
	return len(p), nil
}

// What the crew reports goes to the first agent.

func (d *deputy) forked(process, pid int, err error) {
	f := control.Forked{Process: process, PID: pid}
	if err != nil {
		f.Error, f.Code = err.Error(), 1
		if ee, ok := errors.AsType[*ExitError](err); ok {
			f.Code = ee.Code
		}
	}
	d.say(control.FromAgent{Forked: &f})
}

func (d *deputy) said(process int, m *control.Message) {
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

func (d *deputy) refused(reason string) {
	d.strangers.Add(1)
	d.say(control.FromAgent{Refused: &control.Refused{Reason: reason}})
}

func (d *deputy) exited(process int, status syscall.WaitStatus) {
	d.say(control.FromAgent{Exited: &control.Exited{Process: process, Status: uint32(status)}})
}

func (d *deputy) stopped(process int, why string) {
	d.say(control.FromAgent{Stopped: &control.Stopped{Process: process, Why: why}})
}

func (d *deputy) drained(process int) {
	d.say(control.FromAgent{Drained: &control.Drained{Process: process}})
}
