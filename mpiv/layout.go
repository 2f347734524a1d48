package mpiv

import (
	"fmt"
	"unsafe"
)

// A layout is how a buffer is divided among the ranks of a Comm, in bytes:
// into equal blocks, into blocks as even as can be, or as counts and displs say.
type layout struct {
	elem   int   // bytes of an element
	parts  int   // number of blocks
	count  int   // elements: of each block, or of all if even
	even   bool  //
	counts []int // elements of each block, where it is not nil
	displs []int // first element of each block
	room   *scratch
}

// at is where block i begins and ends.
func (l *layout) at(i int) (lo, hi int) {
	switch {
	case l.counts != nil:
		return l.displs[i] * l.elem, (l.displs[i] + l.counts[i]) * l.elem
	case l.even:
		return l.start(i), l.start(i + 1)
	}
	return i * l.count * l.elem, (i + 1) * l.count * l.elem
}

// start is where block i of an even layout begins, without i*count overflowing.
func (l *layout) start(i int) int {
	q, r := l.count/l.parts, l.count%l.parts
	return (i*q + min(i, r)) * l.elem
}

// of is block i of b.
func (l *layout) of(b []byte, i int) []byte {
	lo, hi := l.at(i)
	return b[lo:hi:hi]
}

// span is the n blocks from i on; they must follow each other in memory.
func (l *layout) span(b []byte, i, n int) []byte {
	lo, _ := l.at(i)
	_, hi := l.at(i + n - 1)
	return b[lo:hi:hi]
}

func evenly(elem, count, parts int) layout {
	return layout{elem: elem, count: count, parts: parts, even: true}
}

func equal(elem, count, parts int) layout {
	return layout{elem: elem, count: count, parts: parts}
}

// arranged is the layout that a program gave for its buffer called what, of
// room elements. displs nil: the blocks follow each other. The layout must be
// freed.
func (s *series) arranged(what string, elem int, counts, displs []int, room int) (layout, error) {
	l := layout{elem: elem, parts: s.c.size, counts: counts, displs: displs}
	if len(counts) != s.c.size {
		return l, s.wants("the number of counts of "+what, len(counts), s.c.size)
	}
	if displs == nil {
		l.room = takeScratch(len(counts) * int(unsafe.Sizeof(int(0))))
		l.displs = unsafe.Slice((*int)(unsafe.Pointer(unsafe.SliceData(l.room.b))), len(counts))
		sum := 0
		for i, n := range counts {
			l.displs[i] = sum
			sum += max(n, 0)
		}
	} else if len(displs) != s.c.size {
		return l, s.wants("the number of displs of "+what, len(displs), s.c.size)
	}
	for i, n := range counts {
		if d := l.displs[i]; n < 0 || d < 0 || d > room || n > room-d {
			l.free()
			return l, s.fail(fmt.Errorf("%w: block %d of %s is elements %d to %d of %d", ErrCount, i, what, d, d+n, room))
		}
	}
	return l, nil
}

func (l *layout) free() {
	if l.room != nil {
		l.room.free()
		l.room, l.displs = nil, nil
	}
}

// put copies part to block i of b, unless it is that.
func (l *layout) put(b []byte, i int, part []byte) {
	if block := l.of(b, i); !same(block, part) {
		copy(block, part)
	}
}
