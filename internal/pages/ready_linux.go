package pages

import (
	"sync"

	"golang.org/x/sys/unix"
)

// From which length on memory that is about to be filled is worth being found at
// once, and in large pages.
const (
	readyFrom = 64 << 10
	largeFrom = 4 << 20
	step      = 2 << 20
)

// Ready has the system find the memory of b in few steps, where it can: of a large
// b in a goroutine of g, while the first of it comes.
func Ready(b []byte, g *sync.WaitGroup) {
	if len(b) < readyFrom {
		return
	}
	whole := wholePages(b)
	if len(b) < largeFrom {
		unix.Madvise(whole, unix.MADV_POPULATE_WRITE)
		return
	}
	unix.Madvise(whole, unix.MADV_HUGEPAGE)
	g.Go(func() {
		for len(whole) > 0 { // in parts, since what comes waits for the system as long as it looks for a part
			n := min(len(whole), step)
			if unix.Madvise(whole[:n], unix.MADV_POPULATE_WRITE) != nil {
				return // it is found when it is written
			}
			whole = whole[n:]
		}
	})
}

// Copy is a copy of b, which may be a file's. The system finds the memory of both in few steps.
func Copy(b []byte) []byte {
	c := make([]byte, len(b))
	if len(b) >= readyFrom {
		unix.Madvise(wholePages(c), unix.MADV_POPULATE_WRITE)
		unix.Madvise(wholePages(b), unix.MADV_POPULATE_READ)
	}
	copy(c, b)
	return c
}

// wholePages is those of b, which is no shorter than one.
func wholePages(b []byte) []byte {
	whole := b[-at(b)&(page-1):]
	return whole[:len(whole)/page*page]
}
