package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A point is one line of a program's output: a size and its figures.
type point struct {
	size    int
	figures []float64
}

// parse reads the output of osu.c or mpivbench for s. It wants the sizes of s,
// in their order, each with all figures of the test, and nothing else but
// comments: a program that stopped half way is an error, not a short table.
func parse(s setting, output string) ([]point, error) {
	want := s.sizes
	if len(want) == 0 {
		want = []int{noSize}
	}
	if s.iters == 0 {
		want = nil // init prints no figure
	}
	var points []point
	for line := range strings.Lines(output) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		p := point{size: noSize}
		if len(s.sizes) > 0 {
			size, err := strconv.Atoi(words[0])
			if err != nil {
				return nil, fmt.Errorf("output line %q: no size at its start", strings.TrimSpace(line))
			}
			p.size, words = size, words[1:]
		}
		if len(words) != len(s.metrics) {
			return nil, fmt.Errorf("output line %q: %d figures, want %d", strings.TrimSpace(line), len(words), len(s.metrics))
		}
		for _, word := range words {
			figure, err := strconv.ParseFloat(word, 64)
			if err != nil || !(figure > 0) {
				return nil, fmt.Errorf("output line %q: %q is not a figure above 0", strings.TrimSpace(line), word)
			}
			p.figures = append(p.figures, figure)
		}
		points = append(points, p)
	}
	got := make([]int, len(points))
	for i, p := range points {
		got[i] = p.size
	}
	if !slices.Equal(got, want) {
		return nil, fmt.Errorf("output has sizes %v, want %v", got, want)
	}
	return points, nil
}

// interfaceBytes is how many bytes an interface has received and sent, from the
// text of /proc/net/dev. What the loopback interface sends it receives: that
// counts once.
func interfaceBytes(dev, name string) (int64, error) {
	for line := range strings.Lines(dev) {
		called, counters, ok := strings.Cut(line, ":")
		words := strings.Fields(counters)
		if !ok || strings.TrimSpace(called) != name || len(words) < 9 {
			continue
		}
		received, err1 := strconv.ParseInt(words[0], 10, 64)
		sent, err2 := strconv.ParseInt(words[8], 10, 64)
		if name == "lo" {
			sent = 0
		}
		return received + sent, errors.Join(err1, err2)
	}
	return 0, fmt.Errorf("/proc/net/dev has no line for %s", name)
}
