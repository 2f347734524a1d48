package engine

import (
	"math/bits"
	"sync"
)

// buffers is a store of byte slices of sizes in powers of two, used again
// instead of garbage collected. What it holds is bounded for each size.
type buffers struct {
	slabs *slabs

	mu    sync.Mutex // guards what follows
	free  [bufferClasses][][]byte
	taken [bufferClasses]int // bytes of slabs: no more than are kept, since one buffer keeps its whole slab
}

const (
	smallestBuffer = 9 // 512 B
	bufferClasses  = 16
	classBytes     = 2 << 20   // kept for each size
	slabMost       = 256 << 10 // longer ones are not of slabs
)

func bufferClass(n int) int {
	if n <= 1<<smallestBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - smallestBuffer
}

// get is a slice of length n with unspecified contents.
func (b *buffers) get(n int) []byte {
	class := bufferClass(n)
	if class >= bufferClasses {
		return make([]byte, n)
	}
	b.mu.Lock()
	if f := b.free[class]; len(f) > 0 {
		s := f[len(f)-1]
		b.free[class] = f[:len(f)-1]
		b.mu.Unlock()
		return s[:n]
	}
	size := 1 << (class + smallestBuffer)
	ofSlab := size <= slabMost && b.taken[class]+size <= classBytes
	if ofSlab {
		b.taken[class] += size
	}
	b.mu.Unlock()
	if ofSlab {
		return b.slabs.take(size)[:n]
	}
	return make([]byte, n, size)
}

// put takes back what get gave.
func (b *buffers) put(s []byte) {
	class := bufferClass(cap(s))
	if class >= bufferClasses || cap(s) != 1<<(class+smallestBuffer) {
		return
	}
	b.mu.Lock()
	if len(b.free[class]) < max(4, classBytes>>(class+smallestBuffer)) {
		b.free[class] = append(b.free[class], s[:0])
	}
	b.mu.Unlock()
}
