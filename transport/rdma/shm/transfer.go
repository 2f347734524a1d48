//go:build linux

package shm

import (
	"sync/atomic"

	"github.com/mpiv/mpiv/transport/rdma"
)

// A transfer is a long read in progress, in the segment, where both ends take
// chunks of it: the reader with process_vm_readv, the owner of the region, when
// it polls, with process_vm_writev. One core alone copies 1 MiB in 54 µs.
//
// The reader fills in what is to be done while the transfer is closed and then
// opens it. Who wins a chunk by moving the cursor copies it and counts it done.
// The cursor's upper half is a number that each opening changes, so that nobody
// wins a chunk of another transfer than the one it looked at.
type transfer struct {
	from, region, gen atomic.Uint64 // the key: of the region's owner
	into, length      atomic.Uint64 // in the reader's memory
	_                 [88]byte

	cursor atomic.Uint64 // opening<<32 | next chunk
	done   atomic.Uint64 // failed<<32 | chunks that are not being copied any more
	_      [112]byte
}

const closed = 1<<32 - 1 // in place of the next chunk

// chunk is the length of all chunks of a transfer but the last: small enough to
// be shared, and long enough that the calls do not matter.
func chunk(length uint64) uint64 {
	if length <= 256<<10 {
		return 64 << 10
	}
	return 128 << 10
}

func chunks(length uint64) uint64 { return (length + chunk(length) - 1) / chunk(length) }

// open publishes a transfer. It must be closed.
func (t *transfer) open(k rdma.Key, into, length uint64) {
	t.from.Store(k.Addr)
	t.region.Store(k.Remote[0])
	t.gen.Store(k.Remote[1])
	t.into.Store(into)
	t.length.Store(length)
	t.done.Store(0)
	t.cursor.Store((t.cursor.Load()>>32 + 1) << 32)
}

// close lets nobody win a chunk any more, and tells how many were won.
func (t *transfer) close() uint64 {
	for {
		c := t.cursor.Load()
		if t.cursor.CompareAndSwap(c, c|closed) {
			return min(uint64(uint32(c)), chunks(t.length.Load()))
		}
	}
}

// claim wins the next chunk of the transfer that the cursor c belongs to.
func (t *transfer) claim(c, length uint64) (off, n uint64, ok bool) {
	off = uint64(uint32(c)) * chunk(length)
	if off >= length || uint32(c) == closed || !t.cursor.CompareAndSwap(c, c+1) {
		return 0, 0, false
	}
	return off, min(chunk(length), length-off), true
}

func (t *transfer) finished(failed bool) {
	if failed {
		t.done.Add(1<<32 | 1)
		return
	}
	t.done.Add(1)
}

// stalled says that the reader can do nothing but wait for the other side.
func (t *transfer) stalled() bool {
	next, n := uint64(uint32(t.cursor.Load())), chunks(t.length.Load())
	return next >= n && next != closed && uint64(uint32(t.done.Load())) < n
}
