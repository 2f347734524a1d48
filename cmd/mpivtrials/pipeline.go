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

const rolePipeline = "rank-pipeline"

// pipelineRank is the program of m3, whose argument is how long messages are: rank 0 sends a message to rank 1, which hands it on to 2, and that to 3, which
// tells rank 0 that it has come; then comes the next. So what counts is how long the whole way takes. Rank 3 prints,
// each tenth of a second, the time in nanoseconds since 1970 and how many have come. It goes on until it is ended.
func pipelineRank(args []string) error {
	if len(args) != 1 {
		return errors.New("want how many bytes a message has")
	}
	bytes, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		n, piece := 0, make([]byte, bytes)
		state := world.State()
		state.Protect("n", &n)
		if err := state.Restore(ctx); err != nil {
			return err
		}
		rank, last := world.Rank(), world.Size()-1
		told := time.Now()
		for ; ; n++ {
			if err := state.SafePoint(ctx); err != nil {
				return err
			}
			if rank > 0 {
				if _, err := mpiv.Recv(ctx, world, piece, rank-1, 1); err != nil {
					return err
				}
			}
			if rank < last {
				if err := mpiv.Send(ctx, world, piece, rank+1, 1); err != nil {
					return err
				}
			}
			switch rank {
			case 0:
				if _, err := mpiv.Recv(ctx, world, []byte{}, last, 2); err != nil {
					return err
				}
			case last:
				if err := mpiv.Send(ctx, world, []byte{}, 0, 2); err != nil {
					return err
				}
				if now := time.Now(); now.Sub(told) >= 100*time.Millisecond {
					told = now
					fmt.Printf("%d %d\n", now.UnixNano(), n+1)
				}
			}
		}
	})
	return nil
}
