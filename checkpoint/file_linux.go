package checkpoint

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes bytes off to off+n of f safe to write through a mapping: a store
// there would otherwise be a SIGBUS when the file system is full.
func reserve(f *os.File, off, n int64) error {
	// Beyond the limit the kernel would send a signal that ends the process.
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && uint64(off+n) > limit.Cur {
		return fmt.Errorf("reserve %d bytes at %d of %s: beyond the limit on file sizes (ulimit -f)", n, off, f.Name())
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, off, n)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR): // the runtime's own signals; what was reserved is given back
			continue
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EDQUOT):
			return fmt.Errorf("reserve %d bytes of %s: %w", n, f.Name(), ErrFull)
		case errors.Is(err, unix.EOPNOTSUPP):
			return fmt.Errorf("reserve %d bytes of %s: its file system cannot; use tmpfs: %w", n, f.Name(), err)
		}
		return fmt.Errorf("reserve %d bytes of %s: %w", n, f.Name(), err)
	}
}

// mapped is bytes off to off+n of f as memory that is shared with all who map
// them. It is for unmap.
func mapped(f *os.File, off, n int64) ([]byte, error) {
	mem, err := unix.Mmap(int(f.Fd()), off, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of %s: %w", n, f.Name(), err)
	}
	return mem, nil
}

func unmap(mem []byte) {
	if err := unix.Munmap(mem); err != nil {
		panic("checkpoint: unmapped twice: " + err.Error())
	}
}

// populate takes the page faults now and together, where the kernel can
// (Linux 5.14). The memory must be reserved.
func populate(mem []byte) { _ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE) }

// holdAlone gives this process the sole right to write, until f is closed.
func holdAlone(f *os.File) error {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("write to %s: %w", f.Name(), ErrBusy)
		default:
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
