package mpiv

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
)

// testSizes are all up to 9, so that every remainder of a power of two occurs,
// and some more; with -short a few, with and without a remainder.
func testSizes() []int {
	if testing.Short() {
		return []int{1, 2, 3, 4, 7, 8}
	}
	return []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33}
}

// testLengths are fewer for more ranks, so that the tests do not take long.
func testLengths(size int) []int {
	switch {
	case size <= 4 && !raceEnabled:
		return []int{0, 1, 3, 1000, 100_000}
	case size <= 4 || size <= 9 && !raceEnabled:
		return []int{0, 1, 3, 1000, 10_000}
	}
	return []int{0, 3, 1500}
}

// value is the i-th element that a rank contributes; small, so that sums and
// products of a type do not depend on the order.
func value[T Real](rank, i int) T { return T((rank*7 + i*3) % 5) }

func contribution[T Real](rank, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = value[T](rank, i)
	}
	return s
}

// forAll runs a check for all sizes and lengths, and with some of them among processes.
func forAll(t *testing.T, check func(ctx context.Context, c *Comm, n int) error) {
	with := func(lengths []int) func(ctx context.Context, c *Comm) error {
		return func(ctx context.Context, c *Comm) error {
			for _, n := range lengths {
				if err := check(ctx, c, n); err != nil {
					return fmt.Errorf("size %d, length %d: %w", c.Size(), n, err)
				}
			}
			return nil
		}
	}
	for _, size := range testSizes() {
		runWorld(t, size, with(testLengths(size)))
	}
	for _, layout := range [][]int{{1, 1, 1}, {2, 1, 3}, {4, 4, 1}} {
		runProcesses(t, layout, with([]int{0, 3, 2000, 20_000}))
	}
}

func wantEqual[T comparable](what string, got, want []T) error {
	if slices.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s has length %d, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s[%d] = %v, want %v", what, i, got[i], want[i])
		}
	}
	return nil
}

// roots of a world to be tried.
func roots(size int) []int {
	if size <= 5 {
		return []int{0, 1, 2, 3, 4}[:size]
	}
	return []int{0, size / 2, size - 1}
}

// both runs a collective blocking and not blocking.
func both(ctx context.Context, c *Comm, blocking func() error, begin func() Request, check func() error) error {
	if err := blocking(); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	r := begin()
	if _, err := r.Wait(ctx); err != nil {
		return fmt.Errorf("not blocking: %w", err)
	}
	if err := check(); err != nil {
		return fmt.Errorf("not blocking: %w", err)
	}
	return nil
}

func TestBcast(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		for _, root := range roots(c.Size()) {
			want := contribution[float64](root, n)
			data := make([]float64, n)
			fill := func() {
				clear(data)
				if c.Rank() == root {
					copy(data, want)
				}
			}
			err := both(ctx, c,
				func() error { fill(); return Bcast(ctx, c, data, root) },
				func() Request { fill(); return Ibcast(ctx, c, data, root) },
				func() error { return wantEqual("data", data, want) })
			if err != nil {
				return fmt.Errorf("root %d: %w", root, err)
			}
		}
		return nil
	})
}

// counts are different for each rank, some of them 0.
func testCounts(size, n int) (counts, displs []int, total int) {
	counts, displs = make([]int, size), make([]int, size)
	at := 0
	for i := range counts {
		counts[i] = n * (i % 3) / 2
		displs[size-1-i] = -1
	}
	for i := size - 1; i >= 0; i-- { // in another order, with gaps
		displs[i] = at
		at += counts[i] + i%2
	}
	return counts, displs, at
}

