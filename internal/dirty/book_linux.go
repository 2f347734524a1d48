package dirty

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/mpiv/mpiv/internal/pages"
	"golang.org/x/sys/unix"
)

// A Book is of this process's memory. It is for one goroutine at a time; those that
// write need not know of it.
type Book struct {
	faults  int // a userfaultfd: what is registered with it is watched
	pagemap *os.File
	page    uintptr
	regions []region
}

// From linux/userfaultfd.h.
const (
	uffdUserModeOnly = 1
	uffdAPI          = 0xaa
	uffdWriteProtect = 1 << 1 // of a registration

	featureUnpopulated = 1 << 13 // pages that are not there yet can be protected, too
	featureAsync       = 1 << 15 // a write to a protected page goes on by itself

	ioctlAPI        = 0xc018aa3f
	ioctlRegister   = 0xc020aa00
	ioctlUnregister = 0x8010aa01
)

type uffdioAPI struct{ api, features, ioctls uint64 }

type uffdioRange struct{ start, length uint64 }

type uffdioRegister struct{ start, length, mode, ioctls uint64 }

// From linux/fs.h.
const (
	ioctlPagemapScan = 0xc0606610
	scanProtect      = 1 << 0 // what is found is protected again, as one step
	scanCheckAsync   = 1 << 1 // fail where it is not watched
	pageWritten      = 1 << 1
)

type scan struct {
	size, flags                     uint64
	start, end, walkEnd             uint64
	vec, vecLen, maxPages           uint64
	inverted, mask, anyOf, returned uint64
}

type region struct{ start, end, categories uint64 }

// Open begins a book. [ErrUnsupported] if the system keeps none, or not for this user.
func Open() (*Book, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserModeOnly, 0, 0)
	if errno != 0 {
		return nil, fmt.Errorf("%w: userfaultfd: %w", ErrUnsupported, errno)
	}
	b := &Book{faults: int(fd), page: uintptr(os.Getpagesize()), regions: make([]region, 1024)}
	api := uffdioAPI{api: uffdAPI, features: featureUnpopulated | featureAsync}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		unix.Close(b.faults)
		return nil, fmt.Errorf("%w: write protection by userfaultfd: %w", ErrUnsupported, errno)
	}
	var err error
	if b.pagemap, err = os.Open("/proc/self/pagemap"); err != nil {
		unix.Close(b.faults)
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return b, nil
}

// Close ends the book: nothing is watched any more.
func (b *Book) Close() error { return errors.Join(unix.Close(b.faults), b.pagemap.Close()) }

// pages is the pages that lie in mem as a whole.
func (b *Book) pages(mem []byte) (from, to uintptr) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	from = (start + b.page - 1) &^ (b.page - 1)
	to = (start + uintptr(len(mem))) &^ (b.page - 1)
	return from, max(from, to)
}

// Watch has what is written to mem noted from now on. The memory must stay in use: hold
// on to mem until Close. Shared memory and files cannot be watched: what is written there through
// another mapping would not be noted.
func (b *Book) Watch(mem []byte) error {
	from, to := b.pages(mem)
	if from == to {
		return nil
	}
	if !pages.Own(mem) {
		return fmt.Errorf("watch %d bytes of memory: it is shared, or a file's", len(mem))
	}
	r := uffdioRegister{start: uint64(from), length: uint64(to - from), mode: uffdWriteProtect}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(b.faults), ioctlRegister, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("watch %d bytes of memory: %w", len(mem), errno)
	}
	_, err := b.Written(mem)
	return err
}

// Unwatch ends a Watch of mem: who writes there pays nothing any more.
func (b *Book) Unwatch(mem []byte) error {
	from, to := b.pages(mem)
	if from == to {
		return nil
	}
	r := uffdioRange{start: uint64(from), length: uint64(to - from)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(b.faults), ioctlUnregister, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("no longer watch %d bytes of memory: %w", len(mem), errno)
	}
	return nil
}

// Written is the parts of mem, which is watched, that were written to since Watch or the
// last call: whole pages, and always what lies at the ends in pages that are not all mem's.
func (b *Book) Written(mem []byte) ([]Range, error) {
	from, to := b.pages(mem)
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	if from == to {
		return add(nil, Range{0, len(mem)}), nil
	}
	written := add(nil, Range{0, int(from - start)})
	for at := uint64(from); at < uint64(to); {
		s := scan{flags: scanProtect | scanCheckAsync, start: at, end: uint64(to), vec: uint64(uintptr(unsafe.Pointer(&b.regions[0]))), vecLen: uint64(len(b.regions)),
			mask: pageWritten, returned: pageWritten}
		s.size = uint64(unsafe.Sizeof(s))
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, b.pagemap.Fd(), ioctlPagemapScan, uintptr(unsafe.Pointer(&s)))
		if errno != 0 {
			return nil, fmt.Errorf("ask which of %d bytes were written to: %w", len(mem), errno)
		}
		for _, r := range b.regions[:n] {
			written = add(written, Range{int(uintptr(r.start) - start), int(uintptr(r.end) - start)})
		}
		at = s.walkEnd
	}
	return add(written, Range{int(to - start), len(mem)}), nil
}
