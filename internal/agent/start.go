package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
)

// A starter starts processes, in threads that live until the last of them has
// ended: when the thread that forked a process dies, so does the process, by
// the signal it has asked for. That is what ends it when the agent is killed.
type starter struct {
	wg sync.WaitGroup

	mu     sync.Mutex // guards what follows
	more   sync.Cond
	work   []func()
	closed bool
}

func newStarter(threads int) *starter {
	s := new(starter)
	s.more.L = &s.mu
	for range threads {
		s.wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread may be bound to some cores, so it ends with us
			for f := s.next(); f != nil; f = s.next() {
				f()
			}
		})
	}
	return s
}

// do has a thread call f. It does not wait: who is told of what f does may be who calls this.
func (s *starter) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work = append(s.work, f)
	s.more.Signal()
}

// next waits for something to do; nil: there will be nothing.
func (s *starter) next() (f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.work) == 0 && !s.closed {
		s.more.Wait()
	}
	if len(s.work) > 0 {
		f, s.work = s.work[0], s.work[1:]
	}
	return f
}

func (s *starter) close() {
	s.mu.Lock()
	s.closed = true
	s.more.Broadcast()
	s.mu.Unlock()
	s.wg.Wait()
}

// fork starts m, in a starter's thread.
func (c *crew) fork(m *child, cores unix.CPUSet) error {
	if c.job.bind {
		// What the thread may run on is inherited.
		if err := unix.SchedSetaffinity(0, &cores); err != nil {
			return fmt.Errorf("bind to cores: %w", err)
		}
	}
	env := mergeEnv(os.Environ(), m.prog.Env, []string{
		control.EnvSocket + "=" + filepath.Join(c.dir.path, processName),
		control.EnvProcess + "=" + strconv.Itoa(m.index),
	})
	attr := &os.ProcAttr{
		Dir:   m.prog.Dir,
		Env:   env,
		Files: m.files,
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	c.forking.RLock()
	defer c.forking.RUnlock()
	proc, err := os.StartProcess(m.path, append([]string{m.prog.Path}, m.prog.Args...), attr)
	if err != nil {
		return startError(m.prog, err)
	}
	m.mu.Lock()
	m.proc = proc
	m.mu.Unlock()
	return nil
}

// mergeEnv is all of envs; of two values for one name the later counts.
func mergeEnv(envs ...[]string) []string {
	var merged []string
	at := map[string]int{}
	for _, kv := range slices.Concat(envs...) {
		name, _, _ := strings.Cut(kv, "=")
		if i, twice := at[name]; twice {
			merged[i] = kv
			continue
		}
		at[name] = len(merged)
		merged = append(merged, kv)
	}
	return merged
}

// startError is what a user can do about err.
func startError(prog *Program, err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC) && strings.HasSuffix(prog.Path, ".go"):
		return isSource(prog.Path)
	case errors.Is(err, syscall.ENOEXEC):
		return &ExitError{CodeNotExecutable, fmt.Errorf("program %q is not a binary for this machine, nor a script with #! and an interpreter in its first line", prog.Path)}
	case errors.Is(err, syscall.ENOENT) && prog.Dir != "" && !isDir(prog.Dir):
		return &ExitError{CodeNotFound, fmt.Errorf("working directory %s does not exist", prog.Dir)}
	case errors.Is(err, syscall.ENOENT):
		return &ExitError{CodeNotFound, fmt.Errorf("program %q: the interpreter or loader that it names does not exist", prog.Path)}
	case errors.Is(err, syscall.EACCES):
		return &ExitError{CodeNotExecutable, fmt.Errorf("program %q cannot be executed by this user (permission denied)", prog.Path)}
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("start %q: no more processes are allowed (see ulimit -u); --ranks-per-process needs fewer", prog.Path)
	}
	return fmt.Errorf("start %q: %w", prog.Path, err)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
