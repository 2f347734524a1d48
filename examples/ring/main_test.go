package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/mpiv/mpiv/mpiv"
)

func TestTokenIsTheSumOfTheRanks(t *testing.T) {
	const rounds = 20
	for _, size := range []int{1, 2, 3, 4, 9} {
		err := mpiv.Run(t.Context(), size, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
			got, err := pass(ctx, world, rounds)
			if err != nil {
				return err
			}
			var want int64
			for round := range rounds {
				last := size - 1
				if round == rounds-1 && world.Rank() != 0 {
					last = world.Rank() // in the last round the token has come this far
				}
				for rank := range last + 1 {
					want += int64(rank)
				}
			}
			if got != want {
				return fmt.Errorf("pass(%d rounds) of %d ranks = %d, want %d", rounds, size, got, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRun(t *testing.T) {
	if err := mpiv.Run(t.Context(), 4, mpiv.Options{}, run); err != nil {
		t.Error(err)
	}
}
