package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	require.Equal(t, 7.0, median([]float64{7}))
	figures := []float64{3, 1, 2}
	median(figures)
	require.Equal(t, []float64{3, 1, 2}, figures, "the argument stays as it was")
}

// rounds are the figures of one contender at one size, in order of the rounds.
func rounds(figures ...float64) map[int]float64 {
	m := map[int]float64{}
	for i, f := range figures {
		m[i+1] = f
	}
	return m
}

func TestCompareTakesTheBetterPeer(t *testing.T) {
	by := map[string]map[int]float64{
		"mpiv": rounds(2, 3, 4), "openmpi": rounds(1, 6, 5), "mpich": rounds(4, 4, 2),
	}
	low := compare(8, by, latencyMetric, "mpiv")
	require.Equal(t, "mpich", low.better, "medians 5 and 4, lower is better")
	require.Equal(t, 0.75, low.ratio)
	require.Equal(t, 0.5, low.lowest, "round 1: 2/4")
	require.Equal(t, 2.0, low.highest, "round 3: 4/2, the same peer")

	high := compare(8, by, bandwidthMetric, "mpiv")
	require.Equal(t, "openmpi", high.better, "higher is better")
	require.Equal(t, 0.6, high.ratio)
	require.Equal(t, 0.5, high.lowest)
	require.Equal(t, 2.0, high.highest)
}

func TestCompareWithoutOneSide(t *testing.T) {
	alone := compare(8, map[string]map[int]float64{"mpiv": rounds(2)}, latencyMetric, "mpiv")
	require.Equal(t, row{size: 8, median: map[string]float64{"mpiv": 2}}, alone)
	peers := compare(8, map[string]map[int]float64{"mpich": rounds(2)}, latencyMetric, "mpiv")
	require.Equal(t, row{size: 8, median: map[string]float64{"mpich": 2}}, peers)
	apart := compare(8, map[string]map[int]float64{"mpiv": {1: 2}, "mpich": {2: 4}}, latencyMetric, "mpiv")
	require.Equal(t, [3]float64{0.5, 0.5, 0.5}, [3]float64{apart.ratio, apart.lowest, apart.highest}, "no round has both")
}

func TestTabulate(t *testing.T) {
	run := func(round int, who string, figures ...float64) record {
		return record{twoFigures, round, who, outcome{points: []point{{8, figures}}}}
	}
	tables := tabulate([]record{
		run(1, "mpich", 20, 50), run(1, "mpiv", 10, 100),
		run(2, "mpiv", 30, 300), {twoFigures, 2, "mpich", outcome{err: errors.New("broke")}},
		{oneFigure, 1, "mpiv", outcome{points: []point{{8, []float64{1}}, {0, []float64{2}}}}},
	}, []string{"mpiv", "openmpi", "mpich"}, "mpiv")

	require.Len(t, tables, 3, "one for each metric of a setting")
	require.Equal(t, "bandwidth", tables[0].metric.name)
	require.Equal(t, "rate", tables[1].metric.name)
	require.Equal(t, []string{"mpiv", "mpich"}, tables[0].whos)
	require.Equal(t, map[string]int{"mpich": 1}, tables[0].failed)
	require.Equal(t, 1.0, tables[0].rows[0].ratio, "20 of 10 and 30, over the 20 that did not fail")
	require.Equal(t, 4.0, tables[1].rows[0].ratio)
	require.Equal(t, []int{0, 8}, []int{tables[2].rows[0].size, tables[2].rows[1].size}, "rows by size")
}