func TestGatherAndScatter(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		size, rank := c.Size(), c.Rank()
		n = min(n, 20_000)
		var all []float64
		for r := range size {
			all = append(all, contribution[float64](r, n)...)
		}
		mine := contribution[float64](rank, n)
		for _, root := range roots(size) {
			var out []float64
			if rank == root {
				out = make([]float64, n*size)
			}
			err := both(ctx, c,
				func() error { clear(out); return Gather(ctx, c, mine, out, root) },
				func() Request { clear(out); return Igather(ctx, c, mine, out, root) },
				func() error {
					if rank != root {
						return nil
					}
					return wantEqual("gathered", out, all)
				})
			if err != nil {
				return fmt.Errorf("root %d: %w", root, err)
			}
			got := make([]float64, n)
			var in []float64
			if rank == root {
				in = all
			}
			err = both(ctx, c,
				func() error { clear(got); return Scatter(ctx, c, in, got, root) },
				func() Request { clear(got); return Iscatter(ctx, c, in, got, root) },
				func() error { return wantEqual("scattered", got, mine) })
			if err != nil {
				return fmt.Errorf("root %d: %w", root, err)
			}
			if rank == root { // in place
				if err := Gather(ctx, c, out[rank*n:(rank+1)*n], out, root); err != nil {
					return err
				}
				if err := Scatter(ctx, c, out, out[rank*n:(rank+1)*n], root); err != nil {
					return err
				}
				if err := wantEqual("gathered in place", out, all); err != nil {
					return err
				}
			} else {
				if err := Gather(ctx, c, mine, nil, root); err != nil {
					return err
				}
				if err := Scatter(ctx, c, nil, got, root); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestGathervAndScatterv(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		size, rank := c.Size(), c.Rank()
		n = min(n, 20_000)
		counts, displs, total := testCounts(size, n)
		want := slices.Repeat([]uint32{99}, total)
		for r := range size {
			copy(want[displs[r]:], contribution[uint32](r, counts[r]))
		}
		mine := contribution[uint32](rank, counts[rank])
		out := make([]uint32, total)
		fill := func() {
			for i := range out {
				out[i] = 99
			}
		}
		for _, root := range roots(size) {
			err := both(ctx, c,
				func() error { fill(); return Gatherv(ctx, c, mine, out, counts, displs, root) },
				func() Request { fill(); return Igatherv(ctx, c, mine, out, counts, displs, root) },
				func() error {
					if rank != root {
						return nil
					}
					return wantEqual("gathered", out, want)
				})
			if err != nil {
				return fmt.Errorf("root %d: %w", root, err)
			}
			got := make([]uint32, counts[rank])
			err = both(ctx, c,
				func() error { clear(got); return Scatterv(ctx, c, want, counts, displs, got, root) },
				func() Request { clear(got); return Iscatterv(ctx, c, want, counts, displs, got, root) },
				func() error { return wantEqual("scattered", got, mine) })
			if err != nil {
				return fmt.Errorf("root %d: %w", root, err)
			}
		}
		err := both(ctx, c,
			func() error { fill(); return Allgatherv(ctx, c, mine, out, counts, displs) },
			func() Request { fill(); return Iallgatherv(ctx, c, mine, out, counts, displs) },
			func() error { return wantEqual("gathered by all", out, want) })
		if err != nil {
			return err
		}
		var joined []uint32
		for r := range size {
			joined = append(joined, contribution[uint32](r, counts[r])...)
		}
		out = make([]uint32, len(joined))
		if err := Allgatherv(ctx, c, mine, out, counts, nil); err != nil {
			return err
		}
		if err := wantEqual("gathered by all without displs", out, joined); err != nil {
			return err
		}
		long := slices.Repeat([]uint32{7}, len(joined)+1+200_000*(c.Rank()%2)) // behind what comes nothing changes
		if err := Allgatherv(ctx, c, mine, long, counts, nil); err != nil {
			return err
		}
		if err := Allgatherv(ctx, c, make([]struct{}, len(mine)), make([]struct{}, total), counts, displs); err != nil {
			return fmt.Errorf("elements of no size: %w", err)
		}
		return wantEqual("gathered into more than it needs", long, append(slices.Clone(joined), slices.Repeat([]uint32{7}, len(long)-len(joined))...))
	})
}

func TestAllgather(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		size, rank := c.Size(), c.Rank()
		var all []int64
		for r := range size {
			all = append(all, contribution[int64](r, n)...)
		}
		out := make([]int64, n*size)
		mine := contribution[int64](rank, n)
		err := both(ctx, c,
			func() error { clear(out); return Allgather(ctx, c, mine, out) },
			func() Request { clear(out); return Iallgather(ctx, c, mine, out) },
			func() error { return wantEqual("out", out, all) })
		if err != nil {
			return err
		}
		clear(out)
		own := out[rank*n : (rank+1)*n]
		copy(own, mine)
		if err := Allgather(ctx, c, own, out); err != nil {
			return err
		}
		return wantEqual("out in place", out, all)
	})
}

