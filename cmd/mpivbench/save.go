package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/mpiv"
)

const (
	savePage   = 4096
	saveWork   = 4 << 20         // additions in a step
	savePhase  = 4 * time.Second // a multiple of the time between snapshots
	saveSettle = 2 * time.Second // before a phase without snapshots is measured
)

// save is what snapshots cost a program that writes to so many percent of its pages,
// scattered over its state, in each step: for how long it stands still when a safe point is due; how
// much of the time that is; how much longer a step takes than without; and how much more of
// the processor its process uses, which is the better figure where others use it, too. Phases
// with snapshots and without take turns.
func (o *options) save(ctx context.Context, world *mpiv.Comm, w io.Writer) error {
	var s saved
	state := world.State()
	state.Protect("state", &s.mem)
	if err := state.Restore(ctx); err != nil {
		return err
	}
	if o.agent == "" || !state.First() {
		return &mpiv.ExitError{Code: codeUsage, Err: errors.New("this test runs under mpivrun --spares 1 --survive crashes, and no rank may be moved")}
	}
	if world.Rank() == 0 {
		if err := o.test.printHead(w); err != nil {
			return err
		}
	}
	for _, size := range o.sizes {
		s = saved{mem: make([]byte, size/savePage*savePage), percent: o.dirty, ctx: ctx, state: state}
		if err := s.measure(o.warmup, o.iters); err != nil {
			return err
		}
		if world.Rank() == 0 {
			if err := o.test.printLine(w, size, s.figures(o.iters)); err != nil {
				return err
			}
		}
		if err := mpiv.Barrier(ctx, world); err != nil {
			return err
		}
	}
	return nil
}

// saved is a rank that does the test save.
type saved struct {
	mem           []byte
	percent       int
	steps         int
	sum           uint64
	stood         []int64    // ns, when a safe point was due
	with, without [2]float64 // seconds of a step, summed over the phases: by the clock, and of the processor

	ctx   context.Context
	state *mpiv.State
}

func (s *saved) measure(warmup, phases int) error {
	for i := range s.mem { // so that there is memory
		s.mem[i] = byte(i)
	}
	if err := s.untilDue(2 + warmup); err != nil {
		return err
	}
	s.stood = nil
	for range phases {
		began := s.now()
		if err := s.during(savePhase, true); err != nil {
			return err
		}
		s.add(&s.with, began)
		s.during(saveSettle, false) // without safe points there is no error
		began = s.now()
		s.during(savePhase, false)
		s.add(&s.without, began)
		stood := s.stood // but for the next, which comes late
		if err := s.untilDue(1); err != nil {
			return err
		}
		s.stood = stood
	}
	if len(s.stood) == 0 {
		return fmt.Errorf("no snapshot was taken within %v: let there be one more often (mpivrun --snapshot)", savePhase)
	}
	return nil
}

func (s *saved) figures(phases int) []float64 {
	longer := func(i int) float64 { return 100 * (s.with[i]/s.without[i] - 1) }
	var all int64
	for _, ns := range s.stood {
		all += ns
	}
	return []float64{median(s.stood), 100 * float64(all) / float64(phases) / float64(savePhase), longer(0), longer(1)}
}

// A moment is when so many steps were taken.
type moment struct {
	steps     int
	clock     time.Time
	processor time.Duration // that this process has used
}

func (s *saved) now() moment {
	var use unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &use)
	return moment{s.steps, time.Now(), time.Duration(use.Utime.Nano() + use.Stime.Nano())}
}

// add adds what a step took since began to sum.
func (s *saved) add(sum *[2]float64, began moment) {
	now := s.now()
	n := float64(now.steps - began.steps)
	sum[0] += now.clock.Sub(began.clock).Seconds() / n
	sum[1] += (now.processor - began.processor).Seconds() / n
}

// untilDue takes steps until so many safe points had something to do.
func (s *saved) untilDue(n int) error {
	for n > 0 {
		s.step()
		if s.state.Due() {
			n--
		}
		if err := s.safePoint(); err != nil {
			return err
		}
	}
	return nil
}

// during takes steps for that time, with safe points or without.
func (s *saved) during(d time.Duration, safe bool) error {
	for began := time.Now(); time.Since(began) < d; {
		s.step()
		if safe {
			if err := s.safePoint(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *saved) safePoint() error {
	if !s.state.Due() {
		return nil
	}
	began := time.Now()
	err := s.state.SafePoint(s.ctx)
	s.stood = append(s.stood, int64(time.Since(began)))
	return err
}

// step adds numbers, and writes to some of the pages, always the same: one of so many all
// over the state.
func (s *saved) step() {
	s.steps++
	for i := range uint64(saveWork) {
		s.sum += i ^ s.sum>>1
	}
	pages := len(s.mem) / savePage
	for i := range pages * s.percent / 100 {
		at := i * 100 / s.percent * savePage
		page := s.mem[at : at+savePage]
		for k := 0; k < len(page); k += 64 { // each cache line
			page[k] = byte(s.steps)
		}
	}
}
