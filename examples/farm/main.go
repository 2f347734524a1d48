// Farm finds which number below a bound takes the most steps to come to 1 by Collatz'
// rule (halve an even one, else three times it and one more). Rank 0 hands out ranges
// of numbers to whoever is free, with receives from AnySource, since some ranges take
// longer than others. Who does which range differs from run to run; what is printed
// does not.
//
//	mpivrun -n 4 bin/farm
//	mpivrun -n 4 --spares 1 bin/farm -below 20000000     # and kill -9 one of its processes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/mpiv/mpiv/mpiv"
)

var below = flag.Int64("below", 3_000_000, "the `bound`: above 1")

const (
	width = 1000 // numbers in a range

	tagReport = 1 // to rank 0: what came of a range; who sends it is free
	tagRange  = 2 // from rank 0: the first number of the next
)

// A best is what is known of some numbers. Of several that take as many steps the
// smallest counts. The zero value is of no numbers.
type best struct{ Number, Steps, Total int64 }

func (b *best) add(o best) {
	if o.Number > 0 && (b.Number == 0 || o.Steps > b.Steps || o.Steps == b.Steps && o.Number < b.Number) {
		b.Number, b.Steps = o.Number, o.Steps
	}
	b.Total += o.Total
}

func main() {
	flag.Parse()
	mpiv.Main(run)
}

func run(ctx context.Context, world *mpiv.Comm) error {
	if *below < 2 {
		return errors.New("-below must be above 1")
	}
	if world.Rank() > 0 {
		return work(ctx, world, *below)
	}
	found, err := handOut(ctx, world, *below)
	if err == nil {
		fmt.Printf("below %d: %d takes the most steps, %d; all together take %d\n", *below, found.Number, found.Steps, found.Total)
	}
	return err
}

// handOut is what rank 0 does: it answers each report with the next range, or with
// nothing when there is none left.
func handOut(ctx context.Context, world *mpiv.Comm, below int64) (found best, err error) {
	next, workers := int64(1), world.Size()-1
	state := world.State()
	state.Protect("found", &found)
	state.Protect("next", &next)
	state.Protect("workers", &workers) // who still is to be told that there is none left
	err = state.Restore(ctx)
	for ; err == nil && workers == 0 && next < below; next += width { // alone
		if err = state.SafePoint(ctx); err == nil {
			found.add(search(next, below))
		}
	}
	for err == nil && workers > 0 {
		if err = state.SafePoint(ctx); err == nil {
			err = answer(ctx, world, below, &found, &next, &workers)
		}
	}
	return found, err
}

func answer(ctx context.Context, world *mpiv.Comm, below int64, found *best, next *int64, workers *int) error {
	report := make([]best, 1)
	s, err := mpiv.Recv(ctx, world, report, mpiv.AnySource, tagReport)
	if err != nil {
		return err
	}
	found.add(report[0])
	if *next >= below {
		*workers--
		return mpiv.Send(ctx, world, []int64{}, s.Source, tagRange)
	}
	err = mpiv.Send(ctx, world, []int64{*next}, s.Source, tagRange)
	*next += width
	return err
}

// work is what the others do.
func work(ctx context.Context, world *mpiv.Comm, below int64) error {
	report, first := make([]best, 1), make([]int64, 1)
	state := world.State()
	state.Protect("report", &report)
	err := state.Restore(ctx)
	for err == nil {
		if err = state.SafePoint(ctx); err != nil {
			break
		}
		if err = mpiv.Send(ctx, world, report, 0, tagReport); err != nil {
			break
		}
		var s mpiv.Status
		if s, err = mpiv.Recv(ctx, world, first, 0, tagRange); err != nil || s.Count == 0 {
			break
		}
		report[0] = search(first[0], below)
	}
	return err
}

// search is about the numbers of one range.
func search(first, below int64) (b best) {
	for n := first; n < min(first+width, below); n++ {
		steps := steps(n)
		b.add(best{n, steps, steps})
	}
	return b
}

func steps(n int64) (s int64) {
	for ; n > 1; s++ {
		if n%2 == 0 {
			n /= 2
		} else {
			n = 3*n + 1
		}
	}
	return s
}
