package spill

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Spill is a file without a name, of which parts are memory. Any goroutine may call.
type Spill struct {
	dir    string
	bound  int64
	failed func(error)
	full   atomic.Bool

	mu    sync.Mutex // guards what follows
	err   error      // there is no such file, and none will be made
	file  *os.File
	all   []byte
	used  int64
	taken int64 // of all, used or free
	free  [classes][][]byte
}

// New is a Spill of at most bound bytes in a directory for temporary files. The file is
// made by the first Take; failed is told if that cannot be, once, and must not call back.
func New(dir string, bound int64, failed func(error)) *Spill {
	s := &Spill{dir: dir, bound: bound, failed: failed}
	s.full.Store(bound < 1<<smallest)
	return s
}

// open makes the file. mu is held.
func (s *Spill) open() error {
	fd, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make a file without a name in %s: %w", s.dir, err)
	}
	file := os.NewFile(uintptr(fd), "spill")
	// Parts of one length are not used for another, so there is more room than may be
	// used. It is room in the address space only.
	size := 4 * (s.bound + 1<<smallest)
	if err = file.Truncate(size); err == nil {
		s.all, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("map %d bytes of a file in %s: %w", size, s.dir, err)
	}
	s.file = file
	return nil
}

// Take is a slice of length n or more, with unspecified contents; nil if it does not fit
// the bound or the disk, or there is no such memory.
func (s *Spill) Take(n int) []byte {
	class := max(bits.Len(uint(max(n, 1)-1)), smallest)
	length := int64(1) << class
	s.mu.Lock()
	defer s.mu.Unlock()
	if class >= classes+smallest || s.used+length > s.bound {
		return s.none()
	}
	if s.file == nil && s.err == nil {
		if s.err = s.open(); s.err != nil {
			s.failed(s.err)
		}
	}
	if s.err != nil {
		return nil
	}
	list := &s.free[class-smallest]
	if s.used == 0 && len(*list) == 0 && s.taken+length > int64(len(s.all)) { // all is free, in parts of other lengths
		s.taken, s.free = 0, [classes][][]byte{}
	}
	var b []byte
	switch k := len(*list); {
	case k > 0:
		b, *list = (*list)[k-1], (*list)[:k-1]
	case s.taken+length > int64(len(s.all)):
		return s.none()
	default:
		b = s.all[s.taken : s.taken+length : s.taken+length]
		s.taken += length
	}
	// The disk has room for it now or never: a write to memory could not fail.
	if unix.Fallocate(int(s.file.Fd()), 0, s.offset(b), length) != nil {
		s.punch(b) // there are file systems that keep what they had found of it
		*list = append(*list, b)
		return s.none()
	}
	s.used += length
	return b
}

// none is what Take gives where there is no room. Who waits for some waits for a Give, so
// it is full only if there is something to give back, or never was meant to hold anything.
// mu is held.
func (s *Spill) none() []byte {
	s.full.Store(s.used > 0 || s.bound < 1<<smallest)
	return nil
}

// Give gives back what Take gave.
func (s *Spill) Give(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.punch(b)
	class := bits.Len(uint(cap(b) - 1))
	s.free[class-smallest] = append(s.free[class-smallest], b[:cap(b)])
	s.used -= int64(cap(b))
	s.full.Store(false)
}

// punch gives the disk back what b has of it. mu is held.
func (s *Spill) punch(b []byte) {
	unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, s.offset(b), int64(cap(b)))
}

// Full tells whether the last Take found no room, and nothing was given back since. With
// nothing taken it is not full, unless its bound is less than any slice.
func (s *Spill) Full() bool { return s.full.Load() }

// Used is how many bytes are taken.
func (s *Spill) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Close gives all back. Nobody may use what was taken.
func (s *Spill) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(s.all), s.file.Close())
	s.all, s.file, s.err = nil, nil, os.ErrClosed
	return err
}

func (s *Spill) offset(b []byte) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.all))))
}
