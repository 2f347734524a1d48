package mpiv

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/mpiv/mpiv/internal/engine"
)

// reduced is what a reduction of the contributions of ranks lo to hi-1 gives.
func reduced[T any](lo, hi, n int, of func(rank, i int) T, op func(a, b T) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = of(lo, i)
		for r := lo + 1; r < hi; r++ {
			out[i] = op(out[i], of(r, i))
		}
	}
	return out
}

// checkReductions compares every reduction of n elements with the naive one.
func checkReductions[T comparable](ctx context.Context, c *Comm, n int, op Op[T], of func(rank, i int) T, naive func(a, b T) T) error {
	size, rank := c.Size(), c.Rank()
	in := make([]T, n)
	for i := range in {
		in[i] = of(rank, i)
	}
	kept := slices.Clone(in)
	out := make([]T, n)
	var zero [1]T
	clearOut := func() { copy(out, slices.Repeat(zero[:], n)) }
	all := reduced(0, size, n, of, naive)
	err := both(ctx, c,
		func() error { clearOut(); return Allreduce(ctx, c, in, out, op) },
		func() Request { clearOut(); return Iallreduce(ctx, c, in, out, op) },
		func() error { return wantEqual("Allreduce", out, all) })
	if err != nil {
		return err
	}
	copy(out, in)
	if err := Allreduce(ctx, c, out, out, op); err != nil {
		return err
	}
	if err := wantEqual("Allreduce in place", out, all); err != nil {
		return err
	}
	for _, root := range roots(size) {
		check := func() error {
			if rank != root {
				return nil
			}
			return wantEqual(fmt.Sprintf("Reduce to %d", root), out, all)
		}
		err := both(ctx, c,
			func() error { clearOut(); return Reduce(ctx, c, in, out, op, root) },
			func() Request { clearOut(); return Ireduce(ctx, c, in, out, op, root) },
			check)
		if err != nil {
			return err
		}
		copy(out, in)
		if err := Reduce(ctx, c, out, out, op, root); err != nil {
			return err
		}
		if err := check(); err != nil {
			return fmt.Errorf("in place: %w", err)
		}
	}
	upTo := reduced(0, rank+1, n, of, naive)
	err = both(ctx, c,
		func() error { clearOut(); return Scan(ctx, c, in, out, op) },
		func() Request { clearOut(); return Iscan(ctx, c, in, out, op) },
		func() error { return wantEqual("Scan", out, upTo) })
	if err != nil {
		return err
	}
	copy(out, in)
	if err := Scan(ctx, c, out, out, op); err != nil {
		return err
	}
	if err := wantEqual("Scan in place", out, upTo); err != nil {
		return err
	}
	before := out
	if rank > 0 {
		before = reduced(0, rank, n, of, naive)
	}
	err = both(ctx, c,
		func() error { return Exscan(ctx, c, in, out, op) },
		func() Request { return Iexscan(ctx, c, in, out, op) },
		func() error { return wantEqual("Exscan", out, before) })
	if err != nil {
		return err
	}
	if err := checkReduceScatter(ctx, c, n, op, of, naive); err != nil {
		return err
	}
	return wantEqual("in, afterwards,", in, kept)
}

func checkReduceScatter[T comparable](ctx context.Context, c *Comm, n int, op Op[T], of func(rank, i int) T, naive func(a, b T) T) error {
	size, rank := c.Size(), c.Rank()
	n = min(n, 20_000/size)
	all := reduced(0, size, n*size, of, naive)
	in := make([]T, n*size)
	fill := func() {
		for i := range in {
			in[i] = of(rank, i)
		}
	}
	fill()
	out := make([]T, n)
	want := all[rank*n : (rank+1)*n]
	err := both(ctx, c,
		func() error { return ReduceScatterBlock(ctx, c, in, out, op) },
		func() Request { return IreduceScatterBlock(ctx, c, in, out, op) },
		func() error { return wantEqual("ReduceScatterBlock", out, want) })
	if err != nil {
		return err
	}
	if err := ReduceScatterBlock(ctx, c, in, in[:n], op); err != nil {
		return err
	}
	if err := wantEqual("ReduceScatterBlock in place", in[:n], want); err != nil {
		return err
	}
	fill()
	counts, _, _ := testCounts(size, n)
	at, total := 0, 0
	for r, k := range counts {
		if r < rank {
			at += k
		}
		total += k
	}
	out = make([]T, counts[rank])
	return both(ctx, c,
		func() error { return ReduceScatter(ctx, c, in[:total], out, counts, op) },
		func() Request { return IreduceScatter(ctx, c, in[:total], out, counts, op) },
		func() error { return wantEqual("ReduceScatter", out, all[at:at+counts[rank]]) })
}

func TestReductionsOfNumbers(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		if err := checkReductions(ctx, c, n, Sum, value[float64], func(a, b float64) float64 { return a + b }); err != nil {
			return fmt.Errorf("sum of float64: %w", err)
		}
		return nil
	})
}

// affine is a map x → a*x + b modulo 2^32; composition does not commute.
type affine struct{ A, B uint32 }

