package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A file that is being written is locked by the process that does, so that one which
// a killed process has left behind can be told from one that is in use.

// dying is how long a process may take to end after its job has gone on without it.
const dying = 3 * time.Second

// createTemp opens an empty file of that name. A process that is being killed may still write
// to it, for so long: a rank that goes on from its beginning waits for that.
func createTemp(name string, patience time.Duration) (*os.File, error) {
	f, err := lockTemp(name, os.O_CREATE, unix.LOCK_NB)
	for end := time.Now().Add(patience); errors.Is(err, unix.EWOULDBLOCK); f, err = lockTemp(name, os.O_CREATE, unix.LOCK_NB) {
		if time.Now().After(end) {
			return nil, fmt.Errorf("another process is writing %s; name another output with -o", name)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	return f, cutBehind(f, 0)
}

// reopenTemp opens the file of that name behind its first written bytes. Whoever
// writes to it closes it soon. If it had its final name already, it loses that again.
func reopenTemp(name, final string, written int64) (*os.File, error) {
	f, err := lockTemp(name, 0, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(final, name); err != nil {
			return nil, fmt.Errorf("go on writing %s, which must be on a file system that all hosts share: %w", name, fs.ErrNotExist)
		}
		f, err = lockTemp(name, 0, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := cutBehind(f, written); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockTemp opens and locks the file that has that name once it is locked.
func lockTemp(name string, flags, how int) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|flags, 0o666)
		if err != nil {
			return nil, err
		}
		if err := flock(f, unix.LOCK_EX|how); err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		locked, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if now, err := os.Stat(name); err == nil && os.SameFile(locked, now) {
			return f, nil
		}
		f.Close() // who had it before has renamed or removed it
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// cutBehind drops what f has behind its first n bytes, and writes from there.
func cutBehind(f *os.File, n int64) error {
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return err
	}
	if fi.Size() < n {
		return fmt.Errorf("%s has %d bytes, and should have %d by now", f.Name(), fi.Size(), n)
	}
	if err := f.Truncate(n); err != nil {
		return err
	}
	_, err = f.Seek(n, io.SeekStart)
	return err
}
