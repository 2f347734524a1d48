package mpiv

import (
	"context"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/internal/callsite"
)

// A Cart is a Comm whose ranks are the points of a grid, in row-major order:
// the last coordinate counts fastest. MPI-4.0, "Cartesian Topologies".
type Cart struct {
	*Comm
	dims     []int
	periodic []bool
}

// CartCreate makes a grid of the given extents, whose product is at most the
// size of c. Along a periodic dimension the last point is next to the first;
// periodic nil: none is. Ranks of c that the grid does not need get nil, as those outside
// a Group do from Create: they test for it before anything but Free. All
// ranks of c must call it, with the same arguments.
func CartCreate(ctx context.Context, c *Comm, dims []int, periodic []bool) (*Cart, error) {
	s := c.begin(ctx, opCartCreate, -1)
	defer s.done(nil)
	if periodic != nil && len(periodic) != len(dims) {
		return nil, s.wants("len(periodic)", len(periodic), len(dims))
	}
	size := 1
	for i, n := range dims {
		if n < 1 || n > s.c.size/size {
			return nil, s.fail(fmt.Errorf("%w: dimension %d of %v does not fit into %d ranks", ErrDims, i, dims, s.c.size))
		}
		size *= n
	}
	id, err := s.agree()
	if err != nil || c.rank >= size {
		return nil, err
	}
	ranks := make([]int, size)
	for i := range ranks {
		ranks[i] = i
	}
	g, err := c.group.Incl(ranks...)
	if err != nil {
		return nil, err
	}
	return &Cart{c.derive("grid of "+c.Name(), id, g), slices.Clone(dims), slices.Concat(periodic, make([]bool, len(dims)-len(periodic)))}, nil
}

// Free is [Comm.Free]. Of a grid that the rank is not in, it is an error.
func (g *Cart) Free() error {
	if g == nil {
		return (*Comm)(nil).Free()
	}
	return g.Comm.Free()
}

// DimsCreate divides n ranks among that many dimensions, as evenly as can be,
// the larger first. Those of dims that are not 0 are kept; n must be a multiple
// of their product.
func DimsCreate(n int, dims []int) error {
	left, free := n, 0
	for _, d := range dims {
		switch {
		case d == 0:
			free++
		case d < 0 || left%d != 0:
			return &RankError{Op: "DimsCreate", Comm: "a grid", Rank: -1, Peer: -1, Tag: -1, Where: callsite.Here(), Err: fmt.Errorf("%w: %d ranks cannot be divided into %v", ErrDims, n, dims)}
		default:
			left /= d
		}
	}
	if n < 1 || free == 0 && left != 1 {
		return &RankError{Op: "DimsCreate", Comm: "a grid", Rank: -1, Peer: -1, Tag: -1, Where: callsite.Here(), Err: fmt.Errorf("%w: %d ranks cannot be divided into %v", ErrDims, n, dims)}
	}
	found := evenFactors(left, free)
	for i, d := range dims {
		if d == 0 {
			dims[i], found = found[0], found[1:]
		}
	}
	return nil
}

// evenFactors is k factors of n whose greatest is as small as can be, the
// greater first.
func evenFactors(n, k int) []int {
	if k <= 1 {
		return []int{n}[:k]
	}
	var best []int
	for d := 1; d <= n; d++ {
		if n%d != 0 || power(d, k) < n {
			continue
		}
		rest := evenFactors(n/d, k-1)
		if rest[0] <= d {
			best = append([]int{d}, rest...)
			break
		}
	}
	return best
}

// power is d to the k-th, or more than any number of ranks.
func power(d, k int) int {
	p := 1
	for range k {
		if p > 1<<31 {
			return p
		}
		p *= d
	}
	return p
}

// Dims is the extents of the grid.
func (g *Cart) Dims() []int {
	if g == nil {
		panicNoComm("Dims")
	}
	return slices.Clone(g.dims)
}

// Coords is where rank is in the grid.
func (g *Cart) Coords(rank int) ([]int, error) {
	if g == nil {
		return nil, noComm.fail("Coords", -1, -1, ErrComm)
	}
	if uint(rank) >= uint(g.size) {
		return nil, g.fail("Coords", -1, -1, fmt.Errorf("%w: %d, the ranks of %s are 0 to %d", ErrRank, rank, g.called(), g.size-1))
	}
	coords := make([]int, len(g.dims))
	for i := len(g.dims) - 1; i >= 0; i-- {
		coords[i] = rank % g.dims[i]
		rank /= g.dims[i]
	}
	return coords, nil
}

// RankOf is the rank at coords. Outside the grid it is counted around along
// periodic dimensions, and ErrRank along others.
func (g *Cart) RankOf(coords ...int) (int, error) {
	if g == nil {
		return 0, noComm.fail("RankOf", -1, -1, ErrComm)
	}
	if len(coords) != len(g.dims) {
		return 0, g.fail("RankOf", -1, -1, fmt.Errorf("%w: %d coordinates in %d dimensions", ErrDims, len(coords), len(g.dims)))
	}
	rank := g.rankOf(coords)
	if rank == ProcNull {
		return 0, g.fail("RankOf", -1, -1, fmt.Errorf("%w: %v is outside the grid of %v", ErrRank, coords, g.dims))
	}
	return rank, nil
}

func (g *Cart) rankOf(coords []int) int {
	rank := 0
	for i, x := range coords {
		n := g.dims[i]
		if uint(x) >= uint(n) {
			if !g.periodic[i] {
				return ProcNull
			}
			if x %= n; x < 0 {
				x += n
			}
		}
		rank = rank*n + x
	}
	return rank
}

// Shift is whom to receive from and whom to send to, to move data by that many
// points along a dimension: ProcNull beyond the edge of the grid.
func (g *Cart) Shift(dimension, by int) (from, to int, err error) {
	if g == nil {
		return 0, 0, noComm.fail("Shift", -1, -1, ErrComm)
	}
	if uint(dimension) >= uint(len(g.dims)) {
		return 0, 0, g.fail("Shift", -1, -1, fmt.Errorf("%w: %d, the grid has %d dimensions", ErrDims, dimension, len(g.dims)))
	}
	coords, err := g.Coords(g.rank)
	if err != nil {
		return 0, 0, err
	}
	at := coords[dimension]
	if g.periodic[dimension] {
		by %= g.dims[dimension] // at ± by could be no int
	}
	coords[dimension] = at - by
	from = g.rankOf(coords)
	coords[dimension] = at + by
	return from, g.rankOf(coords), nil
}
