//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const roleSteps = "rank-steps"

const (
	steadyFor      = 9 * time.Second // that a job of [desk.steady] lasts at least
	steadyForShort = 6 * time.Second // in a short form
	stepLasts      = 2 * time.Millisecond
	stepWords      = 1 << 10 // of state: a message of 8 KiB takes less than a step on a cable of 100 Mbit/s
)

// stepsRank is a program whose jobs last as long on fast machines as on slow ones. Its arguments are how many steps there
// are, and how long each lasts at least. In each every rank mixes its words with its neighbour's; rank 0 prints a sum of
// all that hangs on the number of steps and of ranks alone.
func stepsRank(args []string) error {
	if len(args) != 2 {
		return errors.New("want how many steps there are, and how long each lasts")
	}
	steps, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	lasts, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		at, words := 0, make([]uint64, stepWords)
		for i := range words {
			words[i] = uint64(world.Rank()*len(words) + i)
		}
		state := world.State()
		state.Protect("at", &at)
		state.Protect("words", &words)
		if err := state.Restore(ctx); err != nil {
			return err
		}
		next, last := (world.Rank()+1)%world.Size(), (world.Rank()+world.Size()-1)%world.Size()
		theirs, sum := make([]uint64, len(words)), []uint64{0}
		for ; at < steps; at++ {
			end := time.Now().Add(lasts)
			if err := state.SafePoint(ctx); err != nil {
				return err
			}
			if _, err := mpiv.Sendrecv(ctx, world, words, next, 1, theirs, last, 1); err != nil {
				return err
			}
			for i, x := range theirs {
				words[i] = words[i]*6364136223846793005 + x + uint64(at)
			}
			if err := mpiv.Allreduce(ctx, world, words[:1], sum, mpiv.Sum); err != nil {
				return err
			}
			select {
			case <-time.After(time.Until(end)):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		own := []uint64{sum[0]}
		for _, x := range words {
			own[0] = own[0]*31 + x
		}
		if err := mpiv.Allreduce(ctx, world, own, sum, mpiv.Sum); err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Printf("%d steps, sum %016x\n", steps, sum[0])
		}
		return nil
	})
	return nil
}

// steady is a program that must survive, whose steps last so long each: what it prints hangs on its arguments alone, but for
// that.
func (d *desk) steady(step time.Duration) []string {
	long := steadyFor
	if d.short {
		long = steadyForShort
	}
	return []string{d.self, roleSteps, fmt.Sprint(int(long / stepLasts)), step.String()}
}
