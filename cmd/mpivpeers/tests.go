package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// noSize is the size of a figure that has none: barrier's, init's.
const noSize = -1

// large is the size beyond which the programs divide their iterations; see osu.c.
const large = 8192

// A metric is one figure of a test. Which way it is better decides what a ratio means.
type metric struct {
	name, unit string
	higher     bool // better
}

var (
	latencyMetric   = metric{"latency", "µs", false}
	bandwidthMetric = metric{"bandwidth", "MB/s", true}
	rateMetric      = metric{"rate", "messages/s", true}
	remainderMetric = metric{"remainder", "µs", false}
	launchMetric    = metric{"launch", "ms", false}
)

// A test is one of the tests that osu.c and mpivbench know, by OSU's name.
type test struct {
	name    string
	pair    bool     // runs with two ranks whatever -ranks says
	sizes   []int    // by default; empty: the test has none
	least   int      // smallest size it can do
	iters   int      // per size up to large
	warmup  int      // the same, before the clock starts
	divisor int      // of both beyond large, as in osu.c
	metrics []metric // in the order of the output's columns
}

// powers returns 1, 2, 4, … 4 MiB, behind the sizes in before.
func powers(before ...int) []int {
	for size := 1; size <= 4<<20; size *= 2 {
		before = append(before, size)
	}
	return before
}

// fewSizes are enough where a run takes long.
var fewSizes = []int{8, 1 << 10, 64 << 10, 1 << 20}

func collective(name string, least int) test {
	return test{name: name, sizes: fewSizes, least: least, iters: 5000, warmup: 500, divisor: 10, metrics: []metric{latencyMetric}}
}

func barrier(name string) test {
	return test{name: name, iters: 5000, warmup: 500, divisor: 1, metrics: []metric{latencyMetric}}
}

// nonBlocking has two figures: how long it takes, and what remains of that when the program
// computes meanwhile.
func nonBlocking(t test) test {
	t.metrics = []metric{latencyMetric, remainderMetric}
	return t
}

// tests are all of them, in the order in which they run.
var tests = []test{
	{name: "latency", pair: true, sizes: powers(0), iters: 10000, warmup: 500, divisor: 10, metrics: []metric{latencyMetric}},
	{name: "bw", pair: true, sizes: powers(), least: 1, iters: 500, warmup: 50, divisor: 25, metrics: []metric{bandwidthMetric}},
	{name: "bibw", pair: true, sizes: powers(), least: 1, iters: 500, warmup: 50, divisor: 25, metrics: []metric{bandwidthMetric}},
	{name: "mbw_mr", sizes: fewSizes, least: 1, iters: 500, warmup: 50, divisor: 25, metrics: []metric{bandwidthMetric, rateMetric}},
	{name: "latency_mt", pair: true, sizes: fewSizes, iters: 500, warmup: 50, divisor: 10, metrics: []metric{latencyMetric}},
	barrier("barrier"),
	collective("bcast", 1),
	collective("reduce", 4),
	collective("allreduce", 4),
	collective("gather", 1),
	collective("scatter", 1),
	collective("allgather", 1),
	collective("alltoall", 1),
	nonBlocking(barrier("ibarrier")),
	nonBlocking(collective("iallreduce", 4)),
	nonBlocking(collective("ialltoall", 1)),
	{name: "init", metrics: []metric{launchMetric}},
}

// A setting is what the contenders are compared in: they all run the same one,
// one after another.
type setting struct {
	test
	ranks     int
	transport string // "shm", "tcp" or lan
	cores     string // how far they are apart, or moved; empty: always the same
}

func (s setting) String() string {
	text := fmt.Sprintf("%s, %d ranks, %s", s.name, s.ranks, s.transport)
	if s.cores != "" {
		text += ", " + s.cores
	}
	return text
}

// network is the interface that messages which are not in memory go through.
func (s setting) network() string {
	if s.transport == lan {
		return lan
	}
	return "lo"
}

// crowded says whether there are more ranks than cores.
func (s setting) crowded(cores int) bool { return s.ranks > cores }

// flags are the options of osu.c and mpivbench for this setting. share divides
// the iterations: more than 1 for a contender that would otherwise take minutes.
func (s setting) flags(share int) []string {
	if s.iters == 0 {
		return nil
	}
	var words []string
	if len(s.sizes) > 0 {
		list := make([]string, len(s.sizes))
		for i, size := range s.sizes {
			list[i] = strconv.Itoa(size)
		}
		words = append(words, "-s", strings.Join(list, ","))
	}
	return append(words, "-i", strconv.Itoa(max(1, s.iters/share)), "-x", strconv.Itoa(s.warmup/share))
}

