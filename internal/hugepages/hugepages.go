//go:build linux

// Package hugepages has the kernel put memory that is copied between processes, again and
// again, into huge pages. To copy from another process the kernel looks up and holds each page
// of its, one by one: a fifth of the time for 64 KiB, and more for longer bodies, of which the
// core's tables do not hold all pages. A page of 2 MiB is looked up once.
package hugepages

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/release"
)

const (
	page = 2 << 20 // bytes, and their address is a multiple of it

	// To make a page huge takes half a millisecond or more: as much as small pages add to
	// the copying of 64 MiB. So it is done for memory that is used again, and takes at most
	// a share of the process's time, besides what it is given at first.
	again  = 512 << 10 // bytes copied
	share  = 100       // one part of so many
	credit = 20 * time.Millisecond

	// After so many bytes it is asked for anew: memory that was given back to the kernel in
	// between has small pages again. Where they still are huge that takes 10 µs.
	anew = 64 << 20

	// An entry of used: the page's number, whether it was seen to, and how many bytes were
	// copied that lie in it at least in part.
	seenTo   = 1 << 35
	numberAt = 36
)

var (
	// used has an entry for each page by the low bits of its number. Two pages that take turns
	// at one stay as they are, and who counts at once with another may not be counted.
	used  [1 << 12]uint64
	spent atomic.Int64 // time.Duration
	began atomic.Pointer[time.Time]
)

// Begin has Used do what it is for, if the system has huge pages for who asks for them.
var Begin = sync.OnceFunc(func() {
	setting, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err == nil && !strings.Contains(string(setting), "[never]") {
		now := time.Now()
		began.Store(&now)
	}
})

// Used is told that the kernel is about to copy mem for this process or another. What is in
// mem does not change by it, whoever reads or writes it meanwhile.
func Used(mem []byte) {
	if len(mem) == 0 || began.Load() == nil {
		return
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	count := uint64(min(len(mem), again))
	for number, last := at/page, (at+uintptr(len(mem))-1)/page; number <= last; number++ {
		entry := &used[number%uintptr(len(used))]
		was := atomic.LoadUint64(entry)
		copied, seen := was&(seenTo-1), was&seenTo != 0
		switch {
		case was>>numberAt != uint64(number), seen && copied >= anew:
			release.Store64(entry, uint64(number)<<numberAt|count)
		case seen || copied < again:
			release.Store64(entry, was+count)
		case mayTake(time.Since(*began.Load())) && atomic.CompareAndSwapUint64(entry, was, was|seenTo):
			if !collapse(number * page) {
				release.Store64(entry, uint64(number)<<numberAt) // it is asked for again soon
			}
		}
	}
}

// mayTake tells whether there is time for one more page, that long after Begin.
func mayTake(elapsed time.Duration) bool {
	return time.Duration(spent.Load()) <= credit+elapsed/share
}

// collapse makes the page at that address huge. Where that is not possible, since memory of
// several kinds lies in it, it stays what it is. It is false where it may be possible later:
// somebody copies from or to it now.
func collapse(at uintptr) bool {
	start := time.Now()
	defer func() { spent.Add(int64(time.Since(start))) }()
	for range 4 {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, at, page, unix.MADV_COLLAPSE); errno != unix.EAGAIN {
			return true
		}
	}
	return false
}
