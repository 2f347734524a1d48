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
	width               = 1000 // numbers in a range
	tagReport, tagRange = 1, 2
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
		return &mpiv.ExitError{Code: 2, Err: errors.New("-below must be above 1")} // as for an option that there is not
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

// A job is what rank 0 knows.
type job struct {
	Found   best
	Next    int64 // the first number that nobody has been given
	Workers int   // that are still to be told that there is none left
}

// handOut is what rank 0 does.
func handOut(ctx context.Context, world *mpiv.Comm, below int64) (best, error) {
	j, state := job{Next: 1, Workers: world.Size() - 1}, world.State()
	state.Protect("job", &j)
	err := state.Restore(ctx)
	for err == nil && (j.Workers > 0 || j.Next < below) {
		if err = state.SafePoint(ctx); err == nil {
			err = j.next(ctx, world, below)
		}
	}
	return j.Found, err
}

// next gives the next range to whoever reports, or nothing when there is none left. Alone,
// rank 0 searches itself.
func (j *job) next(ctx context.Context, world *mpiv.Comm, below int64) error {
	first, report := j.Next, make([]best, 1)
	j.Next += width
	if world.Size() == 1 {
		j.Found.add(search(first, below))
		return nil
	}
	s, err := mpiv.Recv(ctx, world, report, mpiv.AnySource, tagReport)
	if err != nil {
		return err
	}
	j.Found.add(report[0])
	if first >= below {
		j.Workers--
		return mpiv.Send(ctx, world, []int64{}, s.Source, tagRange)
	}
	return mpiv.Send(ctx, world, []int64{first}, s.Source, tagRange)
}

// work is what the others do.
func work(ctx context.Context, world *mpiv.Comm, below int64) error {
	report, first, state := make([]best, 1), make([]int64, 1), world.State()
	state.Protect("report", &report)
	err := state.Restore(ctx)
	for err == nil {
		if err = state.SafePoint(ctx); err != nil {
			break
		}
		var s mpiv.Status
		if s, err = mpiv.Sendrecv(ctx, world, report, 0, tagReport, first, 0, tagRange); s.Count == 0 {
			break
		}
		report[0] = search(first[0], below)
	}
	return err
}

// search is about the numbers of one range.
func search(first, below int64) (b best) {
	for n := first; n < min(first+width, below); n++ {
		steps := int64(0)
		for m := n; m > 1; steps++ {
			if m%2 == 0 {
				m /= 2
			} else {
				m = 3*m + 1
			}
		}
		b.add(best{n, steps, steps})
	}
	return b
}
