package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// An output is where the frames go. A regular file is written under another
// name beside it, until finish gives it its own.
type output struct {
	w     io.Writer
	file  *os.File // nil: nothing to close
	name  string
	temp  string // "": written in place
	force bool
}

func (o *output) Write(p []byte) (int, error) { return o.w.Write(p) }

// openOutput opens what is written to, behind as many bytes as are written already by
// processes that the rank was in before, if again, the last of which are tail.
func openOutput(opt options, again bool, written int64, tail []byte) (*output, error) {
	switch opt.output {
	case "":
		return &output{w: io.Discard}, nil
	case "-":
		if isTerminal(os.Stdout) {
			return nil, errors.New("standard output is a terminal; name a file with -o or redirect it")
		}
		return &output{w: os.Stdout}, nil
	}
	o := &output{name: opt.output, force: opt.force}
	if target, err := filepath.EvalSymlinks(o.name); err == nil {
		o.name = target
	}
	temp := filepath.Join(filepath.Dir(o.name), "."+filepath.Base(o.name)+".part")
	fi, err := os.Stat(o.name)
	switch {
	case err == nil && fi.IsDir():
		return nil, fmt.Errorf("%s is a directory", opt.output)
	case err == nil && !fi.Mode().IsRegular(): // a device or a pipe
		o.file, err = os.OpenFile(o.name, os.O_WRONLY, 0)
	case written > 0, again && err == nil && !opt.force: // it was not there when they began
		o.temp = temp
		o.file, err = reopenTemp(temp, o.name, written, tail)
	case err == nil && !opt.force:
		return nil, existsError(o.name)
	case err == nil || errors.Is(err, fs.ErrNotExist):
		o.temp = temp
		o.file, err = createTemp(temp, dying)
	}
	if err != nil {
		return nil, err
	}
	o.w = o.file
	return o, nil
}

// rewritable tells whether what was written can be written again.
func (o *output) rewritable() bool { return o.file == nil && o.w == io.Discard || o.temp != "" }

func existsError(name string) error { return fmt.Errorf("%s exists already; -f replaces it", name) }

// verify reads what was written, and fails if it is not what has the checksum
// want when it is decompressed.
func (o *output) verify(want [sha256.Size]byte) error {
	if o.temp == "" {
		return fmt.Errorf("%s cannot be read again to verify it", o.name)
	}
	if _, err := o.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := verifyFrames(o.file, want); err != nil {
		return fmt.Errorf("verify %s: %w", o.name, err)
	}
	return nil
}

func verifyFrames(r io.Reader, want [sha256.Size]byte) error {
	d, err := zstd.NewReader(bufio.NewReaderSize(r, 1<<20))
	if err != nil {
		return err
	}
	defer d.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, d); err != nil {
		return err
	}
	if got := sum.Sum(nil); string(got) != string(want[:]) {
		return fmt.Errorf("decompresses to something with SHA-256 %x, the input has %x", got, want)
	}
	return nil
}

// finish makes the output whole: it is there under its name, or not at all.
func (o *output) finish() error {
	if o.file == nil {
		return nil
	}
	if o.temp != "" {
		if _, err := os.Lstat(o.name); err == nil && !o.force {
			o.abandon()
			return existsError(o.name)
		}
		if err := os.Rename(o.temp, o.name); err != nil { // while it is locked
			o.abandon()
			return err
		}
	}
	err := o.file.Close()
	o.file = nil
	if err != nil && o.temp != "" {
		os.Remove(o.name)
	}
	return err
}

// abandon removes what was written, unless finish has been called.
func (o *output) abandon() {
	if o.file != nil && o.temp != "" {
		os.Remove(o.temp)
	}
	o.leave()
}

// leave closes what another process goes on writing to. It may be nil.
func (o *output) leave() {
	if o != nil && o.file != nil {
		o.file.Close()
		o.file = nil
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
