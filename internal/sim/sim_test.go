package sim

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	seeds = flag.Int("seeds", 300, "how many seeds to run")
	first = flag.Uint64("seed", 1, "the first seed")
)

func TestMessages(t *testing.T) {
	var tally Tally
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		if err := Messages(seed, &tally); err != nil {
			t.Fatalf("%v\nreplay: go test ./internal/sim -run TestMessages -seed %d -seeds 1", err, seed)
		}
	}
	t.Logf("%+v", tally)
	if *seeds < 100 {
		return
	}
	require.Positive(t, tally.Messages)
	require.Positive(t, tally.Cuts)
	require.Greater(t, tally.Connections, tally.Cuts/2)
	require.Positive(t, tally.Changes)
	require.Positive(t, tally.DoubleDials)
	require.Positive(t, tally.CancelledReceives)
	require.Positive(t, tally.RetractedSends)
	require.Positive(t, tally.Probes)
}

func TestTheSameSeedIsTheSameRun(t *testing.T) {
	var a, b Tally
	require.NoError(t, Messages(7, &a))
	require.NoError(t, Messages(7, &b))
	require.Equal(t, a, b)
}
