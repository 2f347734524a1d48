package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	oneFigure  = setting{test: test{name: "latency", sizes: []int{0, 8}, iters: 1, metrics: []metric{latencyMetric}}, ranks: 2, transport: "shm"}
	twoFigures = setting{test: test{name: "mbw_mr", sizes: []int{8}, iters: 1, metrics: []metric{bandwidthMetric, rateMetric}}, ranks: 2, transport: "shm"}
	sizeless   = setting{test: test{name: "barrier", iters: 1, metrics: []metric{latencyMetric}}, ranks: 2, transport: "shm"}
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		setting
		output string
		want   []point
	}{
		"size and figure": {oneFigure, "# OSU-style MPI Latency Test\n# Size          Latency (us)\n0                     0.3129\n8                     0.3140\n",
			[]point{{0, []float64{0.3129}}, {8, []float64{0.3140}}}},
		"two figures":     {twoFigures, "# Size  MB/s  Messages/s\n8    96.0000    12000000.0000\n", []point{{8, []float64{96, 12e6}}}},
		"no size":         {sizeless, "# Avg Latency(us)\n      0.3400\n", []point{{noSize, []float64{0.34}}}},
		"blank lines":     {sizeless, "\n\n0.5", []point{{noSize, []float64{0.5}}}},
		"init is comment": {setting{test: test{name: "init"}}, "# MPI_Init took 3 ms\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(c.setting, c.output)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		setting
		output, says string
	}{
		"nothing":               {oneFigure, "", "want [0 8]"},
		"a size too few":        {oneFigure, "0 1.0\n", "want [0 8]"},
		"a size too many":       {oneFigure, "0 1.0\n8 1.0\n16 1.0\n", "want [0 8]"},
		"another order":         {oneFigure, "8 1.0\n0 1.0\n", "want [0 8]"},
		"a figure too few":      {twoFigures, "8 96.0\n", "1 figures, want 2"},
		"a figure too many":     {oneFigure, "0 1.0 2.0\n8 1.0\n", "2 figures, want 1"},
		"a word for a size":     {oneFigure, "hello 1.0\n", "no size"},
		"a word for a figure":   {oneFigure, "0 fast\n", "not a figure"},
		"nothing took no time":  {oneFigure, "0 0.0000\n8 1.0\n", "not a figure"},
		"not a number":          {oneFigure, "0 NaN\n8 1.0\n", "not a figure"},
		"a size where none is":  {sizeless, "8 0.34\n", "2 figures, want 1"},
		"a figure out of init":  {setting{test: test{name: "init"}}, "3.0\n", "0"},
		"barrier printed twice": {sizeless, "0.3\n0.3\n", "want [-1]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.setting, c.output)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("# Size\n0 1.0\n8 2.0\n")
	f.Add("0 1e300\n8 Inf\n")
	f.Fuzz(func(t *testing.T, output string) {
		points, err := parse(oneFigure, output)
		if err != nil {
			return
		}
		if len(points) != 2 || points[0].size != 0 || points[1].size != 8 {
			t.Fatalf("parse(%q) = %v, want sizes 0 and 8", output, points)
		}
		for _, p := range points {
			if len(p.figures) != 1 || !(p.figures[0] > 0) {
				t.Fatalf("parse(%q) = %v, want one figure above 0 for each size", output, points)
			}
		}
	})
}

func TestInterfaceBytes(t *testing.T) {
	const dev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  eth0: 111 1 0 0 0 0 0 0 222 2 0 0 0 0 0 0
    lo:21478430659  561895 0 0 0 0 0 0 21478430659 561895 0 0 0 0 0 0
`
	n, err := interfaceBytes(dev, "lo")
	require.NoError(t, err)
	require.EqualValues(t, 21478430659, n)
	n, err = interfaceBytes(dev, "eth0")
	require.NoError(t, err)
	require.EqualValues(t, 333, n)
	for _, bad := range []string{"", "eth0: 1 2\n", "lo:\n", "lo: x\n"} {
		_, err := interfaceBytes(bad, "lo")
		require.Error(t, err, bad)
	}
}
