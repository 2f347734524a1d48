package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"
)

// pageLen is the length of a file's first page, its header, and what lengths
// are rounded up to.
const pageLen = 4 << 10

// create makes a file of size bytes with what write puts into its first page.
// Others see it complete or not at all. A file that is there is an error.
func create(path string, size int64, write func(header []byte)) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".mpiv-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	header := make([]byte, pageLen)
	write(header)
	err = reserve(f, 0, size)
	if err == nil {
		_, err = f.WriteAt(header, 0)
	}
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return f, nil
}

// open opens a file that begins with magic.
func open(path string, magic uint64) (*os.File, []byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	header, err := headerOf(f, magic)
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("open %s: %w", path, err)
	}
	return f, header, nil
}

func headerOf(f *os.File, magic uint64) ([]byte, error) {
	if err := long(f, pageLen); err != nil {
		return nil, err
	}
	header, err := mapped(f, 0, pageLen)
	if err != nil {
		return nil, err
	}
	if word(header, 0).Load() != magic {
		unmap(header)
		return nil, ErrCorrupt
	}
	return header, nil
}

// long tells whether f has n bytes at least; to touch what is mapped beyond the
// end of a file is a SIGBUS.
func long(f *os.File, n int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() < n {
		return ErrCorrupt
	}
	return nil
}

// word is the word at off of mem, in the byte order of this host: another would
// not find the magic. off is a multiple of 8.
func word(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8 : off+8][0]))
}
