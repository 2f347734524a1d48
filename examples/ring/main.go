// Ring passes a token from rank to rank, around and around. Each rank adds its
// number to it. It is the smallest program that sends and receives.
//
//	mpivrun -n 4 bin/ring
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const (
	rounds   = 1000
	tagToken = 1
)

func main() { mpiv.Main(run) }

// run is what every rank does. They differ only in world.Rank().
func run(ctx context.Context, world *mpiv.Comm) error {
	began := time.Now()
	token, err := pass(ctx, world, rounds)
	if err != nil || world.Rank() != 0 {
		return err
	}
	hop := time.Since(began) / time.Duration(rounds*world.Size())
	_, err = fmt.Printf("%d rounds of %d ranks: the token is %d, a hop took %v\n", rounds, world.Size(), token, hop)
	return err
}

// pass sends a token around and returns it as it left the rank for the last
// time. Rank 0 sends first and receives later; the others wait until the token
// comes by.
func pass(ctx context.Context, world *mpiv.Comm, rounds int) (int64, error) {
	rank, size := world.Rank(), world.Size()
	next, previous := (rank+1)%size, (rank+size-1)%size

	token := []int64{0} // a message is a slice
	for range rounds {
		if rank == 0 {
			if err := mpiv.Send(ctx, world, token, next, tagToken); err != nil {
				return 0, err
			}
		}
		if _, err := mpiv.Recv(ctx, world, token, previous, tagToken); err != nil {
			return 0, err
		}
		token[0] += int64(rank)
		if rank != 0 {
			if err := mpiv.Send(ctx, world, token, next, tagToken); err != nil {
				return 0, err
			}
		}
	}
	return token[0], nil
}
