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
	var words []string
	for _, w := range all {
		words = append(words, strconv.Itoa(w.bytes))
	}
	most := strconv.Itoa(all[len(all)-1].bytes)
	whole, stood := map[int][]float64{}, map[int][]float64{}
	var rows [][]string
	for round := range rounds {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "mpivrun"), "-n", "1", "--spares", "1", "--survive", "moves", "--transport", "shm",
			"--spare-memory", most,
			filepath.Join(d.bin, "mpivbench"), "move", "-s", strings.Join(words, ","), "-i", "5", "-x", "2")
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("mpivbench move: %w: %s", err, stderr.String())
		}
		lines, err := parseMoves(string(out))
		if err != nil {
			return err
		}
		for _, l := range lines {
			whole[l.bytes], stood[l.bytes] = append(whole[l.bytes], l.whole), append(stood[l.bytes], l.stood)
			rows = append(rows, []string{strconv.Itoa(round), strconv.Itoa(l.bytes), fmt.Sprintf("%.3f", l.whole), fmt.Sprintf("%.3f", l.stood)})
		}
	}
	var total, still, other plotter.XYs
	for _, w := range all {
		took, stands := median(whole[w.bytes]), median(stood[w.bytes])
		d.note("%s of state: a move takes %s ms (%s to %s), the rank stands still for %s ms", stateText(w.bytes), number(took),
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

func parseMoves(text string) (all []moveLine, err error) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var l moveLine
		if _, err := fmt.Sscan(line, &l.bytes, &l.whole, &l.stood); err != nil {
			return nil, fmt.Errorf("mpivbench move printed %q: %w", strings.TrimSpace(line), err)
		}
		l.whole, l.stood = l.whole/1000, l.stood/1000
		all = append(all, l)
	}
	return all, nil
}
