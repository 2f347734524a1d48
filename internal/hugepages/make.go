//go:build linux

package hugepages

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Make is n bytes that the kernel is asked to find in huge pages, as far as such lie in it: to
// find them one small page after the other takes ten times as long.
func Make(n int) []byte {
	b := make([]byte, n)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	if whole := (n - skip) &^ (page - 1); whole > 0 {
		unix.Madvise(b[skip:skip+whole], unix.MADV_HUGEPAGE) // in vain where the system does not have them
	}
	return b
}
