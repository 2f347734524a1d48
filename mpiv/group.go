package mpiv

import (
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/topology"
)

// Undefined is the rank in a Group of who is not in it, and a color of Split.
const Undefined = -3

// A Group is an ordered set of ranks. Its methods are local, and make new
// Groups; none changes. MPI-4.0, "Group Management".
type Group struct {
	ranks []topology.Rank // in the world; nil: the first size ranks of it
	order []int32         // indexes of ranks, by rank ascending; nil: ranks ascends
	size  int
	self  topology.Rank
}

// groupOf is the Group of ranks, which must differ, and belong to it from now on.
func groupOf(ranks []topology.Rank, self topology.Rank) Group {
	g := Group{ranks: ranks, size: len(ranks), self: self}
	if ranks == nil {
		g.ranks = []topology.Rank{}
	}
	if !slices.IsSorted(ranks) {
		g.order = make([]int32, len(ranks))
		for i := range g.order {
			g.order[i] = int32(i)
		}
		slices.SortFunc(g.order, func(a, b int32) int { return int(ranks[a] - ranks[b]) })
	}
	return g
}

// index is where w is in g; Undefined if it is not.
func (g *Group) index(w topology.Rank) int {
	if g.ranks == nil {
		if uint(w) < uint(g.size) {
			return int(w)
		}
		return Undefined
	}
	if g.order == nil {
		if i, ok := slices.BinarySearch(g.ranks, w); ok {
			return i
		}
		return Undefined
	}
	i, ok := slices.BinarySearchFunc(g.order, w, func(i int32, w topology.Rank) int { return int(g.ranks[i] - w) })
	if !ok {
		return Undefined
	}
	return int(g.order[i])
}

func (g *Group) at(i int) topology.Rank {
	if g.ranks == nil {
		return topology.Rank(i)
	}
	return g.ranks[i]
}

// Group is the ranks of c.
func (c *Comm) Group() Group {
	if c == nil {
		panicNoComm("Group")
	}
	return c.group
}

// Size is the number of ranks in g.
func (g Group) Size() int { return g.size }

// Rank is the number of the calling rank in g; Undefined if it is not in g.
func (g Group) Rank() int { return g.index(g.self) }

// Incl is the given ranks of g, in that order.
func (g Group) Incl(ranks ...int) (Group, error) {
	picked, err := g.pick("Incl", ranks)
	return groupOf(picked, g.self), err
}

// Excl is g without the given ranks.
func (g Group) Excl(ranks ...int) (Group, error) {
	picked, err := g.pick("Excl", ranks)
	if err != nil {
		return Group{self: g.self}, err
	}
	return g.Difference(groupOf(picked, g.self)), nil
}

// A Range is the ranks First, First+Stride, … up to Last at most (or down to
// it, where Stride is negative).
type Range struct{ First, Last, Stride int }

func (r Range) append(ranks []int) ([]int, error) {
	if r.Stride == 0 {
		return nil, fmt.Errorf("%w: the stride of the range from %d to %d is 0", ErrGroup, r.First, r.Last)
	}
	for i := r.First; r.Stride > 0 && i <= r.Last || r.Stride < 0 && i >= r.Last; i += r.Stride {
		ranks = append(ranks, i)
		if left := r.Last - i; r.Stride > 0 && r.Stride > left || r.Stride < 0 && r.Stride < left {
			break // i could be no int
		}
	}
	return ranks, nil
}

// RangeIncl is Incl of ranges.
func (g Group) RangeIncl(ranges ...Range) (Group, error) {
	ranks, err := g.expand("RangeIncl", ranges)
	if err != nil {
		return Group{self: g.self}, err
	}
	return g.Incl(ranks...)
}

// RangeExcl is Excl of ranges.
func (g Group) RangeExcl(ranges ...Range) (Group, error) {
	ranks, err := g.expand("RangeExcl", ranges)
	if err != nil {
		return Group{self: g.self}, err
	}
	return g.Excl(ranks...)
}

