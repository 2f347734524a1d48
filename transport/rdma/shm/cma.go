//go:build linux

package shm

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
)

// together is how many reads one call copies at the most, and togetherBytes how much: of 16 KiB each
// costs as much to begin as to copy.
const (
	together      = 8
	togetherBytes = 64 << 10
)

// peerMemory is the memory of another process of the same user (cross-memory
// attach). One goroutine at a time may use it.
type peerMemory struct {
	pid    int
	local  [together]unix.Iovec // fields, so that calls allocate nothing
	remote [together]unix.RemoteIovec
}

// read copies from the peer's address addr.
func (p *peerMemory) read(into []byte, addr uint64) error {
	return p.copy(unix.SYS_PROCESS_VM_READV, into, addr)
}

// write copies to the peer's address addr.
func (p *peerMemory) write(addr uint64, from []byte) error {
	return p.copy(unix.SYS_PROCESS_VM_WRITEV, from, addr)
}

func (p *peerMemory) copy(call uintptr, here []byte, there uint64) error {
	for len(here) > 0 {
		p.set(0, here[:min(len(here), aloneBytes)], there)
		n, errno := p.call(call, 1)
		if errno == unix.EINTR {
			continue
		}
		if errno == unix.EPERM { // one of the two has given up rights since the handshake
			return fmt.Errorf("copy %d bytes of process %d's memory: %w: %w", len(here), p.pid, transport.ErrBarred, errno)
		}
		if errno != 0 {
			return fmt.Errorf("copy %d bytes of process %d's memory: %w", len(here), p.pid, errno)
		}
		here, there = here[n:], there+uint64(n) // shorter where a page was missing; the next round tells
	}
	return nil
}

// readTogether begins reads with one call, and notes in each how far it came. What they
// read is togetherBytes at the most.
func (p *peerMemory) readTogether(reads []access) {
	for i := range reads {
		p.set(i, reads[i].here, reads[i].key.Addr)
	}
	left, errno := p.call(unix.SYS_PROCESS_VM_READV, len(reads))
	if errno != 0 {
		return // who reads each alone is told for which
	}
	for i := range reads {
		n := min(left, len(reads[i].here))
		reads[i].alone = uint64(n)
		left -= n
	}
}

func (p *peerMemory) set(i int, here []byte, there uint64) {
	p.local[i].Base = unsafe.SliceData(here)
	p.local[i].SetLen(len(here))
	p.remote[i] = unix.RemoteIovec{Base: uintptr(there), Len: len(here)}
}

// call copies what the first pieces say, and returns how many bytes it did.
//
// The scheduler is not told, as it is not of a copy that the processor makes, which takes as long. From a goroutine that has polled
// for 10 ms its monitor would take the P in each such call, and look for the next every 20 µs: of two
// cores (Xeon, mpivbench) the bandwidth at 1 MiB was a quarter less.
func (p *peerMemory) call(call uintptr, pieces int) (copied int, errno unix.Errno) {
	n, _, errno := unix.RawSyscall6(call, uintptr(p.pid), uintptr(unsafe.Pointer(&p.local)), uintptr(pieces), uintptr(unsafe.Pointer(&p.remote)), uintptr(pieces), 0)
	for i := range pieces {
		p.local[i].Base = nil
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// holds tells whether the peer has the eight bytes of nonce at addr: that it is
// who we think and that its memory may be read.
func (p *peerMemory) holds(nonce [8]byte, addr uint64) bool {
	var got [8]byte
	return p.pid > 0 && p.read(got[:], addr) == nil && got == nonce
}

// admitReaders lets other processes of this user read this one's memory where
// the Yama security module forbids it to all but a process's parents.
var admitReaders = sync.OnceFunc(func() {
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(scope)) == "1" {
		// Without success the probe of the handshake fails, and bodies go over the rings.
		_ = unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY&(1<<64-1), 0, 0, 0)
	}
})
