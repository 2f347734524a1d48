//go:build linux

package shm

import (
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A gauge weighs the two ways of a long body: through the ring, into which this process copies
// it and out of which the peer does, or by a call with which the peer reads it. The call takes
// a microsecond before it copies a byte, more or less by the machine. In the ring each cache
// line goes from core to core twice, unless it is copied by lines, and that takes a quarter as long where the two have
// a cache in common as where they have none; and the system may move a process at any time. So some of
// the copies into the ring are timed. Until one was, long bodies go through the ring, but for those of
// an exchange among several: see exchange.
type gauge struct {
	call    cost
	reach   reach
	heard   atomic.Uint64 // how far the peer had answered when the last long body went
	known   atomic.Bool   // a copy was timed
	offered atomic.Uint64 // bodies for the peer to read, and tries of the ring between them

	// owned by who posts sends
	perKiB time.Duration // of the copies into the ring, smoothed
	copied uint
}

// A reach is the longest body that may be sooner there through the ring.
type reach struct {
	answer, stream int // of a stream one call reads several bodies

	// For so many halves of the time of its copying in an answer is taken to be on its way through the ring. Where it
	// is copied by lines its copying out begins before that has ended. (EPYC, virtual: 32 KiB 2.4 µs where the copying
	// in takes 1.3, and 7.4 where that takes 4.8; a read of as much takes 4.2 and 4.9.)
	halves time.Duration
}

// reachOf is where bodies are copied by lines, or not.
func reachOf(lines bool) reach {
	if lines {
		return reach{answer: maxBody, stream: 16 << 10, halves: 3}
	}
	return reach{answer: 16 << 10, stream: 8 << 10, halves: 2}
}

const (
	timedEach = 8   // one in so many copies is timed,
	triedEach = 128 // and where reads are faster, one in so many bodies is copied nevertheless
	smoothing = 4

	firstPerKiB = 100 * time.Nanosecond
	mostPerKiB  = time.Microsecond // if it took longer the process did not have its core
	rise        = 2                // and if so many times as long as others, it may have lost its core for a while: it counts as that much
)

// prefersRead tells whether a body of n bytes is there sooner when the peer reads it. heard grows
// with what the peer sends: a body before which nothing came is one of a stream. spares: see Domain.sparesMemory.
func (g *gauge) prefersRead(n int, heard uint64, spares bool) bool {
	stream := heard == g.heard.Load()
	if n > g.reach.answer || stream && n > g.reach.stream {
		return true
	}
	if !g.known.Load() {
		return spares && n > muchLen && !g.tries()
	}
	before, ring := g.call.fixed, g.perKiB
	if !stream {
		before *= 2 // the offer, and the way to the call and back, are waited for, too
		ring = ring * g.reach.halves / 2
	}
	return !g.tries() && time.Duration(n)*(ring-g.call.perKiB) > before<<10
}

// tries tells whether the next body goes through the ring for that to be timed.
func (g *gauge) tries() bool { return g.offered.Load()%triedEach == triedEach-1 }

// goes notes that a long body goes through the ring, or is offered.
func (g *gauge) goes(heard uint64, offered bool) {
	g.heard.Store(heard)
	if offered {
		g.offered.Add(1)
	}
}

// due tells whether the next copy is to be timed.
func (g *gauge) due() bool {
	g.copied++
	return g.copied%timedEach == 0 || g.tries()
}

// took notes how long a copy of n bytes took.
func (g *gauge) took(n int, d time.Duration) {
	if g.tries() {
		g.offered.Add(1)
	}
	g.known.Store(true)
	g.perKiB += (min(d<<10/time.Duration(n), mostPerKiB, rise*g.perKiB+smoothing) - g.perKiB) / smoothing
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
