package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"github.com/mpiv/mpiv/mpiv"
)

// large is the size beyond which there are fewer iterations.
const large = 8192

// A run is a test at one size, on one rank.
type run struct {
	world           *mpiv.Comm
	size            int // bytes of one message, or of one rank's share
	iters, warmup   int
	window, threads int
	state           *mpiv.State
	safe            int            // a safe point every so many iterations; 0: none
	out, in         []byte         // send and receive buffer, at least as long as the test needs
	reqs            []mpiv.Request // 2 * window
}

// bench runs the test of o; rank 0 writes the figures to w. ready is how long
// this process took to become part of the job.
func (o *options) bench(ctx context.Context, world *mpiv.Comm, ready time.Duration, w io.Writer) error {
	t := o.test
	if world.Rank() != 0 {
		w = io.Discard
	}
	if err := t.worlds.check(world.Size()); err != nil {
		return &mpiv.ExitError{Code: codeUsage, Err: err}
	}
	switch t.name {
	case "move":
		return o.move(ctx, world, w)
	case "save":
		return o.save(ctx, world, w)
	}
	if err := t.printHead(w); err != nil {
		return err
	}
	if t.run != nil {
		return o.measure(ctx, world, w)
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "# Joining the job took %.3f ms on rank 0\n", ready.Seconds()*1e3)
	return err
}

// measure runs the test at each size and prints as it goes.
func (o *options) measure(ctx context.Context, world *mpiv.Comm, w io.Writer) error {
	t, sizes := o.test, o.sizes
	if !t.sized() {
		sizes = []int{0}
	}
	r := o.newRun(world, sizes)
	if r.safe > 0 {
		if err := r.state.Restore(ctx); err != nil {
			return err
		}
		if !r.state.First() {
			return &mpiv.ExitError{Code: codeUsage, Err: errors.New("with -k no rank may be moved or die: of a test that begins again there are no figures")}
		}
	}
	if err := warmUp(ctx, world); err != nil {
		return err
	}
	for _, r.size = range sizes {
		divisor := 1
		if r.size > large {
			divisor = t.divisor
		}
		r.iters, r.warmup = max(1, o.iters/divisor), o.warmup/divisor
		if err := mpiv.Barrier(ctx, world); err != nil {
			return err
		}
		figures, err := t.run(ctx, r)
		if err != nil {
			return err
		}
		if err := t.printLine(w, r.size, figures); err != nil {
			return err
		}
	}
	return nil
}

// next ends an iteration.
func (r *run) next(ctx context.Context, i int) error {
	if r.safe > 0 && i%r.safe == 0 {
		return r.state.SafePoint(ctx)
	}
	return nil
}

// warmUp lets some time go by in barriers, from when all are there: a runtime, and the processor, take
// some milliseconds until they are as fast as they are later. Rank 0 tells the
// others when it has been enough.
func warmUp(ctx context.Context, world *mpiv.Comm) error {
	if err := mpiv.Barrier(ctx, world); err != nil {
		return err
	}
	end := time.Now().Add(60 * time.Millisecond)
	for more := []bool{true}; more[0]; {
		for range 10 {
			if err := mpiv.Barrier(ctx, world); err != nil {
				return err
			}
		}
		if world.Rank() == 0 {
			more[0] = time.Now().Before(end)
		}
		if err := mpiv.Bcast(ctx, world, more, 0); err != nil {
			return err
		}
	}
	return nil
}

// newRun has buffers for the largest of sizes, and for the acknowledgements of
// bw. All of them is written once, so that their pages are there.
func (o *options) newRun(world *mpiv.Comm, sizes []int) *run {
	n := ackBytes
	for _, size := range sizes {
		n = max(n, size)
	}
	if o.test.perRank {
		n *= world.Size()
	}
	r := &run{world: world, window: o.window, threads: o.threads, state: world.State(), safe: o.safe, out: aligned(n), in: aligned(n), reqs: make([]mpiv.Request, 2*o.window)}
	in, out := floats(r.in), floats(r.out)
	for i := range out {
		out[i], in[i] = 1, 0
	}
	return r
}

// aligned is n bytes that start at a page.
func aligned(n int) []byte {
	page := os.Getpagesize()
	b := make([]byte, n+page)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	skip := -at & uintptr(page-1)
	return b[skip:][:n:n]
}

// floats is the memory of b, which is aligned, but for an odd end.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
