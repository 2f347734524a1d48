package pages

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

var page = os.Getpagesize()

// Aside is memory of n bytes, all zero, for what comes before the program has any for it.
// It is given back by GiveBack or MoveInto.
func Aside(n int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	b := unsafe.Slice((*byte)(p), n)
	unix.Madvise(b, unix.MADV_HUGEPAGE)
	return b, nil
}

// GiveBack ends the use of b, which is of Aside, to its capacity.
func GiveBack(b []byte) {
	if cap(b) > 0 {
		unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b[:cap(b)])), uintptr(cap(b)))
	}
}

// MoveInto has into, which is as long, hold what b of Aside does, and gives b back. The
// system puts the pages of b in the place of those of into; only what does not fill a page
// is copied, and all if into is memory that has a second mapping.
func MoveInto(into, b []byte) {
	whole := len(b) / page * page
	if whole == 0 || at(into)%page != 0 || !Own(into) || remap(b[:whole], into) != 0 {
		copy(into, b)
		GiveBack(b)
		return
	}
	copy(into[whole:], b[whole:])
	GiveBack(b[whole:]) // where the others were may be somebody else's by now
}

func at(b []byte) int { return int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// remap has the system put the pages of b in the place of the first of into; or nothing is
// changed, as there are too many mappings.
func remap(b, into []byte) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(at(b)), uintptr(len(b)), uintptr(len(b)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(at(into)), 0)
	return errno
}
