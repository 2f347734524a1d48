package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/seeds"
)

func TestMessages(t *testing.T) {
	var tally Tally
	n := seeds.Each(t, 300, func(seed uint64) {
		if err := Messages(seed, &tally); err != nil {
			t.Fatalf("%v\n%s", err, seeds.Replay("./internal/sim", "TestMessages", seed))
		}
	})
	t.Logf("%+v", tally)
	if n < 100 {
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

// Seeds that have failed before.
func TestMessagesAgain(t *testing.T) {
	var tally Tally
	require.NoError(t, Messages(1924, &tally)) // a connection broke while a message for a receive from any source was half there, and a later one took its place
}

func TestTheSameSeedIsTheSameRun(t *testing.T) {
	var a, b Tally
	require.NoError(t, Messages(7, &a))
	require.NoError(t, Messages(7, &b))
	require.Equal(t, a, b)
}
