//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/leader"
)

const verdictMost = 1000 // ms, until somebody who is silent is given up

// A silencing makes the victim, or its process, silent without killing it, and lets it come back.
type silencing struct {
	name    string
	away    func(s *stage, p *play, pid int) error
	back    func(s *stage, p *play, pid int) error
	awayFor time.Duration
}

var silencings = []silencing{
	{"its process is stopped",
		func(_ *stage, _ *play, pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) },
		func(_ *stage, _ *play, pid int) error {
			if err := syscall.Kill(pid, syscall.SIGCONT); !errors.Is(err, syscall.ESRCH) {
				return err
			}
			return nil
		}, 3 * time.Second},
	{"all its processes are stopped",
		func(s *stage, _ *play, _ int) error { return s.lab.Signal(victim, syscall.SIGSTOP) },
		func(s *stage, _ *play, _ int) error { return s.lab.Signal(victim, syscall.SIGCONT) }, 3 * time.Second},
	{"it gets a hundredth of a core",
		func(s *stage, _ *play, _ int) error { return s.lab.LimitCPU(victim, 0.01) },
		func(s *stage, _ *play, _ int) error { return s.lab.LimitCPU(victim, 0) }, 6 * time.Second},
	{"its cable is pulled",
		func(s *stage, _ *play, _ int) error { return s.lab.Cut(victim, "lan") },
		func(s *stage, _ *play, _ int) error { return s.lab.Heal(victim, "lan") }, 3 * time.Second},
}

// expected is what a program prints that runs in peace, on this machine.
func (d *desk) expected(ctx context.Context, program []string) (string, error) {
	s, err := startSurvivor(ctx, filepath.Join(d.bin, "mpivrun"), append([]string{"-n", fmt.Sprint(surviveRanks), "--oversubscribe"}, program...)...)
	if err != nil {
		return "", err
	}
	<-s.done
	if s.err != nil || s.stdout.whole() == "" {
		return "", fmt.Errorf("%s in peace: %w; it said: %s", strings.Join(program, " "), errors.Join(s.err, errors.New("want an output")), s.stderr.text())
	}
	return s.stdout.whole(), nil
}

// m7 silences a host, or a process, in several ways: its rank must go on elsewhere, and what comes back
// must be refused.
func m7(ctx context.Context, d *desk) error {
	want, err := d.expected(ctx, d.steady(0))
	if err != nil {
		return err
	}
	all := silencings
	if d.short {
		all = []silencing{all[0], all[2]} // without silence of the host's agent
	}
	var rows [][]string
	for _, way := range all {
		row, err := d.silence(ctx, way, want)
		if errors.Is(err, lab.ErrUnavailable) {
			d.note("%s: not tried: %v", way.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		rows = append(rows, row)
	}
	if err := d.writeCSV([]string{"what", "verdict_ms", "goes_on_ms", "left_over", "same_output"}, rows); err != nil {
		return err
	}
	names, heights := []string{}, []float64{}
	for _, r := range rows {
		var ms float64
		fmt.Sscan(r[2], &ms)
		if !math.IsInf(ms, 0) {
			names, heights = append(names, r[0]), append(heights, ms)
		}
	}
	return d.plotBars("a rank whose host or process falls silent goes on elsewhere", "ms", names, heights)
}

func (d *desk) silence(ctx context.Context, way silencing, want string) ([]string, error) {
	s, err := d.stage()
	if err != nil {
		return nil, err
	}
	defer s.close()
	const rank = 1
	p, err := s.play(ctx, cast{hosts: []string{"Y:1", victim + ":1", "Z:1", "W:1"}, ranks: 4, options: survival("--snapshot", "0.5"), program: d.steady(stepLasts)})
	if err != nil {
		return nil, err
	}
	defer p.end()
	if err := p.hold(ctx, 1500*time.Millisecond); err != nil {
		return nil, err
	}
	p.mu.Lock()
	process := p.ofLocked(rank)
	pid := p.state.Processes[process].PID
	p.mu.Unlock()
	began := time.Now()
	if err := way.away(s, p, pid); err != nil {
		return nil, err
	}
	verdict, goesOn := never, never
	_ = p.await(ctx, way.awayFor, func() bool { return goesOn != never || p.goneLocked(rank, began, &verdict, &goesOn) })
	if err := p.pause(ctx, way.awayFor-time.Since(began)); err != nil && !over(err) {
		return nil, err
	}
	if err := way.back(s, p, pid); err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-time.After(surviveTime):
		return nil, fmt.Errorf("the job does not end; mpivrun said: %s", p.stderr.text())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	if goesOn == never { // it may have taken longer
		p.goneLocked(rank, began, &verdict, &goesOn)
	}
	p.mu.Unlock()
	left, err := s.leftOver(victim)
	if err != nil {
		return nil, err
	}
	same := p.err == nil && p.stdout.whole() == want
	if !same {
		d.note("%s: mpivrun ended with %v and printed %q, not %q; it said: %s", way.name, p.err, p.stdout.whole(), want, p.stderr.text())
	}
	d.claim(claim{what: way.name + ": verdict after", measured: verdict, unit: "ms", paper: "never: the victim must answer", bar: verdictMost, pace: true})
	d.claim(claim{what: way.name + ": the rank goes on after", measured: goesOn, unit: "ms", bar: verdictMost + goesOnBar, pace: true})
	d.claim(claim{what: way.name + ": runs with another output", measured: truth(!same)})
	d.claim(claim{what: way.name + ": processes of the job that are left there", measured: float64(left)})
	return []string{way.name, fmt.Sprintf("%.0f", verdict), fmt.Sprintf("%.0f", goesOn), fmt.Sprint(left), fmt.Sprint(same)}, nil
}

// goneLocked fills in after how many milliseconds it was decided that a rank goes elsewhere, and after how many it
// went on; true when both are known. Of what is dead nobody decides: it is given up.
func (s *survivor) goneLocked(rank int, began time.Time, verdict, goesOn *float64) bool {
	for _, e := range s.past {
		if e.Kind == events.Decided && !e.Time.Before(began) && slices.ContainsFunc(e.Decision.Plans, func(p leader.Planned) bool { return strings.Contains(p.What, fmt.Sprintf("rank %d ", rank)) }) {
			*verdict = min(*verdict, milliseconds(e.Time.Sub(began)))
		}
		if e.Rank == nil || *e.Rank != rank || e.Time.Before(began) {
			continue
		}
		switch e.Kind {
		case events.RankMoved:
			*verdict = min(*verdict, milliseconds(e.Time.Sub(began)))
		case events.RankArrived:
			*goesOn = min(*goesOn, milliseconds(e.Time.Sub(began)))
			return true
		}
	}
	return false
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
