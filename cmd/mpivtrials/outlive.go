//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
)

// An heirloom is a job that outlives its mpivrun, on a stage. What is known of it is what its fronts
// show, and what any of its agents answers.
type heirloom struct {
	s      *stage
	dir    string // its hostfile, and the directories of the job on all hosts
	first  *front
	agents map[string]int // PIDs, by host; dead ones too

	mu      sync.Mutex // guards what follows
	answers string     // the socket that answered last
}

// A front is an mpivrun that shows a job.
type front struct {
	cmd            *lab.Cmd
	stdout, stderr transcript
	done           chan struct{} // closed when it has ended
	err            error         // how; set before done is closed
}

const (
	pollEvery   = 50 * time.Millisecond
	ranksStart  = "ranks start"        // the job of a leader that is lost before ends
	votersKnown = "agents from now on" // to which is known what is decided: the leader can be lost
	leadsNow    = "leads the job from now on"
)

var joinedAgent = regexp.MustCompile(`host (\w+): its agent has joined .* PID (\d+),`)

// outlive starts a job that outlives its mpivrun, and waits until it can lose its leader, which is on the first host.
func (s *stage) outlive(ctx context.Context, c cast) (_ *heirloom, err error) {
	launch, err := s.lab.LaunchAgent()
	if err != nil {
		return nil, err
	}
	h := &heirloom{s: s, agents: map[string]int{}}
	if h.dir, err = os.MkdirTemp("", "mpivtrials-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.end()
		}
	}()
	file := filepath.Join(h.dir, "hosts")
	if err := os.WriteFile(file, []byte(s.hostfile(c)), 0o644); err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(c.hosts[0], ":")
	words := slices.Concat([]string{"--outlive", "--verbose", "--hostfile", file, "-n", fmt.Sprint(c.ranks), "--launch-agent", strings.Join(launch, " ")}, c.options, c.program)
	if h.first, err = h.show(ctx, first, words...); err != nil {
		return nil, err
	}
	for _, said := range []string{ranksStart, votersKnown} {
		if _, err := h.first.awaits(ctx, learnPatience, time.Time{}, said); err != nil {
			return nil, fmt.Errorf("the job does not get as far as to outlive its leader: %w; it said: %s", err, h.first.stderr.text())
		}
	}
	for _, m := range joinedAgent.FindAllStringSubmatch(h.first.stderr.text(), -1) {
		h.agents[m[1]], _ = strconv.Atoi(m[2]) // digits
	}
	if len(h.agents) != len(c.hosts) {
		return nil, fmt.Errorf("%d agents of %d hosts have joined: %s", len(h.agents), len(c.hosts), h.first.stderr.text())
	}
	return h, nil
}

// show starts mpivrun on a host. The job has its directories in h.dir.
func (h *heirloom) show(ctx context.Context, host string, words ...string) (*front, error) {
	f := &front{cmd: h.s.lab.Command(ctx, host, filepath.Join(h.s.d.bin, "mpivrun"), words...), done: make(chan struct{})}
	f.cmd.Env = append(f.cmd.Env, "XDG_RUNTIME_DIR="+h.dir)
	f.cmd.Stdout, f.cmd.Stderr, f.cmd.WaitDelay = &f.stdout, &f.stderr, 2*time.Second
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(f.done)
		if f.err = f.cmd.Wait(); errors.Is(f.err, exec.ErrWaitDelay) {
			f.err = nil // an agent that it has started has its output
		}
	}()
	return f, nil
}

// attach shows the job from another host.
func (h *heirloom) attach(ctx context.Context, host string) (*front, error) {
	dir, err := h.directory(host)
	if err != nil {
		return nil, err
	}
	return h.show(ctx, host, "attach", filepath.Base(dir))
}

// directory is that of the job on a host. All hosts have one file system here: whose a directory is
// says its lock.
func (h *heirloom) directory(host string) (string, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.agents[host]))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && filepath.Base(to) == "lock" && strings.HasPrefix(to, filepath.Join(h.dir, "mpiv")+"/") {
			return filepath.Dir(to), nil
		}
	}
	return "", fmt.Errorf("the agent of host %s has no directory", host)
}

// ask puts a question to whichever agent answers.
func (h *heirloom) ask(q agent.Question) (ans agent.Answer, err error) {
	dirs, err := filepath.Glob(filepath.Join(h.dir, "mpiv", "*", "ask.sock"))
	if err != nil {
		return ans, err
	}
	err = errors.New("the job has no directory")
	h.mu.Lock()
	if i := slices.Index(dirs, h.answers); i > 0 {
		dirs[0], dirs[i] = dirs[i], dirs[0]
	}
	h.mu.Unlock()
	for _, d := range dirs {
		if ans, err = agent.Ask(filepath.Dir(d), q); err == nil {
			h.mu.Lock()
			h.answers = d
			h.mu.Unlock()
			return ans, nil
		}
	}
	return ans, err
}

// state is how the job stands; nil: nobody says.
func (h *heirloom) state() *events.State {
	ans, err := h.ask(agent.Question{Op: "ps"})
	if err != nil {
		return nil
	}
	return ans.State()
}

// awaits waits until a line from a time on has all the words in it.
func (f *front) awaits(ctx context.Context, patience time.Duration, from time.Time, words ...string) (spokenLine, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if l, ok := f.stderr.first(from, words...); ok {
			return l, nil
		}
		select {
		case <-tick.C:
		case <-late.C:
			return spokenLine{}, errPatience
		case <-f.done:
			if l, ok := f.stderr.first(from, words...); ok {
				return l, nil
			}
			return spokenLine{}, errors.Join(errOver, f.err)
		case <-ctx.Done():
			return spokenLine{}, ctx.Err()
		}
	}
}

// kill kills the front, and not the job.
func (f *front) kill() {
	_ = f.cmd.Process.Kill() // it may have ended
	<-f.done
}

// end ends the front of the job, and forgets the job: it ends with the stage.
func (h *heirloom) end() {
	if h.first != nil {
		h.first.kill()
	}
	os.RemoveAll(h.dir)
}
