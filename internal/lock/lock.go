// Package lock is mutual exclusion for sections of some instructions, or a
// system call that does not wait, on the way of every message: one locked
// instruction takes the lock, a plain store gives it back. A sync.Mutex needs a
// second locked instruction, which waits until everything stored under the lock
// has left the core.
package lock

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/release"
)

// A Mutex is a lock whose zero value is free. It must not be copied. Who waits
// for it does not sleep at first, in a bubble of testing/synctest never (so its
// holder must not either), and is not served in order. To give it back is
// no fence: who then looks at what others have stored needs one of its own
// (package barrier).
type Mutex struct{ held uint32 }

// TryLock takes the lock if it is free.
func (m *Mutex) TryLock() bool {
	return atomic.LoadUint32(&m.held) == 0 && atomic.CompareAndSwapUint32(&m.held, 0, 1)
}

// Lock takes the lock when it is free.
func (m *Mutex) Lock() {
	if !atomic.CompareAndSwapUint32(&m.held, 0, 1) {
		m.wait()
	}
}

// Unlock gives the lock back.
func (m *Mutex) Unlock() { release.Store32(&m.held, 0) }

// wait is Lock of a lock that was not free. Its holder is at work on another
// core, or lost its own, maybe to who waits: then it must get one.
func (m *Mutex) wait() {
	const (
		spins  = 64
		yields = 64
		naps   = 64 // some milliseconds
	)
	var since time.Time
	for n := -spins; !m.TryLock(); n++ {
		switch {
		case n < 0:
			release.Pause()
		case n == 0:
			since = time.Now()
		case n < yields:
			runtime.Gosched()
		case time.Since(since) == 0:
			// In a bubble of testing/synctest the clock stands still while the
			// holder works. A sleep would set it forward.
			runtime.Gosched()
		case n < yields+naps:
			runtime.Gosched()
			nap()
		default: // its goroutine waits for a P, maybe that of who waits
			time.Sleep(time.Millisecond)
		}
	}
}

// nap sleeps in the thread of the caller, for as short as can be: some 50 µs. To sleep in the scheduler takes longer,
// a whole millisecond of its poller, and wakes another thread again and again until then.
func nap() {
	t := unix.NsecToTimespec(1)
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}
