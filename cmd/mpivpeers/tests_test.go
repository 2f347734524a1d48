package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettings(t *testing.T) {
	for name, c := range map[string]struct {
		choices
		want []string
	}{
		"a pair test ignores the ranks": {
			choices{tests: []string{"latency"}, ranks: []int{4}, cores: 2},
			[]string{"latency, 2 ranks, shm", "latency, 2 ranks, tcp"},
		},
		"a collective runs over shared memory with all ranks": {
			choices{tests: []string{"bcast"}, cores: 2},
			[]string{"bcast, 2 ranks, shm", "bcast, 4 ranks, shm", "bcast, 8 ranks, shm", "bcast, 16 ranks, shm"},
		},
		"a collective runs over TCP when asked to": {
			choices{tests: []string{"bcast"}, ranks: []int{3}, transports: []string{"tcp"}, cores: 2},
			[]string{"bcast, 3 ranks, tcp"},
		},
		"mbw_mr takes even ranks only": {
			choices{tests: []string{"mbw_mr"}, ranks: []int{3, 4}, transports: []string{"shm"}, cores: 2},
			[]string{"mbw_mr, 4 ranks, shm"},
		},
		"a test without a fitting size is left out": {
			choices{tests: []string{"reduce", "bcast"}, ranks: []int{2}, sizes: []int{3}, cores: 2},
			[]string{"bcast, 2 ranks, shm"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			settings, err := c.settings()
			require.NoError(t, err)
			var got []string
			for _, s := range settings {
				got = append(got, s.String())
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestSettingsRefuse(t *testing.T) {
	_, err := choices{tests: []string{"latencies"}}.settings()
	require.ErrorContains(t, err, `"latencies"`)
	_, err = choices{tests: []string{"reduce"}, sizes: []int{3}}.settings()
	require.ErrorContains(t, err, "nothing to run")
}

func TestIterationsShrinkWithTheCrowdAndWithQuick(t *testing.T) {
	iters := func(c choices) int {
		c.tests, c.ranks = []string{"bcast"}, []int{4}
		settings, err := c.settings()
		require.NoError(t, err)
		return settings[0].iters
	}
	require.Equal(t, 5000, iters(choices{cores: 4}))
	require.Equal(t, 1000, iters(choices{cores: 2}))
	require.Equal(t, 500, iters(choices{cores: 4, quick: true}))
	require.Equal(t, 100, iters(choices{cores: 2, quick: true}))
}

func TestFlags(t *testing.T) {
	s := setting{test: test{sizes: []int{8, 65536}, iters: 50, warmup: 5}}
	require.Equal(t, "-s 8,65536 -i 50 -x 5", strings.Join(s.flags(1), " "))
	require.Equal(t, "-s 8,65536 -i 1 -x 0", strings.Join(s.flags(100), " "), "at least one iteration")
	require.Equal(t, "-i 50 -x 5", strings.Join(setting{test: test{iters: 50, warmup: 5}}.flags(1), " "), "no sizes")
	require.Empty(t, setting{}.flags(1), "init has no options")
}

func TestLeastBytesCountsWhatTheProgramWillDo(t *testing.T) {
	s := setting{test: test{sizes: []int{0, 100, 8192, 16384}, iters: 50, divisor: 10}}
	require.EqualValues(t, 50*100+50*8192+5*16384, s.leastBytes(1))
	require.EqualValues(t, 100+8192+16384, s.leastBytes(100), "at least one iteration of each")
}

func TestParseSizes(t *testing.T) {
	sizes, err := parseSizes("0,8,1K,4M")
	require.NoError(t, err)
	require.Equal(t, []int{0, 8, 1024, 4 << 20}, sizes)
	none, err := parseSizes("")
	require.NoError(t, err)
	require.Empty(t, none)
	for _, bad := range []string{"-1", "x", "8,", "K", "1k", "1025M", "9999999999999999999"} {
		_, err := parseSizes(bad)
		require.Error(t, err, bad)
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for _, args := range []string{"-ranks 1", "-tests latencies", "-tests reduce -sizes 3", "-transports udp", "-against lam", "-rounds -1", "-sizes 8k", "extra", "-mpiv= -against="} {
		_, err := parseOptions(strings.Fields(args))
		require.Error(t, err, args)
	}
	o, err := parseOptions([]string{"-quick"})
	require.NoError(t, err)
	require.Equal(t, 2, o.rounds)
}
