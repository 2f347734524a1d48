package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// openTree is the directory dir and all in it as a tar stream. A file with
// several links is in it several times; sockets are left out, with a warning.
func openTree(dir string) *source {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(writeTree(w, dir))
	}()
	return &source{r, 0, func() error {
		r.Close() // ends the goroutine's writing
		<-done
		return nil
	}}
}

// writeTree writes dir under its own last name, so that it can be unpacked
// anywhere.
func writeTree(w io.Writer, dir string) error {
	base, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target // the walk does not follow links, but the argument may be one
	}
	base = filepath.Base(base)
	tw, buf := tar.NewWriter(w), make([]byte, 256<<10)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return addToTar(tw, path, filepath.ToSlash(filepath.Join(base, rel)), d, buf)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func addToTar(tw *tar.Writer, path, name string, d fs.DirEntry, buf []byte) error {
	fi, err := d.Info()
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSocket != 0 {
		fmt.Fprintf(os.Stderr, "compress: %s is a socket and was left out\n", path)
		return nil
	}
	var target string
	if fi.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(fi, target)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	h.Name = name
	if fi.IsDir() {
		h.Name += "/"
	}
	h.Format = tar.FormatPAX // for names of any length and times of any precision
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if err := tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !fi.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.CopyBuffer(tw, io.LimitReader(f, h.Size), buf)
	if err == nil && n < h.Size {
		err = shorter(path, n, h.Size)
	}
	return err
}
