package pages

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Own tells whether all of b is memory that this process alone has: no file's, and not shared.
// Only of that does the book of its page table tell all that is written, and only that may get
// other pages: of others there is a second mapping, here or in another process.
func Own(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return false
	}
	defer f.Close()
	maps := asked(f)
	if _, known := maps(uint64(at(b))); !known {
		maps = read(f)
	}
	return ownBy(maps, b)
}

// ownBy is Own, with what tells of the mappings.
func ownBy(maps func(uint64) (mapping, bool), b []byte) bool {
	for next, end := uint64(at(b)), uint64(at(b)+len(b)); next < end; {
		m, known := maps(next)
		if !known || m.from > next || !m.own {
			return false
		}
		next = m.to
	}
	return true
}

// A mapping is what the system says of one.
type mapping struct {
	from, to uint64
	own      bool
}

// procmapQuery asks for the mapping at an address, on Linux from 6.11 on (ioctl PROCMAP_QUERY; its
// struct is procmap_query of linux/fs.h): in a microsecond, where to read of them all takes hundreds.
type procmapQuery struct {
	size, flags, at     uint64
	from, to, mode      uint64
	page, offset, inode uint64
	device              [2]uint32
	nameLen, buildLen   uint32
	name, build         uint64
}

const (
	ioctlProcmapQuery = 0xc0686611
	procmapShared     = 8 // in mode
)

// asked is the mapping at an address as f, which is of all mappings, tells it when asked.
func asked(f *os.File) func(uint64) (mapping, bool) {
	fd := f.Fd()
	return func(at uint64) (mapping, bool) {
		q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), at: at}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, ioctlProcmapQuery, uintptr(unsafe.Pointer(&q))); errno != 0 {
			return mapping{}, false
		}
		return mapping{q.from, q.to, q.mode&procmapShared == 0 && q.inode == 0}, true
	}
}

// read is the first mapping that ends after an address, as the lines of f tell it. The addresses
// that it is asked for grow.
func read(f io.Reader) func(uint64) (mapping, bool) {
	lines := bufio.NewScanner(f)
	return func(at uint64) (mapping, bool) {
		for lines.Scan() {
			fields := strings.Fields(lines.Text()) // from-to, mode, offset, device, inode, perhaps a name
			if len(fields) < 5 {
				break
			}
			low, high, _ := strings.Cut(fields[0], "-")
			from, err1 := strconv.ParseUint(low, 16, 64)
			to, err2 := strconv.ParseUint(high, 16, 64)
			if err1 != nil || err2 != nil {
				break
			}
			if to > at {
				return mapping{from, to, strings.HasSuffix(fields[1], "p") && fields[4] == "0"}, true
			}
		}
		return mapping{}, false
	}
}
