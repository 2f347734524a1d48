package main

import (
	"bytes"
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

// How long a file may stay locked: by a process that is to end since its job has gone on
// without it, and by one that a rank has left.
const (
	dying   = 3 * time.Second
	leaving = 30 * time.Second
)

// createTemp opens an empty file of that name. A process that is being killed may still write
// to it, for so long: a rank that goes on from its beginning waits for that.
func createTemp(name string, patience time.Duration) (*os.File, error) {
	f, err := lockTemp(name, os.O_CREATE, patience)
	if err != nil {
		return nil, err
	}
	if err := cutBehind(f, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// tailBytes is how much of what was written is looked at before more is written behind it.
const tailBytes = 64

// reopenTemp opens the file of that name behind its first written bytes, the last of which
// are tail: no other file is touched. If it had its final name already, it loses that again.
func reopenTemp(name, final string, written int64, tail []byte) (*os.File, error) {
	f, err := lockTemp(name, 0, leaving)
	if errors.Is(err, fs.ErrNotExist) {
		if err := takeBack(name, final, written, tail); err != nil {
			return nil, err
		}
		f, err = lockTemp(name, 0, leaving)
	}
	if err != nil {
		return nil, err
	}
	if err = endsWith(f, written, tail); err == nil {
		err = cutBehind(f, written)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// takeBack gives the file that has its final name that of one being written.
func takeBack(name, final string, written int64, tail []byte) error {
	f, err := os.Open(final)
	if err == nil {
		err = endsWith(f, written, tail)
		f.Close()
	}
	if err == nil {
		err = os.Rename(final, name)
	}
	if err != nil {
		return fmt.Errorf("go on writing %s, which must be on a file system that all hosts share: %w", name, err)
	}
	return nil
}

// endsWith is nil if the first n bytes of f end with tail.
func endsWith(f *os.File, n int64, tail []byte) error {
	there := make([]byte, len(tail))
	if _, err := f.ReadAt(there, n-int64(len(tail))); err == io.EOF {
		return tooShort(f, n)
	} else if err != nil {
		return err
	}
	if !bytes.Equal(there, tail) {
		return fmt.Errorf("%s has something else in its first %d bytes than was written", f.Name(), n)
	}
	return nil
}

// lockTemp opens and locks the regular file that has that name once it is locked, for
// which it waits for so long.
func lockTemp(name string, flags int, patience time.Duration) (*os.File, error) {
	for end := time.Now().Add(patience); ; {
		// A link would lead to a file that was never meant.
		f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o666)
		if err != nil {
			return nil, err
		}
		if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			if time.Now().After(end) {
				return nil, fmt.Errorf("another process is writing %s; name another output with -o", name)
			}
			time.Sleep(10 * time.Millisecond)
			continue
		} else if err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		locked, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if !locked.Mode().IsRegular() {
			f.Close()
			return nil, fmt.Errorf("%s is no regular file", name)
		}
		if now, err := os.Lstat(name); err == nil && os.SameFile(locked, now) {
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
		return tooShort(f, n)
	}
	if err := f.Truncate(n); err != nil {
		return err
	}
	_, err = f.Seek(n, io.SeekStart)
	return err
}

func tooShort(f *os.File, n int64) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return fmt.Errorf("%s has %d bytes, and should have %d by now", f.Name(), fi.Size(), n)
}
