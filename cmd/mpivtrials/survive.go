//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// survivors is the programs that survive can run: what they print, or write to a file
// whose name follows, depends on their arguments alone.
var survivors = map[string][]string{
	"compress": {"-q", "-f", "--iterations", "4000", "--block", "256kB", "-o"},
	"farm":     {"-below", "8000000"},
	"heat2d":   {"--tolerance", "1e-5"},
}

const (
	surviveRanks  = 4
	surviveSpares = 2
	surviveTime   = 90 * time.Second // that a job may take, disturbed as it is

	patience = 20 * time.Second // for a job to be ready for the next thing

	detectBar = 50  // ms
	goesOnBar = 200 // ms
)

// A disturber does what is drawn to jobs, and notes it.
type disturber struct {
	d    *desk
	rand *rand.Rand
	left int // kills

	done  map[deed]int
	runs  int
	wrong int // of these: another exit code than 0, or another output
	kills []kill
	spare int // killed

	mu     sync.Mutex     // guards what follows
	moves  int            // that were done
	stayed map[string]int // that were not, by reason
}

func survive(ctx context.Context, d *desk) error {
	replay := fmt.Sprintf("mpivtrials -seed %d -kills %d -transport %s -program %s survive", d.seed, d.kills, d.transport, d.program)
	want, err := d.undisturbed(ctx)
	if err != nil {
		return fmt.Errorf("an undisturbed run: %w", err)
	}
	w := &disturber{d: d, rand: rand.New(rand.NewPCG(d.seed, 0)), left: d.kills, done: map[deed]int{}, stayed: map[string]int{}}
	for w.left > 0 && err == nil {
		before := w.left
		if err = w.run(ctx, want); err == nil && w.left == before && w.runs > d.kills+10 {
			err = errors.New("the jobs end before anything can be killed: has the program too little to do?")
		}
	}
	err = errors.Join(err, w.report())
	if err != nil || !d.kept {
		d.note("again: %s", replay)
	}
	return err
}

// survivorOptions is the command line of mpivrun.
func (d *desk) survivorOptions() []string {
	all := append([]string{"-n", strconv.Itoa(surviveRanks), "--spares", strconv.Itoa(surviveSpares), "--snapshot", "0.2",
		"--transport", d.transport, "--timeout", strconv.Itoa(int(surviveTime / time.Second)), filepath.Join(d.bin, d.program)}, survivors[d.program]...)
	if d.survivorWrites() {
		all = append(all, d.survivorFile())
	}
	return all
}

func (d *desk) survivorWrites() bool { return slices.Contains(survivors[d.program], "-o") }

func (d *desk) survivorFile() string { return d.file(".output") }

// survivorResult is what the program has printed, or a sum of what it has written.
func (d *desk) survivorResult(s *survivor) ([]byte, error) {
	if !d.survivorWrites() {
		return []byte(s.stdout.whole()), nil
	}
	file, err := os.ReadFile(d.survivorFile())
	if err != nil || len(file) == 0 {
		return nil, err
	}
	if err := os.Remove(d.survivorFile()); err != nil { // the next run has to write it
		return nil, err
	}
	return fmt.Appendf(nil, "%d bytes, sum %x\n", len(file), sha256.Sum256(file)), nil
}

// undisturbed is what comes of the program.
func (d *desk) undisturbed(ctx context.Context) ([]byte, error) {
	s, err := startSurvivor(ctx, filepath.Join(d.bin, "mpivrun"), d.survivorOptions()...)
	if err != nil {
		return nil, err
	}
	<-s.done
	if s.err != nil {
		return nil, fmt.Errorf("mpivrun: %w; it said: %s", s.err, s.stderr.text())
	}
	got, err := d.survivorResult(s)
	if err == nil && len(got) == 0 {
		err = errors.New("there is nothing that could be compared")
	}
	return got, err
}

// run disturbs one job from its start to its end.
func (w *disturber) run(ctx context.Context, want []byte) error {
	s, err := startSurvivor(ctx, filepath.Join(w.d.bin, "mpivrun"), w.d.survivorOptions()...)
	if err != nil {
		return err
	}
	w.runs++
	var others sync.WaitGroup // moves and stops that go on
	var kills []kill
	err = s.await(ctx, patience, s.runningLocked)
	for err == nil && w.left > 0 {
		var ks []kill
		a := draw(w.rand, surviveRanks)
		if err = s.pause(ctx, a.after); err == nil {
			ks, err = w.do(ctx, s, a, &others)
		}
		kills = append(kills, ks...)
		w.left -= len(ks)
	}
	<-s.done
	others.Wait()
	judgeKills(kills, s.past)
	w.kills = append(w.kills, kills...)
	if err != nil && !over(err) {
		return err
	}
	got, err := w.d.survivorResult(s)
	if s.err == nil && err != nil {
		return err
	}
	if s.err != nil || !bytes.Equal(got, want) {
		w.wrong++
		return w.keep(s, kills, got, want)
	}
	return nil
}

// keep tells what went wrong in a job, and leaves its events in the directory of
// results.
func (w *disturber) keep(s *survivor, kills []kill, got, want []byte) error {
	name := w.d.file(fmt.Sprintf("-%s-%d-run-%d.txt", w.d.transport, w.d.seed, w.runs))
	w.d.note("run %d: mpivrun ended with %v and what came of it was %q, not %q; it said: %s", w.runs, s.err, got, want, s.stderr.text())
	w.d.note("run %d: what happened is in %s", w.runs, name)
	var text bytes.Buffer
	for _, e := range s.past {
		fmt.Fprintf(&text, "%s %s", e.Time.Format("15:04:05.000000"), e.Kind)
		for _, n := range []struct {
			name string
			n    *int
		}{{"process", e.Process}, {"rank", e.Rank}} {
			if n.n != nil {
				fmt.Fprintf(&text, " %s %d", n.name, *n.n)
			}
		}
		fmt.Fprintf(&text, " %s\n", e.Text)
	}
	for _, k := range kills {
		fmt.Fprintf(&text, "%s killed: process %d (%s)\n", k.at.UTC().Format("15:04:05.000000"), k.process, k.deed)
	}
	fmt.Fprintf(&text, "%s\n%s\n", s.stdout.whole(), s.stderr.text())
	return os.WriteFile(name, text.Bytes(), 0o644)
}
