package checkpoint

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes bytes off to off+n of f safe to write through a mapping: a store
// there would otherwise be a SIGBUS when the file system is full. After an error
// the file has the space that it had.
func reserve(f *os.File, off, n int64) error {
	// Beyond the limit the kernel would send a signal that ends the process.
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && uint64(off+n) > limit.Cur {
		return fmt.Errorf("reserve %d bytes at %d of %s: beyond the limit on file sizes (ulimit -f)", n, off, f.Name())
	}
	// What is written lies before the first hole, and stays if this fails.
	hole, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
	if err != nil {
		hole = off // beyond the end
	}
	// A signal, and the runtime sends some, undoes a step that is under way: a
	// long one might never end.
	for done := int64(0); done < n; {
		step := min(n-done, 4<<20)
		switch err := unix.Fallocate(int(f.Fd()), 0, off+done, step); {
		case err == nil:
			done += step
		case errors.Is(err, unix.EINTR):
		default:
			if fresh := off + done - hole; fresh > 0 {
				_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, hole, fresh)
			}
			switch {
			case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EDQUOT):
				err = ErrFull
			case errors.Is(err, unix.EOPNOTSUPP):
				err = fmt.Errorf("its file system cannot; use tmpfs: %w", err)
			}
			return fmt.Errorf("reserve %d bytes of %s: %w", n, f.Name(), err)
		}
	}
	return nil
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
