package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mpiv/mpiv/mpiv"
)

func TestAnyNumberOfRanksFindsTheSame(t *testing.T) {
	for below, want := range map[int64]best{2: {1, 0, 0}, 10: {9, 19, 61}, 100: {97, 118, 3117}, 10_000: {6171, 261, 849637}} {
		for _, size := range []int{1, 2, 3, 8} {
			err := mpiv.Run(t.Context(), size, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
				if world.Rank() > 0 {
					return work(ctx, world, below)
				}
				got, err := handOut(ctx, world, below)
				if err == nil && got != want {
					err = fmt.Errorf("handOut(below %d) with %d ranks = %+v, want %+v", below, size, got, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAWrongBoundExitsAsAWrongOptionDoes(t *testing.T) {
	defer func(was int64) { *below = was }(*below)
	*below = 1
	err := mpiv.Run(t.Context(), 1, mpiv.Options{}, run)
	if exit, ok := errors.AsType[*mpiv.ExitError](err); !ok || exit.Code != 2 {
		t.Errorf("farm -below 1: %v, want exit status 2", err)
	}
}
