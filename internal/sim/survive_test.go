package sim

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

func TestSurvive(t *testing.T) {
	for name, level := range map[string]Level{"Moves": Moves, "Crashes": Crashes} {
		t.Run(name, func(t *testing.T) {
			var tally SurviveTally
			n := uint64(*seeds)
			if testing.Short() {
				n = min(n, 30)
			}
			for seed := *first; seed < *first+n; seed++ {
				if err := Survive(seed, level, &tally); err != nil {
					t.Fatalf("%v\nreplay: go test ./internal/sim -run TestSurvive/%s -seed %d -seeds 1", err, name, seed)
				}
			}
			t.Logf("%+v", tally)
			if n < 100 {
				return
			}
			require.Positive(t, tally.Iterations)
			require.Positive(t, tally.Cuts)
			require.Positive(t, tally.Moves)
			require.Positive(t, tally.Overtaken)
			if level == Moves {
				require.Positive(t, tally.Undone)
				return
			}
			require.Positive(t, tally.Covered)
			require.Positive(t, tally.Together)
			require.Positive(t, tally.Replayed)
			require.Positive(t, tally.Leaving)
			require.Positive(t, tally.Spilled)
			require.Positive(t, tally.FromStart)
			require.Greater(t, tally.Recoveries, tally.FromStart)
		})
	}
}

func TestChanceIsReported(t *testing.T) {
	var tally SurviveTally
	reported := 0
	for seed := *first; seed < *first+40; seed++ {
		err := Unsteady(seed, &tally)
		if err == nil {
			continue
		}
		ne, ok := errors.AsType[*engine.NondeterminismError](err)
		require.True(t, ok, "seed %d: %v", seed, err)
		require.Positive(t, ne.Message)
		reported++
	}
	t.Logf("%d of 40 reported; %+v", reported, tally)
	require.Greater(t, reported, 10)
}
