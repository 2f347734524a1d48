package mpiv

import (
	"context"
	"errors"
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
		if err := Waitall(ctx, rs, nil); err != nil {
			return err
		}
		_, err := Recv(ctx, world, v[1:], 0, 2)
		return err
	}
	probed := func(ctx context.Context, world *Comm) error {
		v := []int{1, 2}
		if err := Send(ctx, world, v[:1], 0, 2); err != nil {
			return err
		}
		m, _, err := Mprobe(ctx, world, 0, 2)
		if err != nil {
			return err
		}
		other := Irecv(world, v[1:], 0, 1)
		r := Imrecv(m, v)
		_, wrong := r.Wait(ctx)
		other.Cancel()
		if _, err := other.Wait(ctx); !errors.Is(err, ErrCancelled) {
			return err
		}
		if _, err := Mrecv(ctx, m, v); err != nil { // it was not received
			return err
		}
		if _, err := Mrecv(ctx, m, v); !errors.Is(err, ErrRequest) {
			return err
		}
		if _, err := Sendrecv(ctx, world, v[:1], 0, 3, v[1:], 0, 3); err != nil { // nor is v in use
			return err
		}
		return wrong
	}
	check := Options{Check: true}
	err := Run(t.Context(), 1, check, changed)
	require.ErrorIs(t, err, ErrModified)
	require.Contains(t, err.Error(), "check_test.go:15")
	require.Contains(t, err.Error(), "check_test.go:17")
	err = Run(t.Context(), 1, check, twice)
	require.ErrorIs(t, err, ErrOverlap)
	require.Contains(t, err.Error(), "check_test.go:23")
	err = Run(t.Context(), 1, check, probed)
	require.ErrorIs(t, err, ErrOverlap)
	require.Contains(t, err.Error(), "Imrecv (check_test.go:")
	require.NoError(t, Run(t.Context(), 1, check, right))
	require.NoError(t, Run(t.Context(), 1, Options{}, changed))
}
