package sim

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/seeds"
)

// levels runs jobs at each level, usually from so many seeds, and has check look at what
// happened if that is much.
func levels(t *testing.T, usual int, run func(seed uint64, level Level, tally *SurviveTally) error, check func(t *testing.T, level Level, n int, tally SurviveTally)) {
	for name, level := range map[string]Level{"Moves": Moves, "Crashes": Crashes} {
		t.Run(name, func(t *testing.T) {
			var tally SurviveTally
			n := seeds.Each(t, usual, func(seed uint64) {
				if err := run(seed, level, &tally); err != nil {
					t.Fatalf("%v\n%s", err, seeds.Replay("./internal/sim", t.Name(), seed))
				}
			})
			t.Logf("%+v", tally)
			if n >= 100 {
				check(t, level, n, tally)
			}
		})
	}
}

func TestSurvive(t *testing.T) {
	levels(t, 300, Survive, func(t *testing.T, level Level, _ int, tally SurviveTally) {
		require.Positive(t, tally.Iterations)
		require.Positive(t, tally.Cuts)
		require.Positive(t, tally.Moves)
		require.Positive(t, tally.Overtaken)
		require.Positive(t, tally.Returned)
		require.Positive(t, tally.Delivered)
		require.Positive(t, tally.Withdrawn)
		require.Positive(t, tally.Received)
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
		require.Positive(t, tally.Testified)
		require.Positive(t, tally.Lost)
		require.Positive(t, tally.Unknown)
		require.Positive(t, tally.Spared)
		require.Positive(t, tally.Tasks)
		require.Greater(t, tally.Drafts, tally.Spared)
		require.Greater(t, tally.Recoveries, tally.FromStart)
	})
}

// Whoever has to know of a move is found, and so nobody else has to be told at once.
func TestPatient(t *testing.T) {
	levels(t, 150, Patient, func(t *testing.T, _ Level, n int, tally SurviveTally) {
		require.Positive(t, tally.Pressed)
		require.Greater(t, tally.Moves, n)
	})
}

func TestChanceIsReported(t *testing.T) {
	var tally SurviveTally
	reported := 0
	n := seeds.Each(t, 40, func(seed uint64) {
		err := Unsteady(seed, &tally)
		if err == nil {
			return
		}
		ne, ok := errors.AsType[*engine.NondeterminismError](err)
		require.True(t, ok, "seed %d: %v", seed, err)
		require.Positive(t, ne.Message)
		reported++
	})
	t.Logf("%d of %d reported; %+v", reported, n, tally)
	if n >= 40 {
		require.Greater(t, reported, n/4)
	}
}

// Seeds that have failed before.
func TestSurviveAgain(t *testing.T) {
	var tally SurviveTally
	for _, again := range []struct {
		seed  uint64
		level Level
	}{
		{1758, Crashes}, // a rank left while offers and other messages were queued again
		{6697, Crashes}, // what was an offer in a life came with its body in the next, after all before it was acknowledged
		{3278, Moves},   // a process without ranks took a connection from one that refused it
		{2800, Moves},   // a rank was to leave, stayed, and was to leave again before the first answer had come
		{2067, Moves},   // a rank was to leave again, and then stayed, where it was not known yet that it had come
		{121, Moves},    // a rank left while a message for it was half there, which was acknowledged when the rest came
		{1881, Crashes}, // a body was being fetched when its sender left, and was offered elsewhere before that failed
		{1293, Crashes}, // a rank left while a body was half sent that it had offered in a life before
		{53, Moves},     // a message was asked back where the map by which it was sent was not known
		{640, Moves},    // a rank left whose peer did not know yet what it had given back
		{18, Moves},     // what was queued for a rank that was leaving was sent when its own sender was, too, and came late
		{678, Moves},    // the same, of what a rank had brought along
	} {
		require.NoError(t, Survive(again.seed, again.level, &tally))
	}
	require.NoError(t, Patient(2037, Moves, &tally)) // who had offered a message to a rank that left was not told where to offer it again
}
