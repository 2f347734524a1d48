//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const rolePhases = "rank-phases"

// A mood is how a program behaves for a while: what it does in one turn, which
// ends with all ranks having heard of each other.
type mood struct {
	name string
	turn func(n int) (bytes int, pause, work time.Duration)
}

// The longest message is long enough to fill a cable, and short enough that a turn ends soon.
const phaseMost = 1 << 20

var moods = []mood{
	{"steady", func(int) (int, time.Duration, time.Duration) { return 256 << 10, 0, 0 }},
	{"quiet", func(int) (int, time.Duration, time.Duration) { return 8, 400 * time.Millisecond, 0 }},
	{"busy", func(int) (int, time.Duration, time.Duration) { return 256 << 10, 0, 300 * time.Millisecond }},
	{"growing", func(n int) (int, time.Duration, time.Duration) { return min(1<<(n/2), phaseMost), 0, 0 }},
	{"shrinking", func(n int) (int, time.Duration, time.Duration) { return max(phaseMost>>(n/8), 1), 0, 0 }},
	{"bursts", func(n int) (int, time.Duration, time.Duration) {
		if n%8 == 7 {
			return 64 << 10, 700 * time.Millisecond, 0
		}
		return 512 << 10, 0, 0
	}},
}

// phasesRank is the program of m9, whose arguments are how long a phase lasts and how often all
// of them come. In each turn every rank sends to the next, around in a ring, and then perhaps
// rests, or computes. Rank 0 says which phase begins.
func phasesRank(args []string) error {
	if len(args) != 2 {
		return errors.New("want how long a phase lasts, and how often all come")
	}
	long, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	var rounds int
	if _, err := fmt.Sscan(args[1], &rounds); err != nil {
		return err
	}
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		at, turn := 0, 0 // the phase, counted on, and the turn in it
		state := world.State()
		state.Protect("at", &at)
		state.Protect("turn", &turn)
		if err := state.Restore(ctx); err != nil {
			return err
		}
		began := time.Now()
		out, into := make([]byte, phaseMost), make([]byte, phaseMost)
		next, last := (world.Rank()+1)%world.Size(), (world.Rank()+world.Size()-1)%world.Size()
		for at < rounds*len(moods) {
			if err := state.SafePoint(ctx); err != nil {
				return err
			}
			bytes, pause, work := moods[at%len(moods)].turn(turn)
			if _, err := mpiv.Sendrecv(ctx, world, out[:bytes], next, 1, into, last, 1); err != nil {
				return err
			}
			for end := time.Now().Add(work); time.Now().Before(end); {
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
			turn++
			over := []int32{0}
			if world.Rank() == 0 && time.Since(began) > long {
				over[0] = 1
			}
			if err := mpiv.Bcast(ctx, world, over, 0); err != nil {
				return err
			}
			if over[0] == 1 {
				at, turn, began = at+1, 0, time.Now()
			}
		}
		return nil
	})
	return nil
}
