package main

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/mpiv/mpiv/mpiv"
)

// A line is x → A·x + B. Their composition is associative, and does not commute.
type line struct{ A, B uint64 }

var compose = mpiv.NewOp("compose", func(in, inout []line) {
	for i, f := range in {
		g := inout[i]
		inout[i] = line{f.A * g.A, f.B*g.A + g.B}
	}
}, false)

// collect does collectives, all at once, and sends beside them.
func collect(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	var under []mpiv.Request
	var outs []func()
	for i := range 1 + r.IntN(4) {
		q, out := collective(ctx, w, c, r)
		if r.IntN(3) == 0 {
			_, done, err := q.Test()
			must(err)
			if w.chance(0); done {
				w.chance(1)
			}
		}
		if own := rand.New(rand.NewPCG(r.Uint64(), 0)); own.IntN(3) == 0 {
			exchange(ctx, w, c, tag+50+i, own)
		}
		under, outs = append(under, q), append(outs, out)
	}
	end(ctx, w, under, r, func(i int, _ mpiv.Status) { outs[i]() })
	objects(ctx, w, c, r)
}

// parts draws a part for each rank.
func parts(n int, r *rand.Rand) (counts []int, all int) {
	for range n {
		counts = append(counts, few(r))
		all += counts[len(counts)-1]
	}
	return counts, all
}

