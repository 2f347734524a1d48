package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// buffer has rank 0 send rank 1 one message after the other, each when the answer to the one before is here: so there is
// always room for it.
func buffer(ctx context.Context, world *mpiv.Comm) error {
	const rounds, bytes = 700, 100_000
	round, sum := 0, uint64(0)
	state := world.State()
	state.Protect("round", &round)
	state.Protect("sum", &sum)
	if err := state.Restore(ctx); err != nil {
		return err
	}
	if err := mpiv.BufferAttach(world, 2*(bytes+mpiv.BsendOverhead)); err != nil {
		return err
	}
	message, answer := make([]byte, bytes), []uint64{0}
	for ; round < rounds; round++ {
		if round%200 == 199 {
			if err := state.SafePoint(ctx); err != nil {
				return err
			}
		}
		if world.Rank() == 1 {
			if _, err := mpiv.Recv(ctx, world, message, 0, 1); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			answer[0] = uint64(message[0]) + uint64(round)
			if err := mpiv.Send(ctx, world, answer, 0, 2); err != nil {
				return err
			}
			continue
		}
		message[0] = byte(round)
		if err := mpiv.Bsend(ctx, world, message, 1, 1); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if _, err := mpiv.Recv(ctx, world, answer, 1, 2); err != nil {
			return err
		}
		sum += answer[0]
	}
	if world.Rank() == 0 {
		fmt.Println("sum", sum)
	}
	return nil
}

// A rank that goes on after a death has the answers to what it sends again before it is told that they have come.
func TestBsendAfterADeath(t *testing.T) {
	code, want, errs := result(t, mpivrun(t, "-n", "2", "-x", envProgram+"=buffer", self(t)))
	require.Zero(t, code, errs)
	require.True(t, strings.HasPrefix(want, "sum "), want)
	code, got, errs := result(t, mpivrun(t, "-n", "2", "--spares", "1", "--snapshot", "0.2", "--chaos", "kill 0@700ms", "-x", envProgram+"=buffer", self(t)))
	require.Zero(t, code, errs)
	require.Equal(t, want, got, errs)
	require.Contains(t, errs, "rank 0 goes on from")
}
