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
	"strings"
	"sync"
	"time"
)

// survivors is the programs that survive can run: what they print, or write to a file
// whose name follows, depends on their arguments alone.
var survivors = map[string][]string{
	"compress": {"-q", "-f", "--iterations", "4000", "--block", "256kB", "-o"},
	"farm":     {"-below", "8000000"},
	"heat2d":   {"--tolerance", "1e-5"},
	"wander":   {"-turns", "600", "-seed"}, // and the trial's seed
}

// labSurvivors has less to do where messages go over a network.
var labSurvivors = map[string][]string{
	"heat2d": {"--tolerance", "1e-4"},
}

const (
	surviveRanks  = 4
	surviveSpares = 2
	surviveTime   = 3 * time.Minute // that a job may take, disturbed as it is

	patience = 20 * time.Second // for a job to be ready for the next thing

	detectBar = 50  // ms
	goesOnBar = 200 // ms
)

// A disturber does what is drawn to jobs, and notes it.
type disturber struct {
	d       *desk
	rand    *rand.Rand
	chances []chance
	left    int // kills

	done  map[deed]int
	runs  int
	wrong int // of these: another exit code than 0, or another output
	kills []kill
	spare int      // killed
	log   []string // of what was done to the job that runs

	// In a lab.
	field     *field // of the job that runs
	hosts     int    // that were lost, on purpose
	surprises int    // that were lost besides
	leftOver  int    // processes on all hosts, after jobs

	mu      sync.Mutex     // guards what follows
	obeyed  map[string]int // orders, by what they are
	refused map[string]int // and those that were not, by that and the reason
}

func survive(ctx context.Context, d *desk) error {
	replay := fmt.Sprintf("mpivtrials -seed %d -kills %d -transport %s -program %s", d.seed, d.kills, d.over(), d.program)
	chances := deeds
	if d.lab {
		replay += " -lab"
		chances = labDeeds(d.outlive)
	}
	if d.outlive {
		replay += " -outlive"
	}
	replay += " survive"
	want, err := d.undisturbed(ctx)
	if err != nil {
		return fmt.Errorf("an undisturbed run: %w", err)
	}
	w := &disturber{d: d, rand: rand.New(rand.NewPCG(d.seed, 0)), chances: chances, left: d.kills, done: map[deed]int{}, obeyed: map[string]int{}, refused: map[string]int{}}
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
	return append([]string{"-n", strconv.Itoa(surviveRanks), "--spares", strconv.Itoa(surviveSpares), "--snapshot", "0.2",
		"--transport", d.over(), "--timeout", strconv.Itoa(int(surviveTime / time.Second))}, d.survivorProgram()...)
}

func (d *desk) survivorProgram() []string {
	args := survivors[d.program]
	if over := labSurvivors[d.program]; d.lab && over != nil {
		args = over
	}
	all := append([]string{filepath.Join(d.bin, d.program)}, args...)
	if d.program == "wander" {
		all = append(all, strconv.FormatUint(d.seed, 10))
	}
	if d.survivorWrites() {
		all = append(all, d.survivorFile())
	}
	return all
}

// transportOption is that of mpivrun, if one was asked for.
func (d *desk) transportOption() []string {
	if d.transport == "" {
		return nil
	}
	return []string{"--transport", d.transport}
}

// over is the transport: as was asked for, or by itself.
func (d *desk) over() string {
	switch {
	case d.transport != "":
		return d.transport
	case d.lab:
		return "tcp"
	}
	return "shm"
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
	s, f, err := w.begin(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	w.runs++
	w.log = nil
	var others sync.WaitGroup // moves and stops that go on
	var kills []kill
	err = s.await(ctx, patience, s.runningLocked)
	for err == nil && w.left > 0 {
		var ks []kill
		a := draw(w.rand, w.chances)
		if err = s.pause(ctx, a.after); err == nil {
			ks, err = w.do(ctx, s, f.turn(a), &others)
		}
		kills = append(kills, ks...)
		w.left -= len(ks)
	}
	late := time.AfterFunc(2*surviveTime, s.endNow) // the job's own timeout is shorter
	<-s.done
	late.Stop()
	others.Wait()
	judgeKills(kills, s.past)
	w.kills = append(w.kills, kills...)
	if err != nil && !over(err) {
		return err
	}
	if err := w.look(f); err != nil {
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

// begin starts a job on this machine, or in a lab; then there is a field.
func (w *disturber) begin(ctx context.Context) (*survivor, *field, error) {
	if w.d.lab {
		f, err := w.d.field(ctx)
		if err != nil {
			return nil, nil, err
		}
		w.field = f
		return f.job, f, nil
	}
	s, err := startSurvivor(ctx, filepath.Join(w.d.bin, "mpivrun"), w.d.survivorOptions()...)
	return s, nil, err
}

// noted adds to what was done to the job.
func (w *disturber) noted(d deed, format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%s did: %s %s", time.Now().UTC().Format("15:04:05.000000"), d, fmt.Sprintf(format, args...)))
}

// keep tells what went wrong in a job, and leaves its events in the directory of
// results.
func (w *disturber) keep(s *survivor, kills []kill, got, want []byte) error {
	name := w.d.file(fmt.Sprintf("-%s-%d-run-%d.txt", w.d.over(), w.d.seed, w.runs))
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
	fmt.Fprintf(&text, "%s\n%s\n%s\n", strings.Join(w.log, "\n"), s.stdout.whole(), s.stderr.text())
	return os.WriteFile(name, text.Bytes(), 0o644)
}
