//go:build linux

package shm

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A sender must not miss that its peer falls asleep, and the peer not that a
// message comes: one stores the message and then looks at sleeping, the other
// stores sleeping and then looks for messages, and processors let a load overtake
// a store. Fences on both sides would make each message wait until its store has
// left the core. Instead, who falls asleep, which is rare, has the kernel put a
// fence into whatever every core of the job is executing: membarrier(2). Where
// one of the two processes cannot, both use fences.

// The commands of membarrier(2), which x/sys does not name.
const (
	globalExpedited         = 1 << 1
	registerGlobalExpedited = 1 << 2
)

// haveBarriers has this process mind the barriers of others, and tells whether
// it can issue its own.
var haveBarriers = sync.OnceValue(func() bool {
	return membarrier(registerGlobalExpedited) && membarrier(globalExpedited)
})

// barrier returns when all that the processes which mind it had stored before
// is seen by this one, and they see all that it has stored.
func barrier() { membarrier(globalExpedited) }

func membarrier(cmd uintptr) (ok bool) {
	_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, cmd, 0, 0)
	return errno == 0
}
