package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKindsOfDistancesAreBetweenWideGaps(t *testing.T) {
	for name, tt := range map[string]struct {
		ds   []distance
		want []distance
	}{
		"none":                     {nil, nil},
		"one":                      {[]distance{60}, nil},
		"all about the same":       {[]distance{70, 60, 64, 80}, nil},
		"two kinds":                {[]distance{62, 240, 60, 250}, []distance{121}},
		"three":                    {[]distance{25, 240, 60, 62}, []distance{38, 121}},
		"one that is not known":    {[]distance{0, 60, 62}, nil},
		"two kinds, one not known": {[]distance{250, 0, 90}, []distance{150}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, kinds(tt.ds)) })
	}
}

// ran is a run of who, between whose ends the cores had these distances.
func ran(who string, round int, before, after distance) record {
	return record{oneFigure, round, who, outcome{before: before, after: after}}
}

func TestRunsAreToldApartByTheDistanceOfTheCores(t *testing.T) {
	records := []record{
		ran("mpiv", 1, 60, 62), ran("openmpi", 1, 61, 240), ran("mpiv", 2, 250, 244), ran("openmpi", 2, 60, 60), ran("mpiv", 3, 60, 0),
	}
	tellApart(records)
	var cores []string
	for _, r := range records {
		cores = append(cores, r.cores)
	}
	const near, far = "cores 60ns apart", "cores 244ns apart"
	require.Equal(t, []string{near, moved, far, near, moved}, cores)
	require.Equal(t, "latency, 2 ranks, shm, cores 60ns apart", records[0].setting.String())

	kept, left := toCompare(records, 3)
	require.Equal(t, []record{records[0], records[3]}, kept, "of far cores Open MPI has no run")
	require.Equal(t, map[string]int{"latency, 2 ranks, shm, cores 244ns apart": 1, "latency, 2 ranks, shm, cores that moved": 2}, left)

	kept, _ = toCompare(records, 6)
	require.Empty(t, kept, "one of six is less than a third")
}

func TestRunsOfTheSameCoresAreAllCompared(t *testing.T) {
	records := []record{ran("mpiv", 1, 60, 62), ran("openmpi", 1, 61, 0)}
	tellApart(records)
	kept, left := toCompare(records, 9)
	require.Equal(t, records, kept)
	require.Empty(t, left)
	require.Equal(t, "latency, 2 ranks, shm", records[0].setting.String())
}

func TestDistanceOfTwoCores(t *testing.T) {
	if d := measureDistance(); d != 0 { // otherwise there is one core, or somebody else has it
		require.Greater(t, d, distance(1))
		require.Less(t, d, distance(1e6))
	}
}

func unknown() distance { return 0 }
