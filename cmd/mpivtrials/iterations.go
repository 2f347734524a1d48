//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gonum.org/v1/plot/plotter"
)

// The application of the experiments is examples/compress: blocks of 524 kB that go through
// four ranks, 0 who reads, 1 and 2 who compress, 3 who writes. A block is an iteration.
const (
	blockBytes = 524_000
	iterations = 100_000 // more than any run has time for: it is ended
)

// compressor is the command line of the application, which notes its iterations in a file.
func (d *desk) compressor(percent int, csv string) []string {
	return []string{filepath.Join(d.bin, "compress"), "-q", "--iterations", fmt.Sprint(iterations), "--block", fmt.Sprint(blockBytes),
		"--compressibility", fmt.Sprint(percent), "--csv", csv}
}

// An iteration is one that was done.
type iteration struct {
	at time.Time // it was seen in the file, at most lookAtFile after it was written
	by int       // who compressed it
}

const lookAtFile = 2 * time.Millisecond

// A logbook reads the file that the application writes, while it does.
type logbook struct {
	name string
	stop context.CancelFunc
	done chan struct{}

	mu  sync.Mutex // guards what follows
	all []iteration
	err error
}

func readIterations(name string) *logbook {
	ctx, stop := context.WithCancel(context.Background())
	b := &logbook{name: name, stop: stop, done: make(chan struct{})}
	go b.loop(ctx)
	return b
}

func (b *logbook) loop(ctx context.Context) {
	defer close(b.done)
	tick := time.NewTicker(lookAtFile)
	defer tick.Stop()
	var file *os.File
	var lines *bufio.Reader
	part := ""
	for {
		select {
		case <-ctx.Done():
			if file != nil {
				file.Close()
			}
			return
		case <-tick.C:
		}
		if file == nil {
			f, err := os.Open(b.name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				b.fail(err)
				return
			}
			file, lines = f, bufio.NewReader(f)
		}
		for {
			text, err := lines.ReadString('\n')
			if part += text; err != nil { // so far
				break
			}
			b.take(strings.TrimSpace(part))
			part = ""
		}
	}
}

func (b *logbook) take(line string) {
	if strings.HasPrefix(line, "iteration,") {
		return
	}
	number, by, err := parseIteration(line)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && number != len(b.all) {
		err = fmt.Errorf("iteration %d follows %d", number, len(b.all)-1)
	}
	if err != nil {
		b.err = errors.Join(b.err, err)
		return
	}
	b.all = append(b.all, iteration{time.Now(), by})
}

// parseIteration reads a line of the application's CSV: which iteration it is of, and who
// compressed it.
func parseIteration(line string) (number, by int, err error) {
	var at, took float64
	var raw, compressed int
	if _, err := fmt.Sscanf(line, "%d,%g,%g,%d,%d,%d", &number, &at, &took, &raw, &compressed, &by); err != nil {
		return 0, 0, fmt.Errorf("%q is no line of an iteration: %w", line, err)
	}
	return number, by, nil
}

func (b *logbook) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = errors.Join(b.err, err)
}

// read is the iterations so far.
func (b *logbook) read() ([]iteration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all, b.err // they are only ever appended
}

func (b *logbook) close() { b.stop(); <-b.done }

// mean is how long an iteration took, of those done between two times; what was begun and not
// done counts as part of one. NaN: there is no time between them.
func mean(all []iteration, from, to time.Time) float64 {
	long := to.Sub(from).Seconds()
	if long <= 0 {
		return math.NaN()
	}
	n := 0
	for _, it := range all {
		if it.at.After(from) && !it.at.After(to) {
			n++
		}
	}
	if n == 0 {
		return long // at least
	}
	return long / float64(n)
}

// settleWindow is how many iterations must take no longer than usual, together, to call a
// job settled.
const settleWindow = 20

// settledAt is when the first of settleWindow iterations began, from a time on, that took at most
// most seconds each; zero: there were none.
func settledAt(all []iteration, from time.Time, most float64) time.Time {
	for i := range all {
		if all[i].at.Before(from) || i+settleWindow >= len(all) {
			continue
		}
		if all[i+settleWindow].at.Sub(all[i].at).Seconds() <= most*settleWindow {
			return all[i].at
		}
	}
	return time.Time{}
}

// curve is how long iterations took, by the seconds since a time. Those done within a quarter of
// a second are one point, their mean: many are written at once when the one that was missing comes.
func curve(all []iteration, zero time.Time) (points plotter.XYs) {
	const width = 250 * time.Millisecond
	for i := 0; i < len(all)-1; {
		k := i + 1
		for k < len(all)-1 && all[k].at.Sub(all[i].at) < width {
			k++
		}
		points = append(points, plotter.XY{X: all[k].at.Sub(zero).Seconds(), Y: all[k].at.Sub(all[i].at).Seconds() / float64(k-i)})
		i = k
	}
	return points
}
