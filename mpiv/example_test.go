package mpiv_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/mpiv"
)

// A program that survives: its communicators and variables first, then Restore, and a
// safe point in each turn. Started by mpivrun with --spares its ranks outlive their
// processes; here they begin and end in this one.
func ExampleState() {
	run := func(ctx context.Context, world *mpiv.Comm) error {
		turn, sum := 0, []int{0}
		state := world.State()
		state.Protect("turn", &turn)
		state.Protect("sum", &sum)
		if err := state.Restore(ctx); err != nil { // in another process: what they were at the last safe point
			return err
		}
		for ; turn < 10; turn++ {
			if err := state.SafePoint(ctx); err != nil { // ErrMoved: the rank goes on elsewhere
				return err
			}
			all := []int{0}
			if err := mpiv.Allreduce(ctx, world, []int{turn}, all, mpiv.Sum); err != nil {
				return err
			}
			sum[0] += all[0]
		}
		if world.Rank() == 0 {
			fmt.Println(turn, "turns, sum", sum[0])
		}
		return nil
	}
	if err := mpiv.Run(context.Background(), 4, mpiv.Options{}, run); err != nil {
		fmt.Println(err)
	}
	// Output: 10 turns, sum 180
}

// What the ranks tell each other once is sent where First is true. A rank that goes on
// from elsewhere has had it: it is in its state.
func ExampleState_First() {
	run := func(ctx context.Context, world *mpiv.Comm) error {
		config := []int{0}
		state := world.State()
		state.Protect("config", &config)
		if err := state.Restore(ctx); err != nil {
			return err
		}
		if state.First() {
			if world.Rank() == 0 {
				config[0] = 42 // read from a file, say
			}
			if err := mpiv.Bcast(ctx, world, config, 0); err != nil {
				return err
			}
		}
		if world.Rank() == 1 {
			fmt.Println("config", config[0])
		}
		return nil
	}
	if err := mpiv.Run(context.Background(), 2, mpiv.Options{}, run); err != nil {
		fmt.Println(err)
	}
	// Output: config 42
}

// A rank that has requests under way most of the time ends them only where its state is
// wanted.
func ExampleState_Due() {
	run := func(ctx context.Context, world *mpiv.Comm) error {
		next, pending := 0, []mpiv.Request(nil)
		state := world.State()
		state.Protect("next", &next)
		if err := state.Restore(ctx); err != nil {
			return err
		}
		to, from := (world.Rank()+1)%world.Size(), (world.Rank()+world.Size()-1)%world.Size()
		for ; next < 5; next++ {
			if state.Due() {
				if err := mpiv.Waitall(ctx, pending, nil); err != nil {
					return err
				}
				pending = nil
				if err := state.SafePoint(ctx); err != nil {
					return err
				}
			}
			pending = append(pending, mpiv.Isend(world, []int{next}, to, 1))
			if _, err := mpiv.Recv(ctx, world, []int{0}, from, 1); err != nil {
				return err
			}
		}
		return mpiv.Waitall(ctx, pending, nil)
	}
	fmt.Println(mpiv.Run(context.Background(), 3, mpiv.Options{}, run))
	// Output: <nil>
}

// A wrong use is said where it is found, also where nothing moves.
func ExampleState_SafePoint() {
	err := mpiv.Run(context.Background(), 1, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
		return world.State().SafePoint(ctx)
	})
	fmt.Println(errors.Is(err, mpiv.ErrState))
	// Output: true
}
