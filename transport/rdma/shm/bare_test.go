//go:build linux

package shm_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkBare has two processes fetch as many bytes from each other, by turns, with
// this package and with the least that does it. Ours is an offer, a pull and a
// withdrawal each way. The bare one is a number in memory that both map, and
// process_vm_readv from an address that does not change. An iteration is a round of
// some milliseconds of each; "ratio" is the median over the rounds of our time
// over the bare one's, the others are medians of half a round trip.
func BenchmarkBare(b *testing.B) {
	for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 4 << 20} {
		b.Run(sized(size), func(b *testing.B) { compare(b, size) })
	}
}

func compare(b *testing.B, size int) {
	n, _ := two(b)
	file, err := unix.MemfdCreate("bare", unix.MFD_CLOEXEC)
	require.NoError(b, err)
	defer unix.Close(file)
	require.NoError(b, unix.Ftruncate(file, int64(unsafe.Sizeof(bareSegment{}))))
	path := fmt.Appendf(nil, "/proc/%d/fd/%d", os.Getpid(), file)
	near, err := openBare(string(path), 0, n)
	require.NoError(b, err)
	ours := func() error {
		err := n.offer(n.out[:size])
		if err == nil {
			err = n.answered()
		}
		n.conn.Withdraw(n.offered)
		return err
	}
	reference := func() error { return near.ask(size) }
	timed := func(once func() error, times int) float64 {
		require.NoError(b, once()) // the other process has changed its loop by then
		start := time.Now()
		for range times {
			if err := once(); err != nil {
				b.Fatal(err)
			}
		}
		return float64(time.Since(start).Nanoseconds()) / float64(2*times)
	}
	both := func(times int, first bool) (mpiv, bare float64) {
		one := func() { mpiv = timed(ours, times) }
		if first {
			one()
		}
		binary.LittleEndian.PutUint64(n.header[16:], uint64(times+1))
		require.NoError(b, n.send(exchange, size, path, false))
		bare = timed(reference, times)
		if !first {
			one()
		}
		return mpiv, bare
	}
	_, bare := both(50, true)
	times := max(1, int(1e6/bare))
	var all [3][]float64
	for first := true; b.Loop(); first = !first {
		mpiv, bare := both(times, first)
		for i, x := range []float64{mpiv, bare, mpiv / bare} {
			all[i] = append(all[i], x)
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, unit := range []string{"ours-ns", "bare-ns", "ratio"} {
		slices.Sort(all[i])
		b.ReportMetric(all[i][len(all[i])/2], unit)
	}
}

// A bareSegment is what two processes share for the bare exchange. The index is 0 for who
// asks, 1 for who answers.
type bareSegment [2]struct {
	turn      atomic.Uint64 // exchanges in which this side's bytes were offered
	_         [120]byte
	pid, addr atomic.Uint64 // where they are
	_         [112]byte
}

// A bare is one end of it.
type bare struct {
	shared *bareSegment
	side   int
	into   []byte
	local  unix.Iovec
	remote unix.RemoteIovec
}

func openBare(path string, side int, n *node) (*bare, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	mem, err := unix.Mmap(int(file.Fd()), 0, int(unsafe.Sizeof(bareSegment{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	r := &bare{shared: (*bareSegment)(unsafe.Pointer(unsafe.SliceData(mem))), side: side, into: n.buf}
	r.shared[side].pid.Store(uint64(os.Getpid()))
	r.shared[side].addr.Store(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(n.out)))))
	return r, nil
}

// ask offers n bytes, and fetches as many once the peer has.
func (r *bare) ask(n int) error {
	if err := r.wait(r.shared[0].turn.Add(1)); err != nil {
		return err
	}
	return r.fetch(n)
}

// answer fetches n bytes, and then offers as many, so many times.
func (r *bare) answer(n, times int) error {
	for range times {
		turn := r.shared[1].turn.Load() + 1
		if err := r.wait(turn); err != nil {
			return err
		}
		if err := r.fetch(n); err != nil {
			return err
		}
		r.shared[1].turn.Store(turn)
	}
	return nil
}

func (r *bare) wait(turn uint64) error {
	theirs := &r.shared[1-r.side].turn
	var since time.Time
	for spins := 0; theirs.Load() != turn; spins++ {
		if spins&(1<<20-1) != 1<<20-1 {
			continue
		}
		if since.IsZero() {
			since = time.Now()
		} else if time.Since(since) > 10*time.Second {
			return errors.New("the other process does not answer for 10 s")
		}
	}
	return nil
}

func (r *bare) fetch(n int) error {
	their := &r.shared[1-r.side]
	r.local.Base = &r.into[0]
	r.local.SetLen(n)
	r.remote = unix.RemoteIovec{Base: uintptr(their.addr.Load()), Len: n}
	got, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(their.pid.Load()),
		uintptr(unsafe.Pointer(&r.local)), 1, uintptr(unsafe.Pointer(&r.remote)), 1, 0)
	if errno != 0 || int(got) != n {
		return fmt.Errorf("copy %d bytes: %d, %w", n, got, errno)
	}
	return nil
}

// answerBare is what the other process does when it is asked to.
func (n *node) answerBare(path string, size, times int) (err error) {
	if n.bare == nil {
		if n.bare, err = openBare(path, 1, n); err != nil {
			return err
		}
	}
	return n.bare.answer(size, times)
}
