//go:build linux

package shm

import (
	"os"
	"sync"
	"time"
	"unsafe"
)

// A gauge weighs the two ways of a long body: through the ring, into which this process copies
// it and out of which the peer does, or by a call with which the peer reads it. The call takes
// a microsecond before it copies a byte, more or less by the machine. In the ring each cache
// line goes from core to core twice, which takes a quarter as long where the two have a cache
// in common as where they have none; and the system may move a process at any time. So some of
// the copies into the ring are timed. Who posts sends owns the gauge.
type gauge struct {
	call    cost
	perKiB  time.Duration // of the copies into the ring, smoothed
	copies  uint          // into the ring
	read    uint          // bodies that were not copied, as reads said
	through bool          // the next goes through the ring, for it to be timed
	heard   uint64        // see reads
}

const (
	longestEager    = 16 << 10 // of the bodies that may be sooner there through the ring,
	longestInStream = 8 << 10  //   and in a stream, of which one call reads several

	timedEach = 8   // one in so many copies is timed,
	triedEach = 128 // and where reads are faster, one in so many bodies is copied nevertheless
	smoothing = 4

	firstPerKiB = 100 * time.Nanosecond
	mostPerKiB  = time.Microsecond // if it took longer the process did not have its core
)

// reads tells whether a body of n bytes is there sooner when the peer reads it. heard grows
// with what the peer sends: a body before which nothing came is one of a stream.
func (g *gauge) reads(n int, heard uint64) bool {
	stream := heard == g.heard
	g.heard = heard
	if n > longestEager || stream && n > longestInStream {
		return true
	}
	before := g.call.fixed
	if !stream {
		before *= 2 // the offer, and the way to the call and back, are waited for, too
	}
	if time.Duration(n)*(g.perKiB-g.call.perKiB) <= before<<10 {
		return false
	}
	g.read++
	g.through = g.read%triedEach == 0
	return !g.through
}

// due tells whether the next copy is to be timed.
func (g *gauge) due() bool {
	g.copies++
	return g.through || g.copies%timedEach == 0
}

// took notes how long a copy of n bytes took.
func (g *gauge) took(n int, d time.Duration) {
	g.through = false
	g.perKiB += (min(d<<10/time.Duration(n), mostPerKiB) - g.perKiB) / smoothing
}

// A cost is what reading another process's memory takes.
type cost struct{ fixed, perKiB time.Duration }

// callCost is the cost of a call on this machine, found by a few that read this process's own
// memory.
var callCost = sync.OnceValue(func() cost {
	const tries, few, many = 8, 8, 16 << 10
	from, into := make([]byte, many), make([]byte, many)
	self := peerMemory{pid: os.Getpid()}
	best := [2]time.Duration{time.Second, time.Second}
	for range tries {
		for i, n := range [...]int{few, many} {
			began := time.Now()
			if self.read(into[:n], uint64(uintptr(unsafe.Pointer(unsafe.SliceData(from))))) == nil {
				best[i] = min(best[i], time.Since(began))
			}
		}
	}
	return cost{fixed: best[0], perKiB: max(0, best[1]-best[0]) << 10 / many}
})
