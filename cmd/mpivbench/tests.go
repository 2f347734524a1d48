package main

import (
	"context"
	"fmt"
)

// A test is one that osu.c has too.
type test struct {
	name, title   string
	columns       []string // of its figures, but the size
	min, max      int      // sizes; max 0: it has none
	iters, warmup int
	divisor       int  // of both beyond large
	perRank       bool // buffers hold a block for every rank
	unit          int  // of the sizes, in bytes
	worlds        worlds
	run           func(ctx context.Context, r *run) ([]float64, error) // figures count on rank 0
}

// worlds is how many ranks a test runs with.
type worlds uint8

const (
	anySize worlds = iota
	twoRanks
	evenSize
)

func (w worlds) check(size int) error {
	switch {
	case w == twoRanks && size != 2:
		return fmt.Errorf("this test runs with exactly 2 ranks, not %d: start it with mpivrun -n 2", size)
	case w == evenSize && size%2 != 0:
		return fmt.Errorf("this test runs with an even number of ranks, not %d", size)
	}
	return nil
}

var (
	us  = []string{"Latency (us)"}
	mbs = []string{"Bandwidth (MB/s)"}
	avg = []string{"Avg Latency(us)"}
	two = []string{"Avg Latency(us)", "Remainder(us)"}
)

var tests = []test{
	{"latency", "Latency", us, 0, 4 << 20, 10000, 100, 10, false, 1, twoRanks, latency},
	{"latency_mt", "Multi-threaded Latency", us, 0, 4 << 20, 10000, 100, 10, false, 1, twoRanks, latencyMT},
	{"bw", "Bandwidth", mbs, 1, 4 << 20, 500, 50, 25, false, 1, twoRanks, bw},
	{"bibw", "Bi-Directional Bandwidth", mbs, 1, 4 << 20, 500, 50, 25, false, 1, twoRanks, bibw},
	{"mbw_mr", "Multiple Bandwidth / Message Rate", []string{"MB/s", "Messages/s"}, 1, 4 << 20, 500, 50, 25, false, 1, evenSize, mbwMR},
	{"barrier", "Barrier Latency", avg, 0, 0, 1000, 200, 1, false, 1, anySize, barrier},
	{"bcast", "Broadcast Latency", avg, 1, 1 << 20, 1000, 200, 10, false, 1, anySize, bcast},
	{"reduce", "Reduce Latency", avg, 4, 1 << 20, 1000, 200, 10, false, 4, anySize, reduce},
	{"allreduce", "Allreduce Latency", avg, 4, 1 << 20, 1000, 200, 10, false, 4, anySize, allreduce},
	{"gather", "Gather Latency", avg, 1, 1 << 20, 1000, 200, 10, true, 1, anySize, gather},
	{"scatter", "Scatter Latency", avg, 1, 1 << 20, 1000, 200, 10, true, 1, anySize, scatter},
	{"allgather", "Allgather Latency", avg, 1, 1 << 20, 1000, 200, 10, true, 1, anySize, allgather},
	{"alltoall", "All-to-All Latency", avg, 1, 1 << 20, 1000, 200, 10, true, 1, anySize, alltoall},
	{"ibarrier", "Non-blocking Barrier Latency", two, 0, 0, 1000, 200, 1, false, 1, anySize, ibarrier},
	{"iallreduce", "Non-blocking Allreduce Latency", two, 4, 1 << 20, 1000, 200, 10, false, 4, anySize, iallreduce},
	{"ialltoall", "Non-blocking All-to-All Latency", two, 1, 1 << 20, 1000, 200, 10, true, 1, anySize, ialltoall},
	{name: "init", title: "Init", unit: 1},
	{"move", "Live Move", []string{"Total (us)", "Stands still (us)"}, 0, 64 << 20, 20, 2, 1, false, 1, anySize, nil},
	{"save", "Snapshot", []string{"Stands still (us)", "Stands still (%)", "Longer (%)", "Processor (%)"}, 0, 64 << 20, 3, 2, 1, false, 1, anySize, nil},
}

// sized tells whether the test has sizes.
func (t *test) sized() bool { return t.max > 0 }

func find(name string) *test {
	for i := range tests {
		if tests[i].name == name {
			return &tests[i]
		}
	}
	return nil
}
