// Heat2d finds how warm a square plate becomes whose upper edge is hot and whose
// other edges are cold, with a Cartesian grid, Sendrecv of borders and Allreduce.
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
	dims := []int{0, 0}
	if err := mpiv.DimsCreate(world.Size(), dims); err != nil {
		return 0, 0, err
	}
	grid, err := mpiv.CartCreate(ctx, world, dims, nil)
	if err != nil {
		return 0, 0, err
	}
	if n < dims[0] {
		return 0, 0, fmt.Errorf("%d points along a side are too few for %d ranks", n, dims[0])
	}
	p := newPlate(n, dims, grid.Rank()/dims[1], grid.Rank()%dims[1])
	change, sum := []float64{math.Inf(1)}, []uint64{0}
	state := world.State()
	state.Protect("steps", &steps)
	state.Protect("change", &change)
	state.Protect("points", &p.now)
	state.Protect("next", &p.next)
	err = state.Restore(ctx)
	for ; err == nil && change[0] > tolerance; steps++ {
		if err = state.SafePoint(ctx); err == nil {
			err = p.exchange(ctx, grid)
		}
		if err == nil {
			err = mpiv.Allreduce(ctx, world, []float64{p.step()}, change, mpiv.Max)
		}
	}
	if err == nil {
		err = mpiv.Allreduce(ctx, world, []uint64{p.checksum(n)}, sum, mpiv.Sum)
	}
	return steps, sum[0], err
}

// A plate is one rank's rectangle of rows x cols points, with the border around it.
type plate struct {
	top, left, rows, cols int // top and left: where it begins in the whole plate
	now, next             []float64
}

func newPlate(n int, dims []int, row, col int) *plate {
	p := &plate{top: row * n / dims[0], left: col * n / dims[1]}
	p.rows, p.cols = (row+1)*n/dims[0]-p.top, (col+1)*n/dims[1]-p.left
	p.now, p.next = make([]float64, (p.rows+2)*(p.cols+2)), make([]float64, (p.rows+2)*(p.cols+2))
	for j := 0; row == 0 && j < p.cols+2; j++ {
		p.now[j], p.next[j] = 1, 1 // the hot edge
	}
	return p
}

// exchange sends each outer row and column to the neighbour on that side, and gets
// the border opposite. Beyond the edge is ProcNull: nothing goes or comes (Count 0).
func (p *plate) exchange(ctx context.Context, grid *mpiv.Cart) error {
	width := p.cols + 2
	for _, x := range []struct{ dim, by, send, recv, count, stride int }{
		{0, +1, p.rows * width, 0, width, 1},           // the last row down, the border from above
		{0, -1, width, (p.rows + 1) * width, width, 1}, // and so on
		{1, +1, p.cols, 0, p.rows + 2, width},
		{1, -1, 1, p.cols + 1, p.rows + 2, width},
	} {
		from, to, err := grid.Shift(x.dim, x.by)
		if err != nil {
			return err
		}
		side := make([]float64, x.count)
		for i := range side {
			side[i] = p.now[x.send+i*x.stride]
		}
		s, err := mpiv.SendrecvReplace(ctx, grid.Comm, side, to, 1, from, 1)
		if err != nil {
			return err
		}
		for i := range s.Count {
			p.now[x.recv+i*x.stride] = side[i]
		}
	}
	return nil
}

// step computes every point anew; it returns the largest change.
func (p *plate) step() float64 {
	width, change := p.cols+2, 0.
	for i := width; i < (p.rows+1)*width; i += width {
		for k := i + 1; k <= i+p.cols; k++ {
			p.next[k] = (p.now[k-width] + p.now[k+width] + p.now[k-1] + p.now[k+1]) / 4
			change = max(change, math.Abs(p.next[k]-p.now[k]))
		}
	}
	p.now, p.next = p.next, p.now
	return change
}

// checksum adds up the bits of the points, each times a number for its place.
func (p *plate) checksum(n int) (sum uint64) {
	for i := range p.rows {
		for j := range p.cols {
			sum += uint64(2*((p.top+i)*n+p.left+j)+1) * math.Float64bits(p.now[(i+1)*(p.cols+2)+j+1])
		}
	}
	return sum
}
