package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// A source is the input, whatever it comes from.
type source struct {
	io.Reader
	total int64 // bytes to come; 0 if unknown
	close func() error
}

func (s *source) Close() error { return s.close() }

// errNoInput: a rank that begins again in another process has nothing there, and must
// not take it for an empty input.
var errNoInput = errors.New("standard input is /dev/null: pipe something in, or name a file; name one also if this rank goes on in another process, where what was read of standard input cannot be read again")

func isNull(f *os.File) bool {
	fi, err := f.Stat()
	null, nullErr := os.Stat(os.DevNull)
	return err == nil && nullErr == nil && os.SameFile(fi, null)
}

func openSource(opt options) (*source, error) {
	if opt.source != nil {
		return opt.source()
	}
	if opt.iterations > 0 {
		n := int64(opt.iterations) * int64(opt.block)
		return &source{io.LimitReader(newGenerator(opt.seed, opt.compressibility, n), n), n, func() error { return nil }}, nil
	}
	if opt.input == "-" {
		if opt.state != nil && isNull(os.Stdin) {
			return nil, errNoInput
		}
		return &source{os.Stdin, 0, func() error { return nil }}, nil
	}
	fi, err := os.Stat(opt.input)
	if err != nil {
		return nil, err
	}
	if fi.IsDir() {
		return openTree(opt.input), nil
	}
	f, err := os.Open(opt.input)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return &source{f, 0, f.Close}, nil
	}
	return &source{&wholeFile{File: f, size: fi.Size()}, fi.Size(), f.Close}, nil
}

// rereadable tells whether the input can be read again, in another process too.
func (o options) rereadable() bool {
	if o.iterations > 0 {
		return true
	}
	fi, err := os.Stat(o.input)
	return o.input != "-" && err == nil && (fi.IsDir() || fi.Mode().IsRegular())
}

// A wholeFile is a file that must not become shorter while it is read. What is
// appended meanwhile is read too.
type wholeFile struct {
	*os.File
	size, got int64
}

func (f *wholeFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.got += int64(n)
	if errors.Is(err, io.EOF) && f.got < f.size {
		return n, shorter(f.Name(), f.got, f.size)
	}
	return n, err
}

func shorter(name string, got, size int64) error {
	return &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("it ended after %d bytes, but had %d when it was opened", got, size)}
}
