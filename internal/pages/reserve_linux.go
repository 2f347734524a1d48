package pages

import (
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Reserve is memory that the system has found already: what is taken from it costs no
// time. The zero Reserve is empty.
type Reserve struct {
	mu      sync.Mutex
	left    []byte // in a mapping of its own
	found   int    // so much of left, at its front, is ready
	filling bool
	empty   bool // all of left is to be given back
}

// underFrom is the shortest that is worth a mapping of its own: a process may have so many only.
const underFrom = 512 << 10

// Fill has r hold n bytes, or fewer where the host cannot give twice as much: of those that it lacks the
// system is asked for one page after the other, until stopped is closed or r is emptied. Call it in a goroutine
// of its own: its thread gives way to others, and ends with it. It returns at once if r is being filled. short: the
// host has too little.
func (r *Reserve) Fill(n int, stopped <-chan struct{}) (short bool) {
	return r.fill(n, stopped, Available)
}

func (r *Reserve) fill(n int, stopped <-chan struct{}, available func() (int64, bool)) (short bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.filling { // and goes on, if it was emptied meanwhile
		r.empty = false
		return false
	}
	r.filling, r.empty = true, false
	defer r.filled()
	if !r.grow((n + page - 1) / page * page) {
		return true
	}
	runtime.LockOSThread()
	unix.Setpriority(unix.PRIO_PROCESS, 0, behind)
	first, known := available()
	for i := 0; r.found < len(r.left) && !r.empty; i++ {
		if known && i%lookEvery == 0 {
			if now, _ := available(); now <= first/2 { // several may fill at once: all together leave half
				GiveBack(r.left[r.found:])
				r.left = r.left[:r.found:r.found]
				return true
			}
		}
		next := r.left[r.found:min(r.found+step, len(r.left))]
		r.mu.Unlock()
		touch(next)
		r.mu.Lock()
		r.found += len(next)
		select {
		case <-stopped:
			r.empty = true
		default:
		}
	}
	return false
}

const (
	behind    = 10 // the priority of who fills: a tenth of others'
	lookEvery = 16 // steps: is there enough for others?
)

// touch has the system find the pages of b. It asks for a few at a time, since other calls for memory
// wait until those are found.
func touch(b []byte) {
	const few = 16
	for len(b) > 0 {
		part := b[:min(few*page, len(b))]
		b = b[len(part):]
		if unix.Madvise(part, unix.MADV_POPULATE_WRITE) != nil {
			for i := 0; i < len(part); i += page {
				part[i] = 0
			}
		}
	}
}

// grow makes left as long as that; what it has stays.
func (r *Reserve) grow(n int) bool {
	switch {
	case len(r.left) >= n:
	case len(r.left) == 0:
		b, err := Aside(n)
		if err != nil {
			return false
		}
		r.left = b
	default:
		p, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(at(r.left)), uintptr(len(r.left)), uintptr(n), unix.MREMAP_MAYMOVE, 0, 0)
		if errno != 0 {
			return false
		}
		r.left = unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n) // p is none of the collector's
	}
	return true
}

// filled is told that nobody fills r any more.
func (r *Reserve) filled() {
	r.filling = false
	if r.empty {
		r.giveBack()
	}
}

// Empty gives back what is left.
func (r *Reserve) Empty() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.empty = true; !r.filling {
		r.giveBack()
	}
}

func (r *Reserve) giveBack() {
	GiveBack(r.left)
	r.left, r.found = nil, 0
}

// Aside is memory of r, as that of the function Aside; false if there is not as much.
func (r *Reserve) Aside(n int) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := (n + page - 1) / page * page
	if n >= step { // so that the next begins with a huge page, too
		whole = min((n+step-1)/step*step, max(whole, r.found))
	}
	if n == 0 || r.empty || r.found < whole {
		return nil, false
	}
	return r.take(whole)[:n], true
}

// Under puts memory of r in the place of b's, which then is zero, and tells whether there
// was as much. Only whole pages are replaced: the bytes in others stay.
func (r *Reserve) Under(b []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := len(b) / page * page
	if len(b) < underFrom || at(b)%page != 0 || r.empty || r.found < whole || !Own(b) || remap(r.left[:whole], b) != 0 {
		return false
	}
	r.take(whole)
	return true
}

func (r *Reserve) take(n int) []byte {
	b := r.left[:n:n]
	r.left, r.found = r.left[n:], r.found-n
	return b
}