func TestAlltoall(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		size, rank := c.Size(), c.Rank()
		n = min(n, 10_000)
		for _, n := range []int{n, n / 2} {
			in, want, out := make([]int64, n*size), make([]int64, n*size), make([]int64, n*size)
			for r := range size {
				for i := range n {
					in[r*n+i] = int64(rank*1000+r)<<32 + int64(i)
					want[r*n+i] = int64(r*1000+rank)<<32 + int64(i)
				}
			}
			err := both(ctx, c,
				func() error { clear(out); return Alltoall(ctx, c, in, out) },
				func() Request { clear(out); return Ialltoall(ctx, c, in, out) },
				func() error { return wantEqual("out", out, want) })
			if err != nil {
				return err
			}
			if err := Alltoall(ctx, c, in, in); err != nil {
				return err
			}
			if err := wantEqual("out in place", in, want); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestAlltoallv(t *testing.T) {
	forAll(t, func(ctx context.Context, c *Comm, n int) error {
		size, rank := c.Size(), c.Rank()
		n = min(n, 5000)
		count := func(from, to int) int { return n * ((from + 2*to) % 3) / 2 }
		element := func(from, to, i int) int32 { return int32(from*10_000_000 + to*100_000 + i) }
		inCounts, outCounts := make([]int, size), make([]int, size)
		var in, want []int32
		for r := range size {
			inCounts[r], outCounts[r] = count(rank, r), count(r, rank)
			for i := range inCounts[r] {
				in = append(in, element(rank, r, i))
			}
			for i := range outCounts[r] {
				want = append(want, element(r, rank, i))
			}
		}
		out := make([]int32, len(want))
		err := both(ctx, c,
			func() error { clear(out); return Alltoallv(ctx, c, in, inCounts, nil, out, outCounts, nil) },
			func() Request { clear(out); return Ialltoallv(ctx, c, in, inCounts, nil, out, outCounts, nil) },
			func() error { return wantEqual("out", out, want) })
		if err != nil {
			return err
		}
		// The parts of out in reverse.
		displs, at := make([]int, size), 0
		for r := size - 1; r >= 0; r-- {
			displs[r] = at
			at += outCounts[r]
		}
		if err := Alltoallv(ctx, c, in, inCounts, nil, out, outCounts, displs); err != nil {
			return err
		}
		at = 0
		for r := range size {
			if err := wantEqual("part of out", out[displs[r]:displs[r]+outCounts[r]], want[at:at+outCounts[r]]); err != nil {
				return err
			}
			at += outCounts[r]
		}
		return nil
	})
}

func TestBarrierHoldsEverybody(t *testing.T) {
	for _, size := range testSizes() {
		arrived := make(chan int, size)
		runWorld(t, size, func(ctx context.Context, c *Comm) error {
			arrived <- c.Rank()
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			if len(arrived) != size {
				return fmt.Errorf("left the barrier when %d of %d were there", len(arrived), size)
			}
			r := Ibarrier(ctx, c)
			_, err := r.Wait(ctx)
			return err
		})
	}
}

// Collectives end also while ranks hold so many messages that nobody has asked for that their
// peers must ask before they send any more, even a short one.
func TestCollectivesAmongRanksThatHoldMuch(t *testing.T) {
	const unasked, tag = 100, 7
	for _, layout := range [][]int{{1, 1}, {1, 1, 1, 1}, {2, 1, 2}} {
		for _, cfg := range []engine.Config{{Unexpected: 64 << 10}, {Unexpected: 64 << 10, Shared: true}, {Unexpected: 64 << 10, Crowded: true}} {
			t.Run(fmt.Sprintf("%v crowded %v shared %v", layout, cfg.Crowded, cfg.Shared), func(t *testing.T) {
				runProcessesAs(t, cfg, layout, func(ctx context.Context, c *Comm) error {
					ctx, stop := context.WithTimeout(ctx, 20*time.Second)
					defer stop()
					me, size := c.Rank(), c.Size()
					body, into := make([]byte, 4<<10), make([]byte, 4<<10)
					var sends []Request
					for peer := range size {
						for range unasked {
							if peer != me {
								sends = append(sends, Isend(c, body, peer, tag))
							}
						}
					}
					time.Sleep(10 * time.Millisecond) // they arrive
					one, all := []int64{int64(me)}, make([]int64, size)
					own := make([]int64, size)
					for _, collective := range []struct {
						name string
						do   func() error
					}{
						{"Barrier", func() error { return Barrier(ctx, c) }},
						{"Bcast", func() error { return Bcast(ctx, c, own, 0) }},
						{"Gather", func() error { return Gather(ctx, c, one, all, 0) }},
						{"Scatter", func() error { return Scatter(ctx, c, own, one[:1], 0) }},
						{"Allgather", func() error { return Allgather(ctx, c, one, all) }},
						{"Alltoall", func() error { return Alltoall(ctx, c, own, all) }},
						{"Reduce", func() error { return Reduce(ctx, c, own, all, Sum, 0) }},
						{"Allreduce", func() error { return Allreduce(ctx, c, own, all, Sum) }},
						{"ReduceScatterBlock", func() error { return ReduceScatterBlock(ctx, c, own, one, Sum) }},
						{"Scan", func() error { return Scan(ctx, c, own, all, Sum) }},
						{"Exscan", func() error { return Exscan(ctx, c, own, all, Sum) }},
						{"Split", func() error { _, err := Split(ctx, c, me%2, me); return err }},
					} {
						if err := collective.do(); err != nil {
							return fmt.Errorf("%s: %w", collective.name, err)
						}
					}
					for peer := range size {
						for range unasked {
							if peer == me {
								continue
							}
							if _, err := Recv(ctx, c, into, peer, tag); err != nil {
								return err
							}
						}
					}
					return Waitall(ctx, sends, nil)
				})
			})
		}
	}
}
