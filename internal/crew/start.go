package crew

import (
	"fmt"
	"os"
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
func (c *Crew) fork(m *child, cores unix.CPUSet) error {
	if c.job.Bind {
		// What the thread may run on is inherited.
		if err := unix.SchedSetaffinity(0, &cores); err != nil {
			return fmt.Errorf("bind to cores: %w", err)
		}
	}
	env := mergeEnv(os.Environ(), m.Program.Env, []string{
		control.EnvSocket + "=" + c.socket(),
		control.EnvProcess + "=" + strconv.Itoa(m.Index),
	})
	attr := &os.ProcAttr{
		Dir:   m.Program.Dir,
		Env:   env,
		Files: m.files,
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	c.forking.RLock()
	defer c.forking.RUnlock()
	proc, err := os.StartProcess(m.File, append([]string{m.Program.Path}, m.Program.Args...), attr)
	if err != nil {
		return startError(m.Program, err)
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
