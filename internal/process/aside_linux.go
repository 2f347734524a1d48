package process

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setAside is memory for a segment that comes before its rank does, when the program has
// none for it yet. It is given back by giveBack or moveInto.
func setAside(n int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	b := unsafe.Slice((*byte)(p), n)
	unix.Madvise(b, unix.MADV_HUGEPAGE)
	return b, nil
}

func giveBack(b []byte) {
	if len(b) > 0 {
		unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
	}
}

// moveInto has into, which is as long, hold what b does, and gives b back. The system puts
// the pages of b in the place of those of into; only what does not fill a page is copied.
func moveInto(into, b []byte) {
	page := uintptr(os.Getpagesize())
	whole := uintptr(len(b)) &^ (page - 1)
	if uintptr(unsafe.Pointer(unsafe.SliceData(into)))&(page-1) != 0 || whole == 0 {
		copy(into, b)
		giveBack(b)
		return
	}
	copy(into[whole:], b[whole:])
	_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(unsafe.Pointer(unsafe.SliceData(b))), whole, whole, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED,
		uintptr(unsafe.Pointer(unsafe.SliceData(into))), 0)
	if errno != 0 { // refused before anything was changed: there are too many mappings
		copy(into, b)
		giveBack(b)
		return
	}
	giveBack(b[whole:]) // where the others were may be somebody else's by now
}
