// Package plain reads files of the kernel as plain ones, without Go's poller: that would watch each of them, be told at once
// that it can be read, and wake a thread to hear it.
package plain

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// ReadFile is os.ReadFile for files in /proc and /sys.
func ReadFile(name string) ([]byte, error) {
	fd, err := retried(func() (int, error) { return unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 512)
	for {
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
		n, err := retried(func() (int, error) { return unix.Read(fd, text[len(text):cap(text)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		}
		if n <= 0 {
			return text, nil
		}
		text = text[:len(text)+n]
	}
}

// retried calls f until no signal is in its way.
func retried(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); err != unix.EINTR {
			return n, err
		}
	}
}

// Root is the file system of this host, of which files are read by ReadFile.
type Root struct{}

// Open implements [fs.FS]. It fails: there is ReadFile.
func (Root) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
}

// ReadFile implements [fs.ReadFileFS].
func (Root) ReadFile(name string) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return ReadFile("/" + name)
}
