package main

import (
	"fmt"
	"os"
	"time"
)

// timings are a line of CSV for each block, in the order of the input.
type timings struct {
	file  *os.File
	began time.Time
	last  time.Time
}

func newTimings(name string) (*timings, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &timings{file: f, began: now, last: now}
	// took_seconds is since the block before was written, by is who compressed it.
	if _, err := fmt.Fprintln(f, "iteration,at_seconds,took_seconds,raw_bytes,compressed_bytes,by"); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

// add writes the line of a block that was written now. Lines are written one by
// one, so that a plot can follow a run.
func (t *timings) add(h header, compressed int) error {
	if t == nil {
		return nil
	}
	now := time.Now()
	_, err := fmt.Fprintf(t.file, "%d,%.6f,%.6f,%d,%d,%d\n",
		h.seq, now.Sub(t.began).Seconds(), now.Sub(t.last).Seconds(), h.raw, compressed, h.by)
	t.last = now
	return err
}

// close closes the file. Twice is harmless.
func (t *timings) close() error {
	if t == nil || t.file == nil {
		return nil
	}
	f := t.file
	t.file = nil
	return f.Close()
}
