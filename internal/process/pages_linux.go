package process

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From which length on memory that is about to be filled is worth being found at
// once, and in large pages.
const (
	populateFrom = 64 << 10
	largeFrom    = 4 << 20
)

// readyPages has the system find the memory of b in few steps, where it can.
func readyPages(b []byte) {
	if len(b) < populateFrom {
		return
	}
	page := uintptr(os.Getpagesize())
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1)
	whole := b[skip:]
	whole = whole[:uintptr(len(whole))&^(page-1)]
	if len(b) >= largeFrom { // and while the first of it comes, the rest is not waited for
		unix.Madvise(whole, unix.MADV_HUGEPAGE)
		return
	}
	unix.Madvise(whole, unix.MADV_POPULATE_WRITE)
}