func (g Group) expand(op string, ranges []Range) (ranks []int, err error) {
	for _, r := range ranges {
		if uint(r.First) >= uint(g.size) || r.Last < -1 || r.Last > g.size {
			return nil, g.fail(op, fmt.Errorf("%w: the range from %d to %d of %d ranks", ErrRank, r.First, r.Last, g.size))
		}
		if ranks, err = r.append(ranks); err != nil {
			return nil, g.fail(op, err)
		}
	}
	return ranks, nil
}

// pick is ranks of g as ranks of the world.
func (g Group) pick(op string, ranks []int) ([]topology.Rank, error) {
	picked := make([]topology.Rank, len(ranks))
	seen := make(map[int]bool, len(ranks))
	for i, r := range ranks {
		if uint(r) >= uint(g.size) {
			return nil, g.fail(op, fmt.Errorf("%w: %d, the ranks of the group are 0 to %d", ErrRank, r, g.size-1))
		}
		if seen[r] {
			return nil, g.fail(op, fmt.Errorf("%w: rank %d comes twice", ErrGroup, r))
		}
		seen[r] = true
		picked[i] = g.at(r)
	}
	return picked, nil
}

func (g Group) fail(op string, err error) error {
	return &RankError{Op: op, Comm: "a group", Rank: g.Rank(), Peer: -1, Tag: -1, Where: callsite.Here(), Err: err}
}

// Union is the ranks of g, and then those of h that are not in g.
func (g Group) Union(h Group) Group {
	self := g.self
	if g.Size() == 0 { // the zero Group does not know whose it is
		self = h.self
	}
	return groupOf(append(g.keep(g, true), h.keep(g, false)...), self)
}

// Intersection is the ranks of g that are in h.
func (g Group) Intersection(h Group) Group { return groupOf(g.keep(h, true), g.self) }

// Difference is the ranks of g that are not in h.
func (g Group) Difference(h Group) Group { return groupOf(g.keep(h, false), g.self) }

// keep is those ranks of g that are in h, or are not.
func (g Group) keep(h Group, in bool) (to []topology.Rank) {
	for i := range g.size {
		if w := g.at(i); (h.index(w) >= 0) == in {
			to = append(to, w)
		}
	}
	return to
}

// Translate is the numbers in h of ranks of g: Undefined for those that are not
// in h. ProcNull stays.
func (g Group) Translate(ranks []int, h Group) ([]int, error) {
	out := make([]int, len(ranks))
	for i, r := range ranks {
		switch {
		case r == ProcNull:
			out[i] = ProcNull
		case uint(r) >= uint(g.size):
			return nil, g.fail("Translate", fmt.Errorf("%w: %d, the ranks of the group are 0 to %d", ErrRank, r, g.size-1))
		default:
			out[i] = h.index(g.at(r))
		}
	}
	return out, nil
}

// A Comparison says how two Groups or Comms relate.
type Comparison int

const (
	Ident     Comparison = iota // the same; of Comms: one and the same
	Congruent                   // of Comms: the same ranks in the same order
	Similar                     // the same ranks in another order
	Unequal
)

func (c Comparison) String() string {
	return [...]string{"ident", "congruent", "similar", "unequal"}[c]
}

// Compare is Ident, Similar or Unequal.
func (g Group) Compare(h Group) Comparison {
	if g.size != h.size {
		return Unequal
	}
	result := Ident
	for i := range g.size {
		switch at := h.index(g.at(i)); {
		case at == Undefined:
			return Unequal
		case at != i:
			result = Similar
		}
	}
	return result
}

// Compare tells how c and d relate; it is local.
func (c *Comm) Compare(d *Comm) Comparison {
	if c == nil || d == nil {
		panicNoComm("Compare")
	}
	if c == d || c.context == d.context && c.box == d.box {
		return Ident
	}
	if r := c.group.Compare(d.group); r != Ident {
		return r
	}
	return Congruent
}
