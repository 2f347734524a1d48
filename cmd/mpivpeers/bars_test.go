package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// ratios makes a table with one row for each size, where mpiv has that ratio.
func ratios(s setting, m metric, bySize map[int]float64) table {
	t := table{setting: s, metric: m, whos: []string{"mpiv", "mpich"}, failed: map[string]int{}}
	for size, ratio := range bySize {
		t.sizes = append(t.sizes, size)
		t.rows = append(t.rows, row{size: size, better: "mpich", ratio: ratio, lowest: ratio, highest: ratio,
			median: map[string]float64{"mpiv": ratio, "mpich": 1}})
	}
	return t
}

func named(name string, ranks int, transport string) setting {
	return setting{test: test{name: name}, ranks: ranks, transport: transport}
}

func verdictOn(t *testing.T, name string, tables ...table) verdict {
	t.Helper()
	for _, v := range verdicts(tables, "mpiv") {
		if v.name == name {
			return v
		}
	}
	t.Fatalf("no bar is called %q", name)
	return verdict{}
}

const (
	latencyBar    = "latency, shared memory: ratio ≤ 1.0 at every size"
	bandwidthBar  = "bandwidth, TCP: ratio ≥ 1.0 at every size"
	rateBar       = "message rate of 8 B, TCP: ratio ≥ 10"
	collectiveBar = "collectives, 2 and 4 ranks: ratio ≤ 1.0 in 80 % of the cells, never above 1.5"
	crowdBar      = "collectives, 8 and 16 ranks: ratio ≤ 1.0 in every cell"
)

func TestVerdicts(t *testing.T) {
	five := func(last float64) []table { // 5 cells, the last as given
		return []table{
			ratios(named("allreduce", 2, "shm"), latencyMetric, map[int]float64{8: 0.5, 1024: 0.6}),
			ratios(named("bcast", 4, "shm"), latencyMetric, map[int]float64{65536: 1, 1 << 20: last}),
			ratios(named("barrier", 4, "shm"), latencyMetric, map[int]float64{noSize: 0.9}),
		}
	}
	for name, c := range map[string]struct {
		bar         string
		tables      []table
		cells, kept int
		ok          bool
	}{
		"a latency that equals the peer's keeps": {latencyBar, []table{ratios(named("latency", 2, "shm"), latencyMetric, map[int]float64{0: 1, 8: 0.9})}, 2, 2, true},
		"one slower size misses":                 {latencyBar, []table{ratios(named("latency", 2, "shm"), latencyMetric, map[int]float64{0: 0.5, 8: 1.001})}, 2, 1, false},
		"the other transport does not count":     {latencyBar, []table{ratios(named("latency", 2, "tcp"), latencyMetric, map[int]float64{0: 0.5})}, 0, 0, false},
		"a higher bandwidth keeps":               {bandwidthBar, []table{ratios(named("bw", 2, "tcp"), bandwidthMetric, map[int]float64{8: 1.2})}, 1, 1, true},
		"a lower bandwidth misses":               {bandwidthBar, []table{ratios(named("bw", 2, "tcp"), bandwidthMetric, map[int]float64{8: 0.99})}, 1, 0, false},
		"nine times the rate is not ten":         {rateBar, []table{ratios(named("mbw_mr", 2, "tcp"), rateMetric, map[int]float64{8: 9, 64: 20})}, 1, 0, false},
		"the bandwidth of mbw_mr is no rate":     {rateBar, []table{ratios(named("mbw_mr", 2, "tcp"), bandwidthMetric, map[int]float64{8: 20})}, 0, 0, false},
		"four of five is enough":                 {collectiveBar, five(1.4), 5, 4, true},
		"four of five, but one far beyond":       {collectiveBar, five(1.51), 5, 4, false},
		"a size between does not count":          {collectiveBar, []table{ratios(named("bcast", 2, "shm"), latencyMetric, map[int]float64{16: 9, 8: 1})}, 1, 1, true},
		"in a crowd all must keep":               {crowdBar, []table{ratios(named("bcast", 16, "shm"), latencyMetric, map[int]float64{8: 1.01, 1024: 0.1})}, 2, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := verdictOn(t, c.bar, c.tables...)
			require.Equal(t, []int{c.cells, c.kept}, []int{v.cells, v.kept}, "cells, kept")
			require.Equal(t, c.ok, v.ok())
		})
	}
}

func TestFailedRunOfOursMissesTheBar(t *testing.T) {
	table := ratios(named("latency", 2, "shm"), latencyMetric, map[int]float64{8: 0.5})
	table.failed["mpich"] = 1
	require.True(t, verdictOn(t, latencyBar, table).ok(), "a peer's failure is not ours")
	table.failed["mpiv"] = 1
	v := verdictOn(t, latencyBar, table)
	require.False(t, v.ok())
	require.Contains(t, v.String(), "1 runs of mpiv failed")

	never := ratios(named("latency", 2, "shm"), latencyMetric, nil)
	never.sizes, never.failed["mpiv"] = []int{8}, 5
	v = verdictOn(t, latencyBar, never)
	require.Contains(t, v.String(), "missed", "not one figure is not “not measured” when we ran and failed")
}

func TestVerdictNamesTheWorst(t *testing.T) {
	v := verdictOn(t, latencyBar, ratios(named("latency", 2, "shm"), latencyMetric, map[int]float64{0: 0.5, 1024: 1.25, 8: 0.9}))
	require.Equal(t, "missed       "+latencyBar+" | 2 of 3 cells keep it, the worst ratio is 1.25 (latency, 2 ranks, shm, 1 KiB)", v.String())
	v = verdictOn(t, bandwidthBar, ratios(named("bw", 2, "tcp"), bandwidthMetric, map[int]float64{8: 2, 16: 1.5}))
	require.Equal(t, "ok           "+bandwidthBar+" | 2 of 2 cells keep it, the worst ratio is 1.50 (bw, 2 ranks, tcp, 16 B)", v.String())
	require.Equal(t, "not measured "+latencyBar, verdictOn(t, latencyBar).String())
}

func TestOtherTestsHaveABar(t *testing.T) {
	without := []string{"latency_mt", "ibarrier", "iallreduce", "ialltoall"}
	for _, test := range tests {
		covered := false
		for _, b := range bars {
			for _, m := range test.metrics {
				covered = covered || b.metric == m.name && slices.Contains(b.tests, test.name)
			}
		}
		require.Equal(t, !slices.Contains(without, test.name), covered, test.name)
	}
}
