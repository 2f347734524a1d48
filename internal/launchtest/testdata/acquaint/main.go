// Acquaint is a program of which two ranks talk until the second of them has moved. Only then
// they get to know the other two: rank 1 sends to rank 3, and rank 2, told by rank 0, to rank 1.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

func main() { mpiv.Main(run) }

const (
	chat = iota // between ranks 0 and 1: whether 1 has moved
	go2         // from rank 0 to rank 2
	late        // to and from rank 1, once it has moved
)

func run(ctx context.Context, world *mpiv.Comm) error {
	word := []int32{0}
	state := world.State()
	state.Protect("word", &word)
	if err := state.Restore(ctx); err != nil {
		return err
	}
	switch world.Rank() {
	case 0:
		for word[0] == 0 {
			if err := mpiv.Send(ctx, world, word, 1, chat); err != nil {
				return err
			}
			if _, err := mpiv.Recv(ctx, world, word, 1, chat); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return mpiv.Send(ctx, world, word, 2, go2)
	case 1:
		for word[0] == 0 {
			if err := state.SafePoint(ctx); err != nil {
				return err
			}
			if _, err := mpiv.Recv(ctx, world, word, 0, chat); err != nil {
				return err
			}
			if !state.First() {
				word[0] = 1
			}
			if err := mpiv.Send(ctx, world, word, 0, chat); err != nil {
				return err
			}
		}
		if err := mpiv.Send(ctx, world, word, 3, late); err != nil {
			return err
		}
		_, err := mpiv.Recv(ctx, world, word, 2, late)
		if err == nil {
			fmt.Println("rank 1 has moved, and heard of rank 2")
		}
		return err
	case 2:
		if _, err := mpiv.Recv(ctx, world, word, 0, go2); err != nil {
			return err
		}
		return mpiv.Send(ctx, world, word, 1, late)
	default:
		_, err := mpiv.Recv(ctx, world, word, 1, late)
		if err == nil {
			fmt.Println("rank 3 heard of rank 1")
		}
		return err
	}
}
