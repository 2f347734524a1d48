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
	bytes *int64 // written
}

// openTimings writes to the file of that name behind as many bytes as are written
// already, and counts on. Times are since began.
func openTimings(name string, written *int64, began time.Time) (*timings, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := cutBehind(f, *written); err != nil {
		f.Close()
		return nil, err
	}
	t := &timings{file: f, began: began, last: began, bytes: written}
	if *written > 0 {
		t.last = time.Now()
		return t, nil
	}
	// took_seconds is since the block before was written, by is who compressed it.
	if err := t.line("iteration,at_seconds,took_seconds,raw_bytes,compressed_bytes,by\n"); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

func (t *timings) line(format string, values ...any) error {
	n, err := fmt.Fprintf(t.file, format, values...)
	*t.bytes += int64(n)
	return err
}

// add writes the line of a block that was written now. Lines are written one by
// one, so that a plot can follow a run.
func (t *timings) add(h header, compressed int) error {
	if t == nil {
		return nil
	}
	now := time.Now()
	err := t.line("%d,%.6f,%.6f,%d,%d,%d\n",
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
