// Package dirty tells which pages of memory have been written to. The kernel keeps the
// book, so that who writes pays for the first write to a page alone; on Linux from 6.7
// on (userfaultfd with asynchronous write protection, and PAGEMAP_SCAN).
//
// What is written to several times between two looks is seen once. What is read is not
// seen, nor is a write that changes nothing distinguished from one that does.
package dirty

import "errors"

// ErrUnsupported says that this system does not keep the book.
var ErrUnsupported = errors.New("the system does not tell which pages were written to")

// A Range is bytes of a piece of memory, from From up to To.
type Range struct{ From, To int }

// Total is the bytes of ranges.
func Total(ranges []Range) (n int) {
	for _, r := range ranges {
		n += r.To - r.From
	}
	return n
}

// add appends r to ranges, to the last of them if it follows that.
func add(ranges []Range, r Range) []Range {
	if r.From >= r.To {
		return ranges
	}
	if n := len(ranges); n > 0 && ranges[n-1].To == r.From {
		ranges[n-1].To = r.To
		return ranges
	}
	return append(ranges, r)
}
