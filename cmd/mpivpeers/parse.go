package main

import (
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

// loopbackBytes finds how many bytes the loopback interface has received in the
// text of /proc/net/dev.
func loopbackBytes(dev string) (int64, error) {
	for line := range strings.Lines(dev) {
		name, counters, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) != "lo" {
			continue
		}
		if words := strings.Fields(counters); len(words) > 0 {
			return strconv.ParseInt(words[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/net/dev has no line for lo")
}
