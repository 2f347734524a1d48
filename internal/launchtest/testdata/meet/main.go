// Command meet has each rank hear of every other, over libp2p too.
package main

import (
	"context"
	"fmt"

	"github.com/mpiv/mpiv/mpiv"
	"github.com/mpiv/mpiv/transport/libp2p"
)

func main() { mpiv.Main(run, libp2p.Network()) }

func run(ctx context.Context, world *mpiv.Comm) error {
	all := make([]int, world.Size())
	if err := mpiv.Allgather(ctx, world, []int{world.Rank()}, all); err != nil {
		return err
	}
	mine, theirs := make([]int, world.Size()), make([]int, world.Size())
	for i := range mine {
		mine[i] = world.Rank()
	}
	if err := mpiv.Alltoall(ctx, world, mine, theirs); err != nil {
		return err
	}
	fmt.Println(world.Rank(), "has met", theirs)
	return nil
}
