package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// However many ranks share a round, it has the same points.
func TestRoundsDoNotHangOnRanks(t *testing.T) {
	for round := range 2 {
		want := 0
		for b := range *batches {
			want += insideOf(round**batches + b)
		}
		for _, size := range []int{1, 3, 4} {
			require.NoError(t, mpiv.Run(t.Context(), size, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
				got, err := share(ctx, world, round)
				if got != want {
					t.Errorf("round %d by rank %d of %d: %d, want %d", round, world.Rank(), size, got, want)
				}
				return err
			}))
		}
	}
}

func TestNothingHappens(t *testing.T) {
	*rounds = 3
	require.NoError(t, mpiv.Run(t.Context(), 3, mpiv.Options{Check: true}, run))
}
