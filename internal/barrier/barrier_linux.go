package barrier

import (
	"sync"

	"golang.org/x/sys/unix"
)

// The commands of membarrier(2), which x/sys does not name.
const (
	globalExpedited          = 1 << 1
	registerGlobalExpedited  = 1 << 2
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

var haveGlobal = sync.OnceValue(func() bool {
	return membarrier(registerGlobalExpedited) && membarrier(globalExpedited)
})

var havePrivate = membarrier(registerPrivateExpedited) && membarrier(privateExpedited)

func membarrier(cmd uintptr) (ok bool) {
	_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, cmd, 0, 0)
	return errno == 0
}
