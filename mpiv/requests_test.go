package mpiv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// There is room for the status of each request, or nothing is waited for.
func TestStatusesAreAsManyAsRequests(t *testing.T) {
	err := mpiv.Run(t.Context(), 1, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
		in := make([]int, 1)
		rs := []mpiv.Request{mpiv.Irecv(world, in, 0, 1), mpiv.Isend(world, []int{7}, 0, 1)}
		little := make([]mpiv.Status, 1)
		_, testall := mpiv.Testall(rs, little)
		_, waitsome := mpiv.Waitsome(ctx, rs, little)
		_, testsome := mpiv.Testsome(rs, little)
		for _, err := range []error{mpiv.Waitall(ctx, rs, little), testall, waitsome, testsome, mpiv.Waitall(ctx, make([]mpiv.Request, 2), little)} {
			var said *mpiv.RankError
			require.ErrorAs(t, err, &said)
			require.ErrorIs(t, err, mpiv.ErrCount)
			require.ErrorContains(t, err, "1 statuses of 2 requests")
		}
		require.NoError(t, mpiv.Waitall(ctx, rs, make([]mpiv.Status, 2)))
		require.Equal(t, []int{7}, in)
		return nil
	})
	require.NoError(t, err)
}

func TestTestallTellsOfWhatNeverBegan(t *testing.T) {
	err := mpiv.Run(t.Context(), 1, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
		rs := []mpiv.Request{mpiv.Irecv(world, make([]int, 1), 0, 1), mpiv.Isend(world, []int{1}, 7, 1)} // the other waits for what this one sends
		if done, err := mpiv.Testall(rs, nil); done || !errors.Is(err, mpiv.ErrRank) {
			return fmt.Errorf("Testall = %v, %v", done, err)
		}
		if done, err := mpiv.Testall(rs, nil); done || err != nil {
			return fmt.Errorf("Testall of what is under way = %v, %v", done, err)
		}
		rs[0].Cancel()
		if _, err := rs[0].Wait(ctx); !errors.Is(err, mpiv.ErrCancelled) {
			return err
		}
		return nil
	})
	require.NoError(t, err)
}
