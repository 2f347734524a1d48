// Package whole writes files of which nobody sees a part.
package whole

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Write has the file at path hold what write writes to f: all of that or, after an error, what was
// there before. A link stays one. A file that is there keeps its permissions; a new one has what the
// umask leaves of perm. A pipe or a device is written to as it is; a pipe that nobody reads is an error.
func Write(path string, perm fs.FileMode, write func(f *os.File) error) error {
	if leads, err := filepath.EvalSymlinks(path); err == nil {
		path = leads
	} else if leads, err := os.Readlink(path); err == nil { // to what is not there yet
		if !filepath.IsAbs(leads) {
			leads = filepath.Join(filepath.Dir(path), leads)
		}
		path = leads
	}
	old, was := os.Stat(path)
	if was == nil && !old.Mode().IsRegular() {
		return writeTo(path, write)
	}
	next := filepath.Join(filepath.Dir(path), ".mpiv-"+rand.Text())
	f, err := os.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	defer os.Remove(next)
	if was == nil {
		err = f.Chmod(old.Mode().Perm())
	}
	if err == nil {
		err = write(f)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(next, path)
}

func writeTo(path string, write func(f *os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // to open a pipe must not wait for who reads it
	if err != nil {
		return err
	}
	err = write(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
