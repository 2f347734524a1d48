// Pi computes π as the area under 4/(1+x²) between 0 and 1, cut into slices that
// the ranks share. It shows the two collectives that most programs begin with:
// Bcast, to tell all ranks something, and Reduce, to put their results together.
//
//	mpivrun -n 4 bin/pi             # ten million slices
//	mpivrun -n 4 bin/pi 1000
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/mpiv/mpiv/mpiv"
)

func main() { mpiv.Main(run) }

func run(ctx context.Context, world *mpiv.Comm) error {
	slices := []int64{10_000_000}
	if world.Rank() == 0 && len(os.Args) > 1 {
		n, err := parseSlices(os.Args[1:])
		if err != nil {
			return &mpiv.ExitError{Code: 2, Err: err} // ends the job on all ranks
		}
		slices[0] = n
	}
	if err := mpiv.Bcast(ctx, world, slices, 0); err != nil {
		return err
	}
	pi, err := integrate(ctx, world, slices[0])
	if err != nil || world.Rank() != 0 {
		return err
	}
	_, err = fmt.Printf("π is about %.15f, which is off by %.1e\n", pi, math.Abs(pi-math.Pi))
	return err
}

func parseSlices(args []string) (int64, error) {
	if len(args) > 1 {
		return 0, errors.New("usage: pi [SLICES]")
	}
	n, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is no number of slices", args[0])
	}
	return n, nil
}

// integrate is the area, by the midpoint rule, on rank 0; on the others it is 0.
// Its last bits depend on the number of ranks, because sums of rounded numbers
// depend on where one begins; they do not depend on where the ranks run.
func integrate(ctx context.Context, world *mpiv.Comm, slices int64) (float64, error) {
	width := 1 / float64(slices)
	part, sum := []float64{0}, []float64{0}
	for i := int64(world.Rank()); i < slices; i += int64(world.Size()) {
		x := (float64(i) + 0.5) * width
		part[0] += 4 / (1 + x*x)
	}
	part[0] *= width
	err := mpiv.Reduce(ctx, world, part, sum, mpiv.Sum, 0)
	return sum[0], err
}
