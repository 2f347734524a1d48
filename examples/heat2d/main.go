// Heat2d finds how warm a square plate becomes whose upper edge is hot and whose
// other edges are cold. Each rank has some of its rows, and gets those that border on
// them from the ranks above and below, with a Cartesian grid, Sendrecv and Allreduce.
// The result is the same to the last bit for any number of ranks: a point comes from
// the same four numbers anywhere, and maxima and integer sums are always exact.
//
//	mpivrun -n 4 bin/heat2d
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"

	"github.com/mpiv/mpiv/mpiv"
)

var tolerance = flag.Float64("tolerance", 1e-4, "by how much no point may change in the last step")

func main() {
	flag.Parse()
	mpiv.Main(run)
}

func run(ctx context.Context, world *mpiv.Comm) error {
	steps, checksum, err := solve(ctx, world, 200, *tolerance)
	if err == nil && world.Rank() == 0 {
		fmt.Printf("200 x 200 points: %d steps, checksum %016x\n", steps, checksum)
	}
	return err
}

// solve makes each of n x n points the mean of its neighbours until none changes much.
func solve(ctx context.Context, world *mpiv.Comm, n int, tolerance float64) (steps int, checksum uint64, err error) {
	if n < world.Size() {
		return 0, 0, fmt.Errorf("%d rows are too few for %d ranks", n, world.Size())
	}
	grid, err := mpiv.CartCreate(ctx, world, []int{world.Size()}, nil)
	if err != nil {
		return 0, 0, err
	}
	s, change, sum := newSlab(n, world.Rank(), world.Size()), []float64{math.Inf(1)}, []uint64{0}
	state := world.State()
	state.Protect("steps", &steps)
	state.Protect("points", &s.now)
	err = state.Restore(ctx)
	for ; err == nil && change[0] > tolerance; steps++ {
		if err = state.SafePoint(ctx); err == nil {
			err = s.exchange(ctx, grid)
		}
		if err == nil {
			err = mpiv.Allreduce(ctx, world, []float64{s.step()}, change, mpiv.Max)
		}
	}
	if err == nil {
		err = mpiv.Allreduce(ctx, world, []uint64{s.checksum()}, sum, mpiv.Sum)
	}
	return steps, sum[0], err
}

// A slab is one rank's rows of points, with a border of one point on every side.
type slab struct {
	top, rows, width int // top: the first row's number in the plate; width: with the border
	now, next        []float64
}

func newSlab(n, rank, ranks int) *slab {
	s := &slab{top: rank * n / ranks, width: n + 2}
	s.rows = (rank+1)*n/ranks - s.top
	s.now = make([]float64, (s.rows+2)*s.width)
	for i := 0; rank == 0 && i < s.width; i++ {
		s.now[i] = 1 // the hot edge
	}
	s.next = slices.Clone(s.now)
	return s
}

// row is the points of a row, counted from the border above.
func (s *slab) row(i int) []float64 { return s.now[i*s.width : (i+1)*s.width] }

// exchange sends the outer rows to the neighbours, and gets the border from them. Beyond
// the edge of the plate is ProcNull: nothing goes or comes.
func (s *slab) exchange(ctx context.Context, grid *mpiv.Cart) error {
	above, below, err := grid.Shift(0, 1)
	if err == nil {
		_, err = mpiv.Sendrecv(ctx, grid.Comm, s.row(s.rows), below, 1, s.row(0), above, 1)
	}
	if err == nil {
		_, err = mpiv.Sendrecv(ctx, grid.Comm, s.row(1), above, 2, s.row(s.rows+1), below, 2)
	}
	return err
}

// step computes every point anew; it returns the largest change.
func (s *slab) step() (change float64) {
	width := s.width
	for i := width; i < (s.rows+1)*width; i += width {
		for k := i + 1; k < i+width-1; k++ {
			s.next[k] = (s.now[k-width] + s.now[k+width] + s.now[k-1] + s.now[k+1]) / 4
			change = max(change, math.Abs(s.next[k]-s.now[k]))
		}
	}
	s.now, s.next = s.next, s.now
	return change
}

// checksum adds up the bits of the points, each times a number for its place.
func (s *slab) checksum() (sum uint64) {
	for i := range s.rows {
		for j, v := range s.row(i + 1)[1 : s.width-1] {
			sum += uint64(2*((s.top+i)*(s.width-2)+j)+1) * math.Float64bits(v)
		}
	}
	return sum
}
