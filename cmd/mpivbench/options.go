package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	maxSizes  = 64
	maxNumber = 1 << 30
)

// options is the command line.
type options struct {
	test            *test
	sizes           []int
	iters, warmup   int // for sizes up to large
	window, threads int
	safe            int    // a safe point every so many iterations; 0: none
	dirty           int    // percent of its pages that a rank writes to while it moves, or between snapshots
	profile         string // file for a CPU profile of each process; "": none
	agent           string // directory of the job; "": there is no agent
}

func usage() string {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.name
	}
	return "usage: mpivbench TEST [-m [MIN:]MAX | -s SIZE,...] [-i ITERS] [-x WARMUP] [-w WINDOW] [-t THREADS] [-k ITERS] [-d DIRTY] [-p PROFILE]\n" +
		"tests: " + strings.Join(names, " ") + "\n"
}

// parseOptions reads the words behind the program's name: the test, then
// options, each with its value as the next word.
func parseOptions(words []string) (options, error) {
	if len(words) == 0 {
		return options{}, errors.New("which test?")
	}
	t := find(words[0])
	if t == nil {
		return options{}, fmt.Errorf("no test is called %q", words[0])
	}
	o := options{test: t, iters: t.iters, warmup: t.warmup, window: 64, threads: 2}
	low, high := t.min, t.max
	var err error
	for words = words[1:]; len(words) > 0 && err == nil; words = words[2:] {
		if len(words) == 1 {
			return o, fmt.Errorf("%q is not an option, or its value is missing", words[0])
		}
		switch value := words[1]; words[0] {
		case "-m":
			low, high, err = parseRange(value, low)
		case "-s":
			o.sizes, err = parseList(value)
		case "-i":
			o.iters, err = parseNumber(value, 1)
		case "-x":
			o.warmup, err = parseNumber(value, 0)
		case "-w":
			o.window, err = parseNumber(value, 1)
		case "-t":
			o.threads, err = parseNumber(value, 1)
		case "-k":
			o.safe, err = parseNumber(value, 0)
		case "-d":
			if o.dirty, err = parseNumber(value, 0); err == nil && o.dirty > 100 {
				err = errors.New("percent of the pages: at most 100")
			}
		case "-p":
			o.profile = value
		default:
			return o, fmt.Errorf("%q is not an option", words[0])
		}
		if err != nil {
			err = fmt.Errorf("%s %s: %w", words[0], words[1], err)
		}
	}
	if err != nil {
		return o, err
	}
	if o.safe > 0 && slices.Contains([]string{"latency_mt", "init", "move", "save"}, t.name) {
		return o, fmt.Errorf("-k: %s has no iterations that end in a safe point", t.name)
	}
	switch {
	case !t.sized():
		o.sizes = nil
	case o.sizes == nil:
		o.sizes = series(low, high)
	}
	return o, t.checkSizes(o.sizes)
}

func (t *test) checkSizes(sizes []int) error {
	for _, n := range sizes {
		if t.unit > 1 && (n == 0 || n%t.unit != 0) {
			return fmt.Errorf("size %d: %s takes multiples of %d bytes, from %d", n, t.name, t.unit, t.unit)
		}
	}
	return nil
}

// parseRange reads "MAX" or "MIN:MAX"; low is the MIN of the first form.
func parseRange(value string, low int) (min, max int, err error) {
	first, second, both := strings.Cut(value, ":")
	if min, err = parseNumber(first, 0); err != nil {
		return 0, 0, err
	}
	if max = min; !both {
		min = low
	} else if max, err = parseNumber(second, 0); err != nil {
		return 0, 0, err
	}
	if min > max {
		return 0, 0, fmt.Errorf("want MAX or MIN:MAX, and %d is above %d", min, max)
	}
	return min, max, nil
}

func parseList(value string) ([]int, error) {
	words := strings.Split(value, ",")
	if len(words) > maxSizes {
		return nil, fmt.Errorf("want at most %d sizes", maxSizes)
	}
	sizes := make([]int, len(words))
	for i, word := range words {
		n, err := parseNumber(word, 0)
		if err != nil {
			return nil, err
		}
		sizes[i] = n
	}
	return sizes, nil
}

func parseNumber(word string, least int) (int, error) {
	n, err := strconv.ParseUint(word, 10, 63)
	if err != nil || n > maxNumber || int(n) < least {
		return 0, fmt.Errorf("%q is not a number from %d to 2^30", word, least)
	}
	return int(n), nil
}

// series is min, 2 min, 4 min, … max; behind 0 comes 1.
func series(min, max int) []int {
	var sizes []int
	for n := min; n <= max; {
		sizes = append(sizes, n)
		if n *= 2; n == 0 {
			n = 1
		}
	}
	return sizes
}
