//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
)

// A survivor is a job on this machine whose processes are killed. What is known of
// it comes from its events.
type survivor struct {
	cmd            *exec.Cmd
	stdout, stderr *transcript
	pipe           *os.File  // from which its events are read
	heirloom       *heirloom // or who is asked how it stands, again and again
	dir            string
	readers        sync.WaitGroup
	done           chan struct{} // closed when it has ended
	err            error         // how; set before done is closed

	mu      sync.Mutex // guards what follows
	state   events.State
	ready   map[int]bool    // processes that others can reach
	killed  map[int]bool    // processes
	drained map[string]bool // hosts, until they are uncordoned
	past    []events.Event  // but readings
	changed chan struct{}   // closed, and replaced, with each event
}

// startSurvivor starts mpivrun with options and a program, on this machine.
func startSurvivor(ctx context.Context, mpivrun string, options ...string) (s *survivor, err error) {
	cmd := exec.CommandContext(ctx, mpivrun, append([]string{"-q"}, options...)...)
	return follow(cmd, cmd.Start)
}

// follow starts an mpivrun, and reads its events: cmd's arguments have none of
// --events yet.
func follow(cmd *exec.Cmd, start func() error) (s *survivor, err error) {
	s = &survivor{cmd: cmd, stdout: &transcript{}, stderr: &transcript{}, done: make(chan struct{}), changed: make(chan struct{}), ready: map[int]bool{}, killed: map[int]bool{}, drained: map[string]bool{}}
	if s.dir, err = os.MkdirTemp("", "mpivtrials-"); err != nil {
		return nil, err
	}
	name := filepath.Join(s.dir, "events")
	if err = syscall.Mkfifo(name, 0o600); err == nil {
		s.pipe, err = os.OpenFile(name, os.O_RDWR, 0) // for writing, too: opening it waits for nobody then
	}
	if err == nil {
		cmd.Args = slices.Insert(cmd.Args, 1, "--events", name)
		cmd.Stdout, cmd.Stderr = s.stdout, s.stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 10 * time.Second
		err = start()
	}
	if err != nil {
		if s.pipe != nil {
			s.pipe.Close()
		}
		os.RemoveAll(s.dir)
		return nil, err
	}
	s.readers.Go(s.listen)
	go func() {
		defer close(s.done)
		s.err = s.cmd.Wait()
		s.pipe.SetReadDeadline(time.Now().Add(time.Second)) // the last event says that it is the last
		s.readers.Wait()
		s.pipe.Close()
		os.RemoveAll(s.dir)
	}()
	return s, nil
}

// listen reads events until the last.
func (s *survivor) listen() {
	in := bufio.NewReader(s.pipe)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		e, err := events.Parse(line)
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.state.Apply(e)
		if e.Kind == events.ProcessReady {
			s.ready[*e.Process] = true
		}
		if e.Kind != events.ProcessReading && e.Kind != events.LinkPath {
			s.past = append(s.past, e)
		}
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		if e.Kind == events.JobEnded {
			return
		}
	}
}

// Errors of await.
var (
	errOver     = errors.New("the job has ended")
	errPatience = errors.New("it has not come about in time")
)

// end has mpivrun end the job, and waits for that.
func (s *survivor) end() {
	_ = s.cmd.Cancel() // it may be gone
	<-s.done
}

// endNow ends a job that does not end, however that is.
func (s *survivor) endNow() {
	_ = s.cmd.Process.Kill() // it may have ended
}

// await waits until ready, which is called with the lock held, is true.
func (s *survivor) await(ctx context.Context, patience time.Duration, ready func() bool) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		s.mu.Lock()
		ok, changed := ready(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-late.C:
			return errPatience
		case <-ctx.Done():
			return ctx.Err()
		case <-s.done:
			return errOver
		}
	}
}

// pause waits for d.
func (s *survivor) pause(ctx context.Context, d time.Duration) error {
	if err := s.await(ctx, d, func() bool { return false }); !errors.Is(err, errPatience) {
		return err
	}
	return nil
}

// runningLocked tells whether all ranks have begun and none has finished.
func (s *survivor) runningLocked() bool {
	if s.state.Phase != events.PhaseRunning {
		return false
	}
	for _, p := range s.state.Processes {
		if len(p.Finished) > 0 {
			return false
		}
	}
	return true
}

// sparesLocked is the processes that can take a rank.
func (s *survivor) sparesLocked() (free []int) {
	for i, p := range s.state.Processes {
		if len(p.Ranks) == 0 && p.Phase == events.PhaseRunning && s.ready[i] && !s.killed[i] && !s.drained[p.Host] {
			free = append(free, i)
		}
	}
	return free
}

// ofLocked is the process that has a rank; -1: it has been killed.
func (s *survivor) ofLocked(rank int) int {
	return slices.IndexFunc(s.state.Processes, func(p events.Process) bool { return slices.Contains(p.Ranks, rank) && !s.killed[p.Index] })
}

// signalLocked sends sig to a process of the job, which is known to run.
func (s *survivor) signalLocked(process int, sig syscall.Signal) error {
	p := s.state.Processes[process]
	if p.Phase == events.PhaseExited || s.killed[process] || p.PID == 0 {
		return fmt.Errorf("process %d does not run", process)
	}
	s.killed[process] = sig == syscall.SIGKILL
	return syscall.Kill(p.PID, sig)
}

// ask puts a question to the job, as mpivrun does.
func (s *survivor) ask(q agent.Question) (agent.Answer, error) {
	if s.heirloom != nil {
		return s.heirloom.ask(q)
	}
	s.mu.Lock()
	name := s.state.Job.Name
	s.mu.Unlock()
	return agent.Ask(filepath.Join(rundir.Root(), name), q)
}
