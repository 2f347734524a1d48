package process

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// largeFrom is from which length on memory that is about to be filled is worth large
// pages: the system then finds it in few steps.
const largeFrom = 4 << 20

// largePages asks for large pages in the memory of b. The system may have none.
func largePages(b []byte) {
	if len(b) < largeFrom {
		return
	}
	page := uintptr(os.Getpagesize())
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1)
	whole := b[skip:]
	unix.Madvise(whole[:uintptr(len(whole))&^(page-1)], unix.MADV_HUGEPAGE)
}
