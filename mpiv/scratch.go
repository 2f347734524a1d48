package mpiv

import (
	"math/bits"
	"sync"
	"unsafe"
)

// A scratch is room that a collective needs for a moment, aligned for any
// element.
type scratch struct {
	b     []byte
	class int8
}

const (
	smallestScratch = 9  // 512 B
	scratchClasses  = 18 // up to 64 MiB; what is larger is not kept
)

// scratches are free, by class; the garbage collector takes what is not used.
var scratches [scratchClasses]sync.Pool

// takeScratch is room for n bytes; none for 0.
func takeScratch(n int) *scratch {
	if n == 0 {
		return noScratch
	}
	class := 0
	if n > 1<<smallestScratch {
		class = bits.Len(uint(n-1)) - smallestScratch
	}
	if class >= scratchClasses {
		return &scratch{make([]byte, n), -1}
	}
	s, _ := scratches[class].Get().(*scratch)
	if s == nil {
		s = &scratch{make([]byte, 1<<(class+smallestScratch)), int8(class)}
	}
	s.b = s.b[:n]
	return s
}

var noScratch = &scratch{class: -1}

// free gives the room back; s must not be used again.
func (s *scratch) free() {
	if s.class >= 0 {
		scratches[s.class].Put(s)
	}
}

// freeUnless is free, unless the collective failed with *err: then a message
// may still come to the room, where the whole job has failed.
func (s *scratch) freeUnless(err *error) {
	if *err == nil || *err == errLater {
		s.free()
	}
}

// overlap tells whether two pieces of memory have a byte in common.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	p, q := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return p < q+uintptr(len(b)) && q < p+uintptr(len(a))
}

// same tells whether two pieces of memory are one.
func same(a, b []byte) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}