func (f affine) then(g affine) affine { return affine{f.A * g.A, f.B*g.A + g.B} }

func affineOf(rank, i int) affine { return affine{uint32(2*rank + 3), uint32(rank + i)} }

var compose = NewOp("compose", func(in, inout []affine) {
	for i := range in {
		inout[i] = in[i].then(inout[i])
	}
}, false)

func TestReductionsThatDoNotCommuteKeepRankOrder(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		return checkReductions(ctx, c, min(n, 5000), compose, affineOf, affine.then)
	})
}

func testOps[T Real](t *testing.T) {
	t.Run(fmt.Sprintf("%T", *new(T)), func(t *testing.T) {
		runWorld(t, 3, func(ctx context.Context, c *Comm) error {
			for _, n := range []int{1, 37, 3000} {
				for _, x := range []struct {
					name  string
					op    Op[T]
					naive func(a, b T) T
				}{
					{"Sum", Sum[T], func(a, b T) T { return a + b }},
					{"Prod", Prod[T], func(a, b T) T { return a * b }},
					{"Min", Min[T], func(a, b T) T { return min(a, b) }},
					{"Max", Max[T], func(a, b T) T { return max(a, b) }},
				} {
					if err := checkReductions(ctx, c, n, x.op, value[T], x.naive); err != nil {
						return fmt.Errorf("%s, length %d: %w", x.name, n, err)
					}
				}
				locOf := func(rank, i int) Loc[T] { return Loc[T]{value[T](rank, i), int64(100 - rank)} }
				if err := checkReductions(ctx, c, n, MinLoc[T], locOf, func(a, b Loc[T]) Loc[T] {
					return slices.MinFunc([]Loc[T]{a, b}, func(a, b Loc[T]) int {
						return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Index, b.Index))
					})
				}); err != nil {
					return fmt.Errorf("MinLoc, length %d: %w", n, err)
				}
				if err := checkReductions(ctx, c, n, MaxLoc[T], locOf, func(a, b Loc[T]) Loc[T] {
					return slices.MinFunc([]Loc[T]{a, b}, func(a, b Loc[T]) int {
						return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Index, b.Index))
					})
				}); err != nil {
					return fmt.Errorf("MaxLoc, length %d: %w", n, err)
				}
			}
			return nil
		})
	})
}

