//go:build ofi && cgo && linux

package libfabric_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
	"github.com/mpiv/mpiv/transport/rdma/libfabric/bare"
)

// BenchmarkBare does the same with this package and with a loop in C around
// libfabric's calls, in turn, in rounds of some milliseconds. Both are one thread
// that polls two ends, use the same memory, and write with the same promise.
// "ratio" is the median over the rounds of our time over the bare one's;
// "cpu-ratio" is the same of the thread's processor time, which does not change
// when others use the machine.
func BenchmarkBare(b *testing.B) {
	for _, o := range []libfabric.Options{{Provider: "shm"}, {Provider: "tcp;ofi_rxm"}, {Provider: "tcp;ofi_rxm", Naps: true}} {
		provider := o.Provider
		if o.Naps {
			provider += ",naps"
		}
		for _, op := range []struct {
			name string
			what int
		}{{"get", bare.Get}, {"put", bare.Put}, {"pull", bare.Pull}} {
			for _, size := range []int{8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20} {
				b.Run(fmt.Sprintf("%s/%s/%d", op.name, provider, size), func(b *testing.B) {
					compare(b, o, op.what, size)
				})
			}
		}
	}
}

func compare(b *testing.B, o libfabric.Options, what, size int) {
	near, far := make([]byte, size), make([]byte, size)
	for i := range far {
		near[i], far[i] = 1, 2
	}
	node := "127.0.0.1"
	if o.Provider == "shm" {
		node = ""
	}
	reference, err := bare.Open(o.Provider, node, near, far)
	require.NoError(b, err)
	defer reference.Close()
	p, q := pair(b, o)
	r := &repeat{a: p, b: q, what: what, near: near, far: far}
	r.open()
	defer r.close()
	theirs := func(times int) error { return reference.Run(what, size, times) }
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	measure := func(run func(int) error, times int) (t took) {
		cpu, wall := threadTime(), time.Now()
		if err := run(times); err != nil {
			b.Fatal(err)
		}
		return took{time.Since(wall), threadTime() - cpu}
	}
	measure(r.run, 20)
	times := max(1, int(2*time.Millisecond/(measure(theirs, 20).cpu/20)))
	var walls, cpus []float64
	var sum [2]time.Duration
	n := 0
	for b.Loop() {
		var ours, bare took
		if n%2 == 0 {
			ours, bare = measure(r.run, times), measure(theirs, times)
		} else {
			bare, ours = measure(theirs, times), measure(r.run, times)
		}
		walls = append(walls, float64(ours.wall)/float64(bare.wall))
		cpus = append(cpus, float64(ours.cpu)/float64(bare.cpu))
		sum[0] += ours.cpu
		sum[1] += bare.cpu
		n++
	}
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(0, "ns/op") // an iteration is a round
	b.ReportMetric(median(walls), "ratio")
	b.ReportMetric(median(cpus), "cpu-ratio")
	b.ReportMetric(float64(sum[0].Nanoseconds())/float64(n*times), "ours-cpu-ns")
	b.ReportMetric(float64(sum[1].Nanoseconds())/float64(n*times), "bare-cpu-ns")
}

type took struct{ wall, cpu time.Duration }

// threadTime is what this thread has used of its processor.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// repeat does the same over and over: b reads from a's memory or writes to it.
type repeat struct {
	a, b      *rdma.Conn
	what      int
	near, far []byte
	in        caught
	ticket    transport.Ticket
}

func (r *repeat) open() {
	switch r.what {
	case bare.Get:
		r.ticket, _ = r.a.Offer(r.far)
	case bare.Put:
		r.ticket, _ = r.a.Expose(r.far)
	}
}

func (r *repeat) close() {
	r.b.Close() // whom nobody need ask whether it still writes
}

func (r *repeat) run(times int) error {
	for range times {
		if r.what == bare.Pull {
			r.ticket, _ = r.a.Offer(r.far)
		}
		if err := r.once(); err != nil {
			return err
		}
		if r.what == bare.Pull {
			r.a.Withdraw(r.ticket)
		}
	}
	return nil
}

func (r *repeat) once() (err error) {
	r.in.ends = r.in.ends[:0]
	if r.what == bare.Put {
		err = r.b.Put(r.ticket, r.near, 1)
	} else {
		err = r.b.Pull(r.ticket, r.near, 1)
	}
	for err == nil && len(r.in.ends) == 0 {
		if _, err = r.b.Poll(&r.in); err == nil && len(r.in.ends) == 0 {
			_, err = r.a.Poll(&r.in)
		}
	}
	if err == nil {
		err = r.in.ends[0]
	}
	return err
}
