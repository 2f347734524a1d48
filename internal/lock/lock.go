// Package lock is mutual exclusion for sections of some instructions, on the
// way of every message.
//
// A Mutex that one goroutine has taken many times in a row is biased to it:
// from then on that goroutine takes and gives it back with plain stores, at
// almost no cost. Another one that wants it first ends the bias, which costs
// some microseconds, and from then on all take it with one locked instruction
// and give it back with a plain store, until the lock is biased again. A
// sync.Mutex needs two locked instructions, each of which waits until
// everything stored before has left the core.
//
// The bias is that of Kawachiya, Koseki and Onodera, "Lock Reservation: Java
// Locks Can Mostly Do Without Atomic Operations" (OOPSLA 2002). Where they stop
// the owner to end it, this has the kernel put a fence into the owner's core
// (package barrier).
package lock

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/barrier"
	"github.com/mpiv/mpiv/internal/release"
)

// A Mutex is a lock whose zero value is free. It must not be copied. Who waits
// for it does not sleep at first, and is not served in order. The goroutine that
// took it must give it back.
type Mutex struct {
	bias uintptr // goroutine it is biased to; 0: none. Written while held is
	busy uint32  // that goroutine is entering by its bias, or is in
	held uint32  // somebody has the lock without it

	last uintptr // who had it last; guarded by held
	row  uint32  // how often in a row; guarded by held
}

// biasAfter is how often in a row a goroutine takes a lock before it is biased
// to it: what they would have saved is what it costs to end the bias.
const biasAfter = 256

// Lock takes the lock when it is free.
func (m *Mutex) Lock() {
	if !enter(m) {
		m.lock()
	}
}

// TryLock takes the lock if it is free.
func (m *Mutex) TryLock() bool {
	return enter(m) || m.tryLock()
}

// States of busy.
const (
	out uint32 = iota
	entering
	in
)

// Unlock gives the lock back.
func (m *Mutex) Unlock() {
	if m.busy == in {
		release.Store32(&m.busy, out)
		return
	}
	release.Store32(&m.held, 0)
}

func (m *Mutex) lock() {
	for n := 0; !m.tryHold(); n++ {
		wait(n)
	}
	if atomic.LoadUintptr(&m.bias) != 0 {
		m.endBias()
		for n := 0; atomic.LoadUint32(&m.busy) != out; n++ {
			wait(n)
		}
	}
	m.count()
}

func (m *Mutex) tryLock() bool {
	if !m.tryHold() {
		return false
	}
	if atomic.LoadUintptr(&m.bias) != 0 {
		m.endBias()
		for n := 0; atomic.LoadUint32(&m.busy) == entering; n++ {
			wait(n)
		}
		if atomic.LoadUint32(&m.busy) == in {
			release.Store32(&m.held, 0)
			return false
		}
	}
	m.count()
	return true
}

func (m *Mutex) tryHold() bool {
	return atomic.LoadUint32(&m.held) == 0 && atomic.CompareAndSwapUint32(&m.held, 0, 1)
}

// endBias ends the bias. When it returns, its owner does not begin to enter any
// more, and busy tells how far it was.
func (m *Mutex) endBias() {
	atomic.StoreUintptr(&m.bias, 0)
	barrier.Heavy()
}

// count begins a bias when it is due. held is.
func (m *Mutex) count() {
	g := self()
	if g != m.last {
		m.last, m.row = g, 0
		return
	}
	if m.row++; m.row >= biasAfter && g != 0 {
		m.row = 0
		atomic.StoreUintptr(&m.bias, g)
	}
}

// wait lets time go by for the nth time: the holder of a lock is at work on
// another core, or lost its own and must get one.
func wait(n int) {
	const (
		spins  = 64
		yields = 256
	)
	switch {
	case n < spins:
		release.Pause()
	case n < yields:
		runtime.Gosched()
	default:
		time.Sleep(min(time.Duration(n-yields+1)*time.Microsecond, time.Millisecond))
	}
}