// leastBytes is a lower bound of the bytes that cross the network when the
// setting runs: each iteration moves at least one message of its size one way.
func (s setting) leastBytes(share int) int64 {
	var sum int64
	for _, size := range s.sizes {
		n := max(1, s.iters/share)
		if size > large {
			n = max(1, n/s.divisor)
		}
		sum += int64(n) * int64(size)
	}
	return sum
}

// choices are the parts of the command line that make the settings.
type choices struct {
	tests      []string // empty: all
	sizes      []int    // empty: each test's own
	ranks      []int    // of the tests that are not bound to two
	transports []string // empty: shm and tcp between two ranks, shm for collectives
	quick      bool
	cores      int
}

// settings lists what is to run, in order. It refuses a test it does not know
// and a choice that leaves nothing to run.
func (c choices) settings() ([]setting, error) {
	for _, name := range c.tests {
		if !slices.ContainsFunc(tests, func(t test) bool { return t.name == name }) {
			return nil, fmt.Errorf("no test is called %q; the tests are %s", name, strings.Join(testNames(), ", "))
		}
	}
	var all []setting
	for _, t := range tests {
		if len(c.tests) > 0 && !slices.Contains(c.tests, t.name) {
			continue
		}
		if len(t.sizes) > 0 {
			if t.sizes = c.sizesOf(t); len(t.sizes) == 0 {
				continue // none of the sizes asked for is one this test can do
			}
		}
		for _, transport := range c.transportsOf(t) {
			for _, ranks := range c.ranksOf(t) {
				all = append(all, setting{test: c.scaled(t, ranks), ranks: ranks, transport: transport})
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing to run: no test takes these sizes and ranks")
	}
	return all, nil
}

func (c choices) sizesOf(t test) []int {
	sizes := t.sizes
	switch {
	case len(c.sizes) > 0:
		sizes = c.sizes
	case c.quick:
		sizes = []int{8, 64 << 10}
	}
	return slices.DeleteFunc(slices.Clone(sizes), func(n int) bool {
		return n < t.least || t.least > 1 && n%t.least != 0
	})
}

func (c choices) transportsOf(t test) []string {
	switch {
	case len(c.transports) > 0:
		return c.transports
	case t.pair || t.name == "mbw_mr":
		return []string{"shm", "tcp"}
	default:
		return []string{"shm"}
	}
}

func (c choices) ranksOf(t test) []int {
	switch {
	case t.pair:
		return []int{2}
	case len(c.ranks) > 0 && t.name == "mbw_mr":
		return slices.DeleteFunc(slices.Clone(c.ranks), func(n int) bool { return n%2 != 0 })
	case len(c.ranks) > 0:
		return c.ranks
	case t.name == "mbw_mr":
		return []int{2}
	case t.name == "init":
		return []int{4}
	case c.quick:
		return []int{2, 4}
	default:
		return []int{2, 4, 8, 16}
	}
}

// scaled gives t the iterations that fit: fewer when quick, and when more ranks
// than cores take turns.
func (c choices) scaled(t test, ranks int) test {
	divisor := 1
	if ranks > c.cores {
		divisor *= 5
	}
	if c.quick {
		divisor *= 10
	}
	t.iters /= divisor
	t.warmup /= divisor
	return t
}

func testNames() []string {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.name
	}
	return names
}

// parseSizes reads "8,1K,4M". K and M are powers of two.
func parseSizes(list string) ([]int, error) {
	return parseInts(list, func(word string) (int, error) {
		unit := 1
		switch digits, suffix := word[:max(0, len(word)-1)], word[max(0, len(word)-1):]; suffix {
		case "K":
			word, unit = digits, 1<<10
		case "M":
			word, unit = digits, 1<<20
		}
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n > 1<<30/unit {
			return 0, fmt.Errorf("%q is not a size between 0 and 1024M, such as 8, 64K or 4M", word)
		}
		return n * unit, nil
	})
}

// parseRanks reads "2,4,8".
func parseRanks(list string) ([]int, error) {
	return parseInts(list, func(word string) (int, error) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 2 {
			return 0, fmt.Errorf("%q is not a number of ranks from 2", word)
		}
		return n, nil
	})
}

func parseInts(list string, one func(string) (int, error)) ([]int, error) {
	var all []int
	for _, word := range splitList(list) {
		n, err := one(word)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// splitList splits at commas; an empty list has no words.
func splitList(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}