// collective starts or does one; out folds what came of it.
func collective(ctx context.Context, w *walk, c *mpiv.Comm, r *rand.Rand) (q mpiv.Request, out func()) {
	n, me, l, root, now, kind := c.Size(), c.Rank(), size(r), r.IntN(c.Size()), r.IntN(2) == 0, r.IntN(17)
	if l*n > 400_000 {
		l /= n
	}
	counts, sum := parts(n, r)
	in, got := make([]uint64, l), make([]uint64, l)
	for i := range in {
		in[i] = mix(w.Sum, uint64(i))
	}
	many := func() []uint64 { // as in, for all
		m := make([]uint64, l*n)
		for i := range m {
			m[i] = mix(w.Sum, uint64(i))
		}
		return m
	}
	out = func() {
		h := uint64(len(got))
		for _, v := range got {
			h = mix(h, v)
		}
		w.fold(h)
	}
	ints := []mpiv.Op[uint64]{mpiv.Sum[uint64], mpiv.BXor[uint64], mpiv.Max[uint64], mpiv.Min[uint64], mpiv.Prod[uint64], mpiv.BAnd[uint64], mpiv.BOr[uint64]}[r.IntN(7)]
	switch kind {
	case 0:
		if now {
			must(mpiv.Barrier(ctx, c))
		} else {
			q = mpiv.Ibarrier(ctx, c)
		}
	case 1:
		if got = in; now {
			must(mpiv.Bcast(ctx, c, got, root))
		} else {
			q = mpiv.Ibcast(ctx, c, got, root)
		}
	case 2:
		if now {
			must(mpiv.Allreduce(ctx, c, in, got, ints))
		} else {
			q = mpiv.Iallreduce(ctx, c, in, got, ints)
		}
	case 3:
		if now {
			must(mpiv.Reduce(ctx, c, in, got, ints, root))
		} else {
			q = mpiv.Ireduce(ctx, c, in, got, ints, root)
		}
	case 4:
		if got = make([]uint64, l*n); now {
			must(mpiv.Gather(ctx, c, in, got, root))
		} else {
			q = mpiv.Igather(ctx, c, in, got, root)
		}
	case 5:
		if got = make([]uint64, l*n); now {
			must(mpiv.Allgather(ctx, c, in, got))
		} else {
			q = mpiv.Iallgather(ctx, c, in, got)
		}
	case 6:
		if now {
			must(mpiv.Scatter(ctx, c, many(), got, root))
		} else {
			q = mpiv.Iscatter(ctx, c, many(), got, root)
		}
	case 7:
		if got = make([]uint64, l*n); now {
			must(mpiv.Alltoall(ctx, c, many(), got))
		} else {
			q = mpiv.Ialltoall(ctx, c, many(), got)
		}
	case 8:
		if now {
			must(mpiv.Scan(ctx, c, in, got, ints))
		} else {
			q = mpiv.Iscan(ctx, c, in, got, ints)
		}
	case 9:
		if now {
			must(mpiv.Exscan(ctx, c, in, got, ints))
		} else {
			q = mpiv.Iexscan(ctx, c, in, got, ints)
		}
	case 10:
		if now {
			must(mpiv.ReduceScatterBlock(ctx, c, many(), got, ints))
		} else {
			q = mpiv.IreduceScatterBlock(ctx, c, many(), got, ints)
		}
	case 11:
		l = sum
		n = 1
		in, got = many(), make([]uint64, counts[me])
		if now {
			must(mpiv.ReduceScatter(ctx, c, in, got, counts, ints))
		} else {
			q = mpiv.IreduceScatter(ctx, c, in, got, counts, ints)
		}
	case 12:
		in, got = in[:0], make([]uint64, sum)
		for i := range counts[me] {
			in = append(in, mix(w.Sum, uint64(i)))
		}
		if now {
			must(mpiv.Allgatherv(ctx, c, in, got, counts, nil))
		} else {
			q = mpiv.Iallgatherv(ctx, c, in, got, counts, nil)
		}
	case 13:
		all := make([]uint64, sum)
		for i := range all {
			all[i] = mix(w.Sum, uint64(i))
		}
		part, back := make([]uint64, counts[me]), make([]uint64, sum)
		must(mpiv.Scatterv(ctx, c, all, counts, nil, part, root))
		if got = back; now {
			must(mpiv.Gatherv(ctx, c, part, back, counts, nil, root))
		} else {
			q = mpiv.Igatherv(ctx, c, part, back, counts, nil, root)
		}
	case 14: // what goes from a to b is as long as counts[a^b]
		from := make([]int, n)
		for i := range from {
			from[i] = counts[(i+me)%n]
		}
		all, back := make([]uint64, sum), make([]uint64, sum)
		for i := range all {
			all[i] = mix(w.Sum, uint64(i))
		}
		if got = back; now {
			must(mpiv.Alltoallv(ctx, c, all, from, nil, back, from, nil))
		} else {
			q = mpiv.Ialltoallv(ctx, c, all, from, nil, back, from, nil)
		}
	case 15: // the bits must be the same
		x, y := make([]float64, l), make([]float64, l)
		for i := range x {
			x[i] = float64(in[i]%1_000_003) / 7
		}
		if now {
			must(mpiv.Allreduce(ctx, c, x, y, mpiv.Sum))
		} else {
			q = mpiv.Iallreduce(ctx, c, x, y, mpiv.Sum)
		}
		out = func() {
			for _, v := range y {
				w.fold(math.Float64bits(v))
			}
		}
	default:
		x, y := make([]line, l), make([]line, l)
		for i := range x {
			x[i] = line{in[i], ^in[i]}
		}
		if now {
			must(mpiv.Allreduce(ctx, c, x, y, compose))
		} else {
			q = mpiv.Iscan(ctx, c, x, y, compose)
		}
		out = func() {
			for _, v := range y {
				w.fold(v.A, v.B)
			}
		}
	}
	return q, out
}

// passing makes a communicator that lives for a moment.
func passing(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	var d *mpiv.Comm
	switch n := c.Size(); r.IntN(4) {
	case 0:
		d = must2(mpiv.Dup(ctx, c))
	case 1:
		d = must2(mpiv.Split(ctx, c, c.Rank()%2, int(mix(uint64(c.Rank()), 0)%5)))
	case 2:
		if d = must2(mpiv.Create(ctx, c, must2(c.Group().Incl(r.Perm(n)[:1+r.IntN(n)]...)))); d == nil {
			return
		}
	default:
		g := must2(c.Group().Incl(r.Perm(n)[:1+r.IntN(n)]...))
		if g.Rank() < 0 {
			return
		}
		d = must2(mpiv.CreateGroup(ctx, c, g, tag))
	}
	first := r.Uint64()
	for i := range 1 + r.IntN(2) {
		own := rand.New(rand.NewPCG(first, uint64(i)))
		[]op{exchange, storm, collect, persist, tooLate}[own.IntN(5)](ctx, w, d, tag+10*i, own)
	}
	must(d.Free())
}
