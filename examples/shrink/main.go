// Shrink estimates π from random points, and goes on with fewer ranks when processes
// die. It shows what a program does that handles failures itself: find out, tell the
// others, decide together what counts, and go on with those that are left.
//
//	mpivrun -n 4 --survive report bin/shrink
//	kill -9 …        # one of its processes, or two at once
//
// A point hangs on its number alone, so the result is the same to the last digit, whoever dies
// at whatever moment, as long as one rank is left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"

	"github.com/mpiv/mpiv/mpiv"
)

var (
	rounds  = flag.Int("rounds", 200, "how often the ranks put their results together")
	batches = flag.Int("batches", 60, "of points, which the ranks share in each round")
)

const points = 20_000 // of a batch

func main() {
	flag.Parse()
	mpiv.Main(run)
}

func run(ctx context.Context, world *mpiv.Comm) error {
	alive, inside := world, 0
	for round := 0; round < *rounds; {
		more, err := share(ctx, alive, round)
		if err != nil && !lost(err) {
			return err
		}
		if err != nil {
			// Others may wait in the same collective for ranks that have left it.
			if err := alive.Revoke(ctx); err != nil {
				return err
			}
		}
		// The collective may have failed here and not there. Whether it counts is
		// decided by all: flag and error are the same on every rank.
		flag, err := alive.Agree(ctx, counts(err == nil))
		if err != nil && !lost(err) {
			return err
		}
		if flag == yes {
			inside += more
			round++
		}
		if flag == yes && err == nil {
			continue
		}
		if alive, err = alive.Shrink(ctx); err != nil {
			return err
		}
		fmt.Printf("rank %d goes on in round %d, as rank %d of %d\n", world.Rank(), round, alive.Rank(), alive.Size())
	}
	if alive.Rank() == 0 {
		all := *rounds * *batches * points
		fmt.Printf("%d of %d points are inside: π is about %.6f\n", inside, all, 4*float64(inside)/float64(all))
	}
	return nil
}

// share is how many points of a round are inside the circle; each rank looks at its
// share of the batches.
func share(ctx context.Context, c *mpiv.Comm, round int) (int, error) {
	sum := []int{0}
	for b := c.Rank(); b < *batches; b += c.Size() {
		sum[0] += insideOf(round**batches + b)
	}
	err := mpiv.Allreduce(ctx, c, sum, sum, mpiv.Sum)
	return sum[0], err
}

// insideOf is how many points of a batch are.
func insideOf(batch int) (n int) {
	rng := rand.New(rand.NewPCG(uint64(batch), 1))
	for range points {
		if x, y := rng.Float64(), rng.Float64(); x*x+y*y < 1 {
			n++
		}
	}
	return n
}

const yes = 1

func counts(ok bool) uint64 {
	if ok {
		return yes
	}
	return 0
}

// lost tells whether err says that a rank was lost, here or where it was noticed first.
func lost(err error) bool {
	return errors.Is(err, mpiv.ErrProcFailed) || errors.Is(err, mpiv.ErrRevoked)
}
