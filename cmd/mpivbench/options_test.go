package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseOptions(t *testing.T) {
	defaults := func(name string) options {
		found := find(name)
		return options{test: found, iters: found.iters, warmup: found.warmup, window: 64, threads: 2}
	}
	for _, c := range []struct {
		name, line string
		sizes      []int
		change     func(o *options)
	}{
		{"a range from the test's smallest size", "latency -m 5", []int{0, 1, 2, 4}, nil},
		{"a range from 1", "bw -m 8", []int{1, 2, 4, 8}, nil},
		{"a range with both ends", "bw -m 3:13", []int{3, 6, 12}, nil},
		{"a range of one", "latency -m 0", []int{0}, nil},
		{"the second range keeps the first one's start", "latency -m 4:8 -m 16", []int{4, 8, 16}, nil},
		{"a list in its own order", "latency -s 8,0,8", []int{8, 0, 8}, nil},
		{"a list counts, a range beside it does not", "latency -s 7 -m 1:2", []int{7}, nil},
		{"multiples of the unit", "allreduce -s 4,1024", []int{4, 1024}, nil},
		{"iterations, warm-up, window and threads", "bibw -s 1 -i 7 -x 0 -w 3 -t 5", []int{1},
			func(o *options) { o.iters, o.warmup, o.window, o.threads = 7, 0, 3, 5 }},
		{"the last of two counts", "bw -s 1 -i 7 -i 8", []int{1}, func(o *options) { o.iters = 8 }},
		{"a test without sizes ignores them", "barrier -s 8 -m 16", nil, nil},
		{"a program start takes no iterations", "init", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := strings.Fields(c.line)
			want := defaults(words[0])
			want.sizes = c.sizes
			if c.change != nil {
				c.change(&want)
			}
			got, err := parseOptions(words)
			require.NoError(t, err)
			require.Same(t, want.test, got.test)
			want.test, got.test = nil, nil // its functions cannot be compared
			require.Equal(t, want, got)
		})
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for _, c := range []struct{ name, line, why string }{
		{"nothing", "", "which test"},
		{"an unknown test", "lateny", `"lateny"`},
		{"an unknown option", "bw -z 1", `"-z"`},
		{"an option before the test", "-i 5 bw", `"-i"`},
		{"a missing value", "bw -i", `"-i"`},
		{"a word too many", "bw -i 5 6", `"6"`},
		{"no iterations", "bw -i 0", "from 1"},
		{"no window", "bw -w 0", "from 1"},
		{"no threads", "latency_mt -t 0", "from 1"},
		{"a negative number", "bw -x -1", `"-1"`},
		{"a number above 2^30", "bw -s 1073741825", "2^30"},
		{"a number beyond all", "bw -s 99999999999999999999", "2^30"},
		{"a unit", "bw -s 8K", `"8K"`},
		{"an empty list", "bw -s ,", `""`},
		{"65 sizes", "bw -s 1" + strings.Repeat(",1", 64), "at most 64"},
		{"a range upside down", "bw -m 8:4", "8 is above 4"},
		{"a maximum below the test's minimum", "bw -m 0", "1 is above 0"},
		{"half a range", "bw -m 8:", `""`},
		{"half a float", "reduce -s 6", "multiples of 4"},
		{"a reduction of nothing", "allreduce -s 0", "from 4"},
		{"a range of half floats", "allreduce -m 2:8", "multiples of 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseOptions(strings.Fields(c.line))
			require.ErrorContains(t, err, c.why)
		})
	}
}

// words is the command line that means o.
func (o *options) words() []string {
	words := []string{o.test.name, "-i", strconv.Itoa(o.iters), "-x", strconv.Itoa(o.warmup), "-w", strconv.Itoa(o.window), "-t", strconv.Itoa(o.threads)}
	if o.test.sized() {
		list := make([]string, len(o.sizes))
		for i, n := range o.sizes {
			list[i] = strconv.Itoa(n)
		}
		words = append(words, "-s", strings.Join(list, ","))
	}
	return words
}

// FuzzParseOptions: what is accepted is within bounds, and means the same when
// it is written out.
func FuzzParseOptions(f *testing.F) {
	for _, line := range []string{"latency -m 0:4194304", "bw -s 8,1024 -i 5 -x 0 -w 64", "latency_mt -t 3", "reduce -m 4:8", "barrier", "init", "bw -m 1073741824"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		o, err := parseOptions(strings.Fields(line))
		if err != nil {
			return
		}
		for _, n := range append(slices.Clone(o.sizes), o.iters, o.warmup, o.window, o.threads) {
			if n < 0 || n > maxNumber {
				t.Fatalf("parseOptions(%q) accepted the number %d", line, n)
			}
		}
		if o.test.sized() && (len(o.sizes) == 0 || len(o.sizes) > maxSizes) {
			t.Fatalf("parseOptions(%q) = %d sizes", line, len(o.sizes))
		}
		if o.test.run == nil {
			return // its defaults of 0 cannot be written
		}
		again, err := parseOptions(o.words())
		require.NoError(t, err)
		require.Equal(t, o.words(), again.words())
	})
}
