package mpiv

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckFindsBuffersInUse(t *testing.T) {
	changed := func(ctx context.Context, world *Comm) error {
		v := []int{1}
		r := Isend(world, v, 0, 1)
		v[0] = 2
		_, err := r.Wait(ctx)
		return err
	}
	twice := func(ctx context.Context, world *Comm) error {
		v := []int{1, 2}
		Irecv(world, v, 0, 1)
		r := Isend(world, v[1:], 0, 1)
		_, err := r.Wait(ctx)
		return err
	}
	right := func(ctx context.Context, world *Comm) error {
		v := []int{1, 2, 3}
		rs := []Request{Irecv(world, v[:1], 0, 1), Isend(world, v[1:], 0, 2), Isend(world, v[2:], 0, 1)}
		if err := Waitall(ctx, rs[:1], nil); err != nil {
			return err
		}
		if v[0] != 3 {
			return fmt.Errorf("received %v", v[0])
		}
		v[0] = 4
		return Waitall(ctx, rs, nil)
	}
	check := Options{Check: true}
	err := Run(t.Context(), 1, check, changed)
	require.ErrorIs(t, err, ErrModified)
	require.Contains(t, err.Error(), "check_test.go:14")
	require.Contains(t, err.Error(), "check_test.go:16")
	err = Run(t.Context(), 1, check, twice)
	require.ErrorIs(t, err, ErrOverlap)
	require.Contains(t, err.Error(), "check_test.go:22")
	require.NoError(t, Run(t.Context(), 1, check, right))
	require.NoError(t, Run(t.Context(), 1, Options{}, changed))
}
