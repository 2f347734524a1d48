package main

import (
	"context"
	"testing"

	"github.com/mpiv/mpiv/mpiv"
)

func TestAWalkComesToTheSameAgain(t *testing.T) {
	for _, size := range []int{1, 2, 4} {
		var sums [2]uint64
		for i := range sums {
			err := mpiv.Run(t.Context(), size, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
				sum, err := wander(ctx, world, 3, 30)
				if err == nil && world.Rank() == 0 {
					sums[i] = sum
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if sums[0] != sums[1] || sums[0] == 0 {
			t.Errorf("seed 3, 30 turns, %d ranks: %x, and then %x", size, sums[0], sums[1])
		}
	}
}
