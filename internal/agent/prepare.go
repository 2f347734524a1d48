package agent

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/rundir"
)

// prepare makes all that can fail before the first process runs.
func (a *Agent) prepare() error {
	var err error
	if a.hosts, a.processes, err = layout(a.job); err != nil {
		return err
	}
	a.publish()
	if err := a.checkTransports(); err != nil {
		return err
	}
	if err := a.prepareContracts(); err != nil {
		return err
	}
	rand.Read(a.token)
	if a.deputy != nil {
		return a.prepareOutliving()
	}
	if a.dir, err = rundir.Make(a.job.Runtime, a.job.Name); err != nil {
		return err
	}
	if a.crew, err = crew.New(a.dir.Path, local{a}); err != nil {
		return err
	}
	a.job.Name = a.dir.Name()
	if a.asked, err = net.ListenUnix("unix", &net.UnixAddr{Name: rundir.AskSocket(a.dir.Path), Net: "unix"}); err != nil {
		return err
	}
	for _, h := range a.hosts {
		if h.here {
			h.place, h.cores = local{a}, runtime.NumCPU()
		} else if a.head == nil && len(h.processes) > 0 {
			if err := a.openHead(); err != nil {
				return err
			}
		}
	}
	if err := a.prepareOutput(); err != nil {
		return err
	}
	if err := a.prepareChaos(); err != nil {
		return err
	}
	if err := a.prepareFiles(); err != nil {
		return err
	}
	if err := a.prepareHere(); err != nil {
		return err
	}
	return a.serveMetrics()
}

// prepareFiles opens those that events and the trace go to.
func (a *Agent) prepareFiles() (err error) {
	if a.job.Events != "" {
		if a.eventsFile, err = openEvents(a.job.Events); err != nil {
			return err
		}
	}
	if a.job.Trace != "" {
		a.traceFile, err = openTrace(a.job.Trace)
	}
	return err
}

// publish has other goroutines than loop know all processes and hosts.
func (a *Agent) publish() {
	processes, hosts := a.processes, a.hosts
	a.known.Store(&processes)
	a.roster.Store(&hosts)
}

// prepareOutput makes where the output of every process goes, and the input of
// the one that has some.
func (a *Agent) prepareOutput() error {
	if a.job.OutputDir != "" {
		if err := os.MkdirAll(a.job.OutputDir, 0o777); err != nil {
			return fmt.Errorf("make the directory for output: %w", err)
		}
	}
	out, ok1 := a.job.Stdout.(*os.File)
	errs, ok2 := a.job.Stderr.(*os.File)
	a.first = len(a.processes)
	a.screens = [2]*screen{new(screen), new(screen)}
	if !a.apart && (!ok1 || !ok2 || sameFile(out, errs)) {
		a.screens[0] = a.screens[1]
	}
	a.speaker = newSpeaker(&stream{screen: a.screens[1], w: a.job.Stderr})
	for _, p := range a.processes {
		if err := a.outputOf(p); err != nil {
			return fmt.Errorf("make the output of %s: %w", p.who(), err)
		}
	}
	return nil
}

// outputOf makes the streams of p.
func (a *Agent) outputOf(p *process) error {
	for i, w := range []io.Writer{a.job.Stdout, a.job.Stderr} {
		s := &stream{screen: a.screens[i], stamped: a.job.Timestamp, prompt: p.reads}
		s.lost = func(err error) { a.post(func() { a.outputLost(p, err) }) }
		if a.job.OutputDir == "" && a.spool != nil {
			s.w = outlet{spooled{a.spool, i == 1}, p.index, s}
		} else if a.job.OutputDir == "" {
			s.w = w
		} else {
			s.screen, s.prompt = new(screen), false
		}
		if err := a.signOutput(s, p.label(), i); err != nil {
			return err
		}
		p.streams[i] = s
	}
	p.streams[1].last = new(tail)
	return nil
}

// signOutput has what comes of s from now on be that of the process called label: which of its two outputs s is.
func (a *Agent) signOutput(s *stream, label string, which int) error {
	name := [2]string{"stdout", "stderr"}[which]
	s.screen.mu.Lock()
	defer s.screen.mu.Unlock()
	if a.job.Tag {
		s.tag = "[" + label + "]<" + name + ">: "
	}
	if a.job.OutputDir == "" {
		return nil
	}
	path := filepath.Join(a.job.OutputDir, "rank."+label+"."+name)
	f := a.outputs[path]
	if f == nil {
		var err error
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o666); err != nil {
			return err
		}
		if a.outputs == nil {
			a.outputs = map[string]*os.File{}
		}
		a.outputs[path] = f
	}
	s.w, s.screen.open = f, nil
	return nil
}

// signAs has what comes of p from now on be that of rank.
func (a *Agent) signAs(p *process, rank int) {
	for i, s := range p.streams {
		if s == nil {
			continue
		}
		if err := a.signOutput(s, strconv.Itoa(rank), i); err != nil {
			s.broken.Store(true)
			a.after(0, func() { a.outputLost(p, err) })
		}
	}
}

// prepareHere adds the processes of this host to its crew.
func (a *Agent) prepareHere() error {
	out, ok1 := a.job.Stdout.(*os.File)
	errs, ok2 := a.job.Stderr.(*os.File)
	// One process whose lines need no tags writes where we would.
	raw := [2]*os.File{}
	if ok1 && ok2 && len(a.processes) == 1 && !a.job.Tag && !a.job.Timestamp && a.job.OutputDir == "" {
		raw = [2]*os.File{out, errs}
	}
	var last *Program
	file := "" // of that
	for _, p := range a.processes {
		if !p.host.here {
			continue
		}
		m := crew.Process{Index: p.index, Ranks: p.ranks, Program: p.prog.program(), Raw: raw}
		var err error
		if p.prog != last {
			if file, err = m.Program.Find(); err != nil {
				return err
			}
			last = p.prog
		}
		m.File = file
		if raw[0] != nil {
			p.streams = [2]*stream{}
		}
		m.Output = p.outputs()
		if p.reads {
			if m.Input, m.CloseInput, err = a.input(); err != nil {
				return fmt.Errorf("make the input of %s: %w", p.who(), err)
			}
		}
		if err := a.crew.Add(m); err != nil {
			return err
		}
	}
	return nil
}

// input is what the process gets that reads the job's standard input; made: for it alone.
func (a *Agent) input() (in *os.File, made bool, err error) {
	in = a.job.Stdin
	switch terminal := isTerminal(in); {
	case terminal && !inForeground(in):
		return nil, false, nil // reading would stop us
	case terminal:
		// The process is not in the terminal's foreground group, which is what
		// lets the agent decide who gets an interrupt. So it is given a pipe.
		r, w, err := os.Pipe()
		if err != nil {
			return nil, false, err
		}
		a.typed = w
		return r, true, nil
	}
	return in, false, nil
}

func sameFile(a, b *os.File) bool {
	ia, err1 := a.Stat()
	ib, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}
