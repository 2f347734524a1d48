//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/events"
)

// A stage is the lab of the experiments M: hosts X, Y, Z and W, from where it is attacked
// A, "Ethernet" of 100 Mbit/s to all and a SAN of 1 Gbit/s between Y and Z.
type stage struct {
	d   *desk
	lab *lab.Lab
}

func (d *desk) stage() (*stage, error) {
	l, err := lab.New(lab.Options{Queue: d.queue, Congestion: d.congestion})
	if err != nil {
		return nil, err
	}
	return &stage{d, l}, nil
}

func (s *stage) close() { s.lab.Close() }

// A cast is a job on a stage.
type cast struct {
	hosts    []string // "X:2": slots of hosts, in the order in which ranks take them; mpivrun runs on the first
	networks []string // that the job may use; none means lan alone
	ranks    int
	options  []string // of mpivrun
	program  []string
}

// A play is a job that runs on a stage.
type play struct {
	*survivor
	dir     string
	untimed bool
}

// play starts the job, and waits until its ranks begin.
func (s *stage) play(ctx context.Context, c cast) (*play, error) {
	agent, err := s.lab.LaunchAgent()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mpivtrials-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte(s.hostfile(c)), 0o644); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	first, _, _ := strings.Cut(c.hosts[0], ":")
	words := slices.Concat([]string{"--verbose", "--hostfile", file, "-n", fmt.Sprint(c.ranks), "--launch-agent", strings.Join(agent, " ")}, s.d.transportOption(), c.options, c.program)
	cmd := s.lab.Command(ctx, first, filepath.Join(s.d.bin, "mpivrun"), words...)
	job, err := follow(cmd.Cmd, cmd.Start)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	p := &play{job, dir, s.d.untimed}
	if err := job.await(ctx, patience, func() bool { return job.state.Phase == events.PhaseRunning }); err != nil {
		p.end()
		return nil, fmt.Errorf("the job did not start: %w; it said: %s", err, job.stderr.text())
	}
	return p, nil
}

// end ends the job. Twice is harmless.
func (p *play) end() {
	p.survivor.end()
	os.RemoveAll(p.dir)
}

// hostfile is c's hosts with their slots, and their addresses on its networks.
func (s *stage) hostfile(c cast) string {
	networks := c.networks
	if networks == nil {
		networks = []string{"lan"}
	}
	on := map[string]string{}
	for line := range strings.Lines(s.lab.Hostfile(1)) {
		words := strings.Fields(line)
		kept := ""
		for _, w := range words[2:] {
			if name, _, _ := strings.Cut(w, "="); slices.Contains(networks, name) {
				kept += " " + w
			}
		}
		on[words[0]] = kept
	}
	var b strings.Builder
	for _, h := range c.hosts {
		name, slots, _ := strings.Cut(h, ":")
		fmt.Fprintf(&b, "%s slots=%s%s\n", name, slots, on[name])
	}
	return b.String()
}

// events is what happened so far, but for readings.
func (s *survivor) events() []events.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.past // they are only ever appended
}

// moved is when ranks were told to go elsewhere, and when they went on there, from a time
// on.
func (s *survivor) moved(from time.Time) (left, arrived []events.Event) {
	for _, e := range s.events() {
		switch {
		case e.Time.Before(from):
		case e.Kind == events.RankMoved:
			left = append(left, e)
		case e.Kind == events.RankArrived:
			arrived = append(arrived, e)
		}
	}
	return left, arrived
}

// decisions is those from a time on that had something done, as they were first told.
func (s *survivor) decisions(from time.Time) (all []events.Event) {
	said := map[uint64]bool{}
	for _, e := range s.events() {
		if e.Kind == events.Decided && len(e.Decision.Plans) > 0 && !said[e.Decision.ID] {
			said[e.Decision.ID] = true
			if !e.Time.Before(from) {
				all = append(all, e)
			}
		}
	}
	return all
}

// hold waits, and fails if the job or ctx ends before.
func (p *play) hold(ctx context.Context, d time.Duration) error {
	err := p.pause(ctx, d)
	if errors.Is(err, errOver) {
		return fmt.Errorf("the job ended too early: %w; it said: %s", errors.Join(p.err, err), p.stderr.text())
	}
	return err
}

// ran is when all ranks began, and when the last of them had finished.
func (s *survivor) ran() (began, ended time.Time, ok bool) {
	for _, e := range s.events() {
		switch e.Kind {
		case events.AllReady:
			began = e.Time
		case events.RankFinished:
			ended = e.Time
		}
	}
	return began, ended, !began.IsZero() && !ended.IsZero()
}

// homeOf is the process that has the rank of m6; -1: none has, or two have.
func homeOf(all []events.Process) int {
	home := -1
	for i, p := range all {
		if slices.Contains(p.Ranks, m6Moves) && p.Phase != events.PhaseExited {
			if home >= 0 {
				return -1
			}
			home = i
		}
	}
	return home
}

// endTime is how long processes may take to end with their job.
const endTime = 3 * time.Second

// leftOver is how many processes are left on the hosts, when those had time to end.
func (s *stage) leftOver(hosts ...string) (left int, err error) {
	return s.leftAfter(endTime, hosts...)
}

// leftAfter is leftOver where they have so much time.
func (s *stage) leftAfter(patience time.Duration, hosts ...string) (left int, err error) {
	if len(hosts) == 0 {
		hosts = s.lab.Hosts()
	}
	for end := time.Now().Add(patience); ; {
		left = 0
		for _, h := range hosts {
			pids, err := s.lab.Pids(h)
			if err != nil {
				return 0, err
			}
			left += len(pids)
		}
		if left == 0 || time.Now().After(end) {
			return left, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// sleep waits for d, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
