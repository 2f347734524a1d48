package mpiv

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/pages"
)

// TestBlockingCollectivesAllocateNothing: rank 1 follows rank 0 through the
// same calls, so what testing.AllocsPerRun counts is that of both.
func TestBlockingCollectivesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const runs = 200
	for _, n := range []int{1, 128, 8192} {
		in, out := [2][]float64{}, [2][]float64{}
		all := [2][]float64{}
		for r := range 2 {
			in[r], out[r], all[r] = make([]float64, n), make([]float64, n), make([]float64, 2*n)
		}
		calls := []struct {
			name string
			call func(ctx context.Context, c *Comm) error
		}{
			{"Barrier", Barrier},
			{"Bcast", func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, in[c.Rank()], 0) }},
			{"Reduce", func(ctx context.Context, c *Comm) error {
				return Reduce(ctx, c, in[c.Rank()], out[c.Rank()], Sum, 1)
			}},
			{"Allreduce", func(ctx context.Context, c *Comm) error {
				return Allreduce(ctx, c, in[c.Rank()], out[c.Rank()], Sum)
			}},
			{"Allreduce in place", func(ctx context.Context, c *Comm) error {
				return Allreduce(ctx, c, in[c.Rank()], in[c.Rank()], Max)
			}},
			{"Allgather", func(ctx context.Context, c *Comm) error {
				return Allgather(ctx, c, in[c.Rank()], all[c.Rank()])
			}},
			{"Gather", func(ctx context.Context, c *Comm) error {
				return Gather(ctx, c, in[c.Rank()], all[c.Rank()], 0)
			}},
			{"Scatter", func(ctx context.Context, c *Comm) error {
				return Scatter(ctx, c, all[c.Rank()], in[c.Rank()], 0)
			}},
			{"Alltoall", func(ctx context.Context, c *Comm) error {
				return Alltoall(ctx, c, all[c.Rank()], all[c.Rank()])
			}},
			{"ReduceScatterBlock", func(ctx context.Context, c *Comm) error {
				return ReduceScatterBlock(ctx, c, all[c.Rank()], out[c.Rank()], Sum)
			}},
			{"Scan", func(ctx context.Context, c *Comm) error {
				return Scan(ctx, c, in[c.Rank()], out[c.Rank()], Sum)
			}},
		}
		for _, x := range calls {
			call := func(ctx context.Context, c *Comm) error {
				if err := x.call(ctx, c); err != nil {
					return err
				}
				return Barrier(ctx, c) // so that no rank runs ahead
			}
			t.Run(fmt.Sprintf("%s/%dB", x.name, 8*n), func(t *testing.T) {
				runWorld(t, 2, func(ctx context.Context, c *Comm) error {
					for range 20 {
						if err := call(ctx, c); err != nil {
							return err
						}
					}
					if c.Rank() == 1 {
						for range runs + 1 {
							if err := call(ctx, c); err != nil {
								return err
							}
						}
						return nil
					}
					var err error
					got := testing.AllocsPerRun(runs, func() {
						if err == nil {
							err = call(ctx, c)
						}
					})
					if err == nil && got >= 1 {
						err = fmt.Errorf("%v allocations in each call, want 0", got)
					}
					return err
				})
			})
		}
	}
}

