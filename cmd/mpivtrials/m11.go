//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot/plotter"
)

// A weight is the state of a rank that moves, in two slices, and how long AMPI (Charm++) takes for
// as much between two processes of one host, as it was measured on a machine like the one that this is developed on.
type weight struct {
	bytes int
	ampi  float64 // ms
}

var weights = []weight{{0, 0.45}, {1 << 20, 0.75}, {32 << 20, 5.5}, {128 << 20, 27.5}, {512 << 20, 115}}

const (
	ampiTimes  = 1.2
	largeState = 32 << 20 // from which on a rank may stand still for a part of a move only
	standsMost = 0.5      // of it
)

// m11 moves a rank back and forth, alive, with more and more state. The process to which it goes has
// memory ready for it.
func m11(ctx context.Context, d *desk) error {
	all, rounds := weights, d.times(3)
	if d.short {
		all, rounds = all[:3], d.times(1)
	}
	whole, stood := map[int][]float64{}, map[int][]float64{}
	var rows [][]string
	for i := range rounds * len(all) {
		round, w := i/len(all), all[i%len(all)]
		l, err := d.moves(ctx, w.bytes)
		if err != nil {
			return err
		}
		whole[l.bytes], stood[l.bytes] = append(whole[l.bytes], l.whole), append(stood[l.bytes], l.stood)
		rows = append(rows, []string{strconv.Itoa(round), strconv.Itoa(l.bytes), fmt.Sprintf("%.3f", l.whole), fmt.Sprintf("%.3f", l.stood)})
	}
	var total, still, other plotter.XYs
	for _, w := range all {
		took, stands := median(whole[w.bytes]), median(stood[w.bytes])
		d.note("%s: a move takes %s ms (%s to %s), the rank stands still for %s ms", stateText(w.bytes), number(took),
			number(smallest(whole[w.bytes])), number(largest(whole[w.bytes])), number(stands))
		d.claim(claim{what: stateText(w.bytes) + ": a live move over AMPI's " + number(w.ampi) + " ms", measured: took / w.ampi, bar: ampiTimes, pace: true})
		if w.bytes >= largeState {
			d.claim(claim{what: stateText(w.bytes) + ": part of it in which the rank stands still", measured: stands / took, bar: standsMost, pace: true})
		}
		x := float64(w.bytes) / (1 << 20)
		total, still, other = append(total, plotter.XY{X: x, Y: took}), append(still, plotter.XY{X: x, Y: stands}), append(other, plotter.XY{X: x, Y: w.ampi})
	}
	if err := d.writeCSV([]string{"round", "bytes", "whole_ms", "stood_ms"}, rows); err != nil {
		return err
	}
	return d.plotLines("live moves within a host", "MiB of state", "ms", []series{{"whole move", total}, {"stands still", still}, {"AMPI", other}}, nil)
}

// moves is a job of which the rank moves some times, with that much state. A process without a rank holds memory ready for as much, and has the
// time to: it takes longer, and a core, to ready more than what moves.
func (d *desk) moves(ctx context.Context, size int) (moveLine, error) {
	words := []string{"-n", "1", "--spares", "1", "--survive", "moves", "--transport", "shm"}
	if size > 0 {
		words = append(words, "--spare-memory", strconv.Itoa(size))
	}
	words = append(words, filepath.Join(d.bin, "mpivbench"), "move", "-s", strconv.Itoa(size), "-i", "5", "-x", "2")
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "mpivrun"), words...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return moveLine{}, fmt.Errorf("mpivbench move: %w: %s", err, stderr.String())
	}
	return parseMoves(string(out))
}

func stateText(n int) string {
	if n == 0 {
		return "no state"
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// A moveLine is what mpivbench move prints of a size.
type moveLine struct {
	bytes        int
	whole, stood float64 // ms
}

func parseMoves(text string) (l moveLine, err error) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := fmt.Sscan(line, &l.bytes, &l.whole, &l.stood); err != nil {
			return l, fmt.Errorf("mpivbench move printed %q: %w", strings.TrimSpace(line), err)
		}
		l.whole, l.stood = l.whole/1000, l.stood/1000
		return l, nil
	}
	return l, fmt.Errorf("mpivbench move printed no figures: %q", text)
}