func testBits[T Integer](t *testing.T) {
	t.Run(fmt.Sprintf("%T", *new(T)), func(t *testing.T) {
		truth := func(b bool) T {
			if b {
				return 1
			}
			return 0
		}
		runWorld(t, 3, func(ctx context.Context, c *Comm) error {
			for _, n := range []int{1, 37, 3000} {
				for _, x := range []struct {
					name  string
					op    Op[T]
					naive func(a, b T) T
				}{
					{"LAnd", LAnd[T], func(a, b T) T { return truth(a != 0 && b != 0) }},
					{"LOr", LOr[T], func(a, b T) T { return truth(a != 0 || b != 0) }},
					{"LXor", LXor[T], func(a, b T) T { return truth((a != 0) != (b != 0)) }},
					{"BAnd", BAnd[T], func(a, b T) T { return a & b }},
					{"BOr", BOr[T], func(a, b T) T { return a | b }},
					{"BXor", BXor[T], func(a, b T) T { return a ^ b }},
				} {
					out, in := make([]T, n), make([]T, n)
					of := func(rank, i int) T { return T((rank + 1) * (i + 5) % 7) }
					for i := range in {
						in[i] = of(c.Rank(), i)
					}
					if err := Allreduce(ctx, c, in, out, x.op); err != nil {
						return err
					}
					if err := wantEqual(x.name, out, reduced(0, c.Size(), n, of, x.naive)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

type celsius float32

func TestOps(t *testing.T) {
	testOps[int](t)
	testOps[int8](t)
	testOps[int16](t)
	testOps[int32](t)
	testOps[int64](t)
	testOps[uint](t)
	testOps[uint8](t)
	testOps[uint16](t)
	testOps[uint32](t)
	testOps[uint64](t)
	testOps[float32](t)
	testOps[float64](t)
	testOps[celsius](t)
	testBits[int](t)
	testBits[int8](t)
	testBits[int16](t)
	testBits[int32](t)
	testBits[int64](t)
	testBits[uint8](t)
	testBits[uint16](t)
	testBits[uint32](t)
	testBits[uint64](t)
}

func TestOpsOfComplexAndBool(t *testing.T) {
	runWorld(t, 4, func(ctx context.Context, c *Comm) error {
		in := []complex128{complex(float64(c.Rank()), 1), 1i}
		out := make([]complex128, 2)
		if err := Allreduce(ctx, c, in, out, Sum); err != nil {
			return err
		}
		if err := wantEqual("sum", out, []complex128{6 + 4i, 4i}); err != nil {
			return err
		}
		if err := Allreduce(ctx, c, in, out, Prod); err != nil {
			return err
		}
		if err := wantEqual("product", out, []complex128{1i * (1 + 1i) * (2 + 1i) * (3 + 1i), 1}); err != nil {
			return err
		}
		b, got := []bool{c.Rank() == 2, true}, make([]bool, 2)
		if err := Allreduce(ctx, c, b, got, LAnd); err != nil {
			return err
		}
		if err := wantEqual("and", got, []bool{false, true}); err != nil {
			return err
		}
		if err := Allreduce(ctx, c, b, got, LXor); err != nil {
			return err
		}
		return wantEqual("xor", got, []bool{true, false})
	})
}

func TestMinLocOfNaN(t *testing.T) {
	runWorld(t, 5, func(ctx context.Context, c *Comm) error {
		in := []Loc[float64]{{float64(c.Rank()), int64(c.Rank())}}
		if c.Rank() == 2 || c.Rank() == 3 {
			in[0].Value = math.NaN()
		}
		out := make([]Loc[float64], 1)
		for _, op := range []Op[Loc[float64]]{MinLoc[float64], MaxLoc[float64]} {
			if err := Allreduce(ctx, c, in, out, op); err != nil {
				return err
			}
			if out[0].Index != 2 {
				return fmt.Errorf("index of a NaN is %d, want that of the first, 2", out[0].Index)
			}
		}
		return nil
	})
}

// unruly is numbers whose sum depends on the order.
func unruly(rank, n int) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = math.Ldexp(math.Sin(float64(rank*n+i)), (rank*5+i)%40)
	}
	return s
}

func TestSumsHaveTheSameBitsWhereverRanksAre(t *testing.T) {
	for _, layouts := range [][][]int{
		{{4}, {1, 1, 1, 1}, {2, 2}, {3, 1}, {1, 3}},
		{{7}, {3, 4}, {1, 5, 1}},
	} {
		size := 0
		for _, n := range layouts[0] {
			size += n
		}
		for _, n := range []int{1, 100, 40_000} {
			var want [][]uint64
			for i, layout := range append(layouts, layouts...) {
				got := make([][]uint64, size)
				sums := func(ctx context.Context, c *Comm) error {
					in, out := unruly(c.Rank(), n), make([]float64, n)
					for root := range size {
						if err := Reduce(ctx, c, in, out, Sum, root); err != nil {
							return err
						}
						if c.Rank() == root {
							got[root] = appendBits(got[root], out)
						}
					}
					if err := Allreduce(ctx, c, in, out, Sum); err != nil {
						return err
					}
					if again := appendBits(nil, out); !slices.Equal(got[c.Rank()], again) {
						return fmt.Errorf("Reduce and Allreduce of %d differ in their bits", n)
					}
					if err := Scan(ctx, c, in, out, Sum); err != nil {
						return err
					}
					got[c.Rank()] = appendBits(got[c.Rank()], out)
					block := out[:n/size]
					if err := ReduceScatterBlock(ctx, c, in[:n/size*size], block, Sum); err != nil {
						return err
					}
					got[c.Rank()] = appendBits(got[c.Rank()], block)
					return nil
				}
				switch {
				case len(layout) == 1:
					runWorld(t, size, sums)
				case i < len(layouts):
					runProcessesAs(t, engine.Config{Crowded: true}, layout, sums)
				default:
					runProcessesAs(t, engine.Config{Crowded: true, Shared: true}, layout, sums)
				}
				if want == nil {
					want = got
				}
				for r := range got {
					if !slices.Equal(got[r], want[r]) {
						t.Errorf("length %d: rank %d of %v has other bits than of %v", n, r, layout, layouts[0])
					}
				}
			}
			for r := range want {
				if !slices.Equal(want[r][:n], want[0][:n]) {
					t.Errorf("length %d: Reduce to %d has other bits than to 0", n, r)
				}
			}
		}
	}
}

// Short and long data take different ways, in which elements are grouped alike.
func TestSumsHaveTheSameBitsWhateverTheLength(t *testing.T) {
	for _, size := range []int{2, 3, 4, 5, 6, 7, 8, 9, 16} {
		runWorld(t, size, func(ctx context.Context, c *Comm) error {
			const short = 5
			for _, n := range []int{1001, 10_000, 300_000} {
				in, out, few := unruly(c.Rank(), n), make([]float64, n), make([]float64, short)
				if err := Allreduce(ctx, c, in[:short], few, Sum); err != nil {
					return err
				}
				want := appendBits(nil, few)
				check := func(call string) error {
					if got := appendBits(nil, out[:short]); !slices.Equal(got, want) {
						return fmt.Errorf("%s of %d on %d ranks: bits %x, of %d elements %x", call, n, size, got, short, want)
					}
					return nil
				}
				if err := Allreduce(ctx, c, in, out, Sum); err != nil {
					return err
				}
				if err := check("Allreduce"); err != nil {
					return err
				}
				copy(out, in)
				if err := Allreduce(ctx, c, out, out, Sum); err != nil {
					return err
				}
				if err := check("Allreduce in place"); err != nil {
					return err
				}
				if err := Reduce(ctx, c, in, out, Sum, size-1); err != nil {
					return err
				}
				if c.Rank() == size-1 {
					if err := check("Reduce"); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
}

func appendBits(bits []uint64, s []float64) []uint64 {
	for _, x := range s {
		bits = append(bits, math.Float64bits(x))
	}
	return bits
}
