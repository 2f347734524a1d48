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
	saveSettle = 2 * time.Second // before a phase without snapshots is measured
)

// save is what snapshots cost a program that writes to so many percent of its pages,
// scattered over its state, in each step: for how long it stands still for one, and how
// much longer a step takes than without, and how much more of the processor its process
// uses, which is the better figure where others use it, too. Phases with snapshots, from the end of one to
// the end of the second after it, and phases without, of the same time, take turns.
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
			if err := o.test.printLine(w, size, []float64{median(s.stands), s.longer(0), s.longer(1)}); err != nil {
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
	stands        []int64    // ns
	with, without [2]float64 // seconds of a step, summed over the phases: by the clock, and of the processor

	ctx   context.Context
	state *mpiv.State
}

func (s *saved) measure(warmup, phases int) error {
	if err := s.untilSaved(1 + warmup); err != nil {
		return err
	}
	s.stands = nil
	for range phases {
		if err := s.untilSaved(1); err != nil {
			return err
		}
		began := s.now()
		if err := s.untilSaved(2); err != nil {
			return err
		}
		phase := s.now().clock.Sub(began.clock)
		s.add(&s.with, began)
		s.during(saveSettle)
		began = s.now()
		s.during(phase)
		s.add(&s.without, began)
	}
	return nil
}

// longer is by how many percent snapshots make one of the two times of a step longer.
func (s *saved) longer(i int) float64 { return 100 * (s.with[i]/s.without[i] - 1) }

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

// untilSaved takes steps until so many snapshots were taken.
func (s *saved) untilSaved(n int) error {
	for n > 0 {
		s.step()
		if !s.state.Due() {
			continue
		}
		began := time.Now()
		if err := s.state.SafePoint(s.ctx); err != nil {
			return fmt.Errorf("step %d: %w", s.steps, err)
		}
		s.stands = append(s.stands, int64(time.Since(began)))
		n--
	}
	return nil
}

// during takes steps for that time.
func (s *saved) during(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
		s.step()
	}
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