// TestManyRanks: a thousand ranks in one process exchange messages with few
// others each, and need little memory.
func TestManyRanks(t *testing.T) {
	ranks := 1000
	if raceEnabled {
		ranks = 200
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	runWorld(t, ranks, func(ctx context.Context, c *Comm) error {
		size, rank := c.Size(), c.Rank()
		token := []int{rank}
		if _, err := SendrecvReplace(ctx, c, token, (rank+1)%size, 1, (rank+size-1)%size, 1); err != nil {
			return err
		}
		if token[0] != (rank+size-1)%size {
			return fmt.Errorf("token %d", token[0])
		}
		sum := []int{rank}
		if err := Allreduce(ctx, c, sum, sum, Sum); err != nil {
			return err
		}
		if sum[0] != size*(size-1)/2 {
			return fmt.Errorf("sum %d", sum[0])
		}
		if err := alltoallOfRanks(ctx, c); err != nil {
			return err
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		if rank == 0 {
			runtime.GC()
			runtime.ReadMemStats(&after)
		}
		return Barrier(ctx, c)
	})
	used := int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)
	t.Logf("%d bytes for each of %d ranks", used/int64(ranks), ranks)
	if !raceEnabled {
		require.Less(t, used/int64(ranks), int64(64<<10), "bytes for each rank")
	}
}

func alltoallOfRanks(ctx context.Context, c *Comm) error {
	size, rank := c.Size(), c.Rank()
	in, out := make([]int64, size), make([]int64, size)
	for i := range in {
		in[i] = int64(rank)<<32 | int64(i)
	}
	if err := Alltoall(ctx, c, in, out); err != nil {
		return err
	}
	for i, x := range out {
		if x != int64(i)<<32|int64(rank) {
			return fmt.Errorf("from %d: %x", i, x)
		}
	}
	return nil
}

// TestGatherBeyond2GiB: blocks whose places in out do not fit into 31 bits. The
// memory between them is never touched. It is not Go's: of that a part may have been used, and is
// cleared, and the race detector lets nothing else run for 8 s while the collector frees it.
func TestGatherBeyond2GiB(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		counts, displs := []int{2, 2, 2}, []int{0, 1 << 31, 3<<30 - 2}
		var out []byte
		if c.Rank() == 0 {
			var err error
			if out, err = pages.Aside(3 << 30); err != nil {
				return err
			}
			defer pages.GiveBack(out)
		}
		if err := Gatherv(ctx, c, []byte{byte(c.Rank()), 7}, out, counts, displs, 0); err != nil {
			return err
		}
		if c.Rank() != 0 {
			return nil
		}
		for r, d := range displs {
			if err := wantEqual("block", out[d:d+2], []byte{byte(r), 7}); err != nil {
				return err
			}
		}
		return nil
	})
}

func benchmarkRanks(b *testing.B, size int, call func(ctx context.Context, c *Comm) error) {
	b.ReportAllocs()
	runWorld(b, size, func(ctx context.Context, c *Comm) error {
		for range 50 {
			if err := call(ctx, c); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			b.ResetTimer()
		}
		for range b.N {
			if err := call(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func byteSize(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%dMiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}

func BenchmarkCollectives(b *testing.B) {
	for _, size := range []int{2, 4} {
		b.Run(fmt.Sprintf("Barrier/%dranks", size), func(b *testing.B) { benchmarkRanks(b, size, Barrier) })
		for _, n := range []int{8, 1 << 10, 64 << 10, 1 << 20} {
			buffers := func() (in, out, all []([]float64)) {
				for range size {
					in, out = append(in, make([]float64, n/8)), append(out, make([]float64, n/8))
					all = append(all, make([]float64, n/8*size))
				}
				return in, out, all
			}
			in, out, all := buffers()
			for _, x := range []struct {
				name string
				call func(ctx context.Context, c *Comm) error
			}{
				{"Bcast", func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, in[c.Rank()], 0) }},
				{"Reduce", func(ctx context.Context, c *Comm) error {
					return Reduce(ctx, c, in[c.Rank()], out[c.Rank()], Sum, 0)
				}},
				{"Allreduce", func(ctx context.Context, c *Comm) error {
					return Allreduce(ctx, c, in[c.Rank()], out[c.Rank()], Sum)
				}},
				{"Gather", func(ctx context.Context, c *Comm) error {
					return Gather(ctx, c, in[c.Rank()], all[c.Rank()], 0)
				}},
				{"Scatter", func(ctx context.Context, c *Comm) error {
					return Scatter(ctx, c, all[c.Rank()], in[c.Rank()], 0)
				}},
				{"Allgather", func(ctx context.Context, c *Comm) error {
					return Allgather(ctx, c, in[c.Rank()], all[c.Rank()])
				}},
				{"Alltoall", func(ctx context.Context, c *Comm) error {
					return Alltoall(ctx, c, all[c.Rank()], all[(c.Rank()+size)%size])
				}},
				{"ReduceScatterBlock", func(ctx context.Context, c *Comm) error {
					return ReduceScatterBlock(ctx, c, all[c.Rank()], out[c.Rank()], Sum)
				}},
				{"Scan", func(ctx context.Context, c *Comm) error {
					return Scan(ctx, c, in[c.Rank()], out[c.Rank()], Sum)
				}},
			} {
				b.Run(fmt.Sprintf("%s/%dranks/%s", x.name, size, byteSize(n)), func(b *testing.B) {
					b.SetBytes(int64(n))
					benchmarkRanks(b, size, x.call)
				})
			}
		}
	}
}
