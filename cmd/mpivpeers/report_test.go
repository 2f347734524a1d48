package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// golden compares got with the file, or makes it the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o666))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// someRecords has, over 3 rounds: a latency kept, missed and without peers, a
// collective far beyond its bar, a run that failed, and a figure without size.
func someRecords() []record {
	latency := named("latency", 2, "shm")
	latency.sizes, latency.iters, latency.metrics = []int{0, 4096}, 1, []metric{latencyMetric}
	barrier := named("barrier", 4, "shm")
	barrier.iters, barrier.metrics = 1, []metric{latencyMetric}
	var all []record
	add := func(s setting, round int, who string, figures ...float64) {
		r := record{s, round, who, outcome{wall: 1500 * time.Millisecond, carried: 2000}}
		for i, figure := range figures {
			size := noSize
			if len(s.sizes) > 0 {
				size = s.sizes[i]
			}
			r.points = append(r.points, point{size, []float64{figure}})
		}
		all = append(all, r)
	}
	for round, figure := range []float64{0.30, 0.20, 0.25} {
		add(latency, round+1, "mpiv", figure, 1.5)
		add(latency, round+1, "openmpi", 0.40, 1.25)
		add(latency, round+1, "mpich", 0.35, 2+figure)
		add(barrier, round+1, "mpiv", 4000)
		add(barrier, round+1, "openmpi", 2500)
	}
	broken := errors.New("exit status 1\nmpirun.mpich …\nno route, and, \"quotes\"")
	return append(all, record{barrier, 1, "mpich", outcome{err: broken, wall: time.Second}})
}

func TestReport(t *testing.T) {
	h := heading{
		command: "mpivpeers -quick", machine: "2 × a processor", load: "0.10", versions: []string{"Open MPI 4", "MPICH 4"}, congestion: "bbr",
		rounds: 3, ours: "mpiv", names: map[string]string{"mpiv": "mpiv", "openmpi": "Open MPI", "mpich": "MPICH"},
	}
	records := someRecords()
	tables := tabulate(records, contestants(records), "mpiv")
	var page strings.Builder
	require.NoError(t, writeReport(&page, h, tables, records, map[string]string{tables[0].plotName(): tables[0].plotName()}))
	golden(t, "report.md", page.String())
}

func TestCSV(t *testing.T) {
	var text strings.Builder
	c := newCSV(&text, "bbr")
	for _, r := range someRecords() {
		require.NoError(t, c.add(r))
	}
	golden(t, "peers.csv", text.String())
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestCSVSaysWhenItCannotWrite(t *testing.T) {
	require.ErrorContains(t, newCSV(full{}, "").add(someRecords()[0]), "disk full")
}

func TestFigureName(t *testing.T) {
	for want, v := range map[string]float64{"0.131": 0.1309, "0.0123": 0.01234, "1.23": 1.234, "12.3": 12.34, "123": 123.4, "12346": 12345.6, "1.00": 1} {
		require.Equal(t, want, figureName(v))
	}
}

func TestSizeName(t *testing.T) {
	for want, size := range map[string]int{"–": noSize, "0 B": 0, "1000 B": 1000, "1 KiB": 1024, "1025 B": 1025, "4 MiB": 4 << 20} {
		require.Equal(t, want, sizeName(size))
	}
}

func TestPlot(t *testing.T) {
	dir := t.TempDir()
	names := map[string]string{"mpiv": "mpiv", "mpich": "MPICH"}
	many := ratios(named("latency", 2, "shm"), latencyMetric, map[int]float64{0: 0.5, 1: 0.6, 1024: 0.9})
	drawn, err := writePlot(dir, many, names)
	require.NoError(t, err)
	require.True(t, drawn)
	svg, err := os.ReadFile(filepath.Join(dir, many.plotName()))
	require.NoError(t, err)
	require.Contains(t, string(svg), ">MPICH<", "the legend")

	drawn, err = writePlot(dir, ratios(named("barrier", 2, "shm"), latencyMetric, map[int]float64{noSize: 1}), names)
	require.NoError(t, err)
	require.False(t, drawn, "nothing to draw without sizes")
}
