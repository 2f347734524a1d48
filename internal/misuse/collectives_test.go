package misuse

import (
	"context"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// collectives is programs whose ranks do not agree on a collective.
var collectives = []program{
	{
		name: "a barrier meets a broadcast",
		says: []string{`number 1 on world`, `Barrier`, `Bcast`, `<barrier>|<bcast>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 0 {
				return mpiv.Barrier(ctx, world) // is barrier
			}
			return mpiv.Bcast(ctx, world, []int{1}, 0) // is bcast
		},
	},
	{
		name: "two collectives in another order",
		says: []string{`Barrier`, `Allreduce`, `<order-1>|<order-2>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := []int{1}
			if world.Rank() == 0 {
				if err := mpiv.Barrier(ctx, world); err != nil { // is order-1
					return err
				}
				return mpiv.Allreduce(ctx, world, v, v, mpiv.Sum)
			}
			if err := mpiv.Allreduce(ctx, world, v, v, mpiv.Sum); err != nil { // is order-2
				return err
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "ranks broadcast from different roots",
		says: []string{`Bcast`, `root 0`, `root 1`, `<roots>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Bcast(ctx, world, []int{1}, 1-world.Rank()) // is roots
		},
	},
	{
		name: "all ranks broadcast from themselves", ranks: 3, check: true,
		says: []string{`rank \d: Bcast on world, rank \d, peer \d \(<bcast-self>\): message was never received: it was sent in Bcast with root \d, as collective number 1, which this is here: give the same root on all ranks`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if err := mpiv.Bcast(ctx, world, []int{1}, world.Rank()); err != nil { // is bcast-self
				return err
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "one rank of four reduces to another root", ranks: 4,
		says: []string{`rank \d is in Barrier number 2 \(<after>\) without having done in Reduce number 1, root \d \(<another>\) what ranks? [\d, -]+ waits? for: it gave another root`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			root := 0
			if world.Rank() == 2 {
				root = 1
			}
			if err := mpiv.Reduce(ctx, world, []int{1}, []int{0}, mpiv.Sum, root); err != nil { // is another
				return err
			}
			return mpiv.Barrier(ctx, world) // is after
		},
	},
	{
		name: "one rank of three reduces more, which the messages do not show", ranks: 3,
		says: []string{`rank \d is in Barrier number 2 \(<after-more>\) without having done in Allreduce number 1 \(<more>\) what rank 2 waits for: it gave another length, or called another collective`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			n := 1000
			if world.Rank() == 2 {
				n *= 3
			}
			if err := mpiv.Allreduce(ctx, world, make([]int, n), make([]int, n), mpiv.Sum); err != nil { // is more
				return err
			}
			return mpiv.Barrier(ctx, world) // is after-more
		},
	},
	{
		name: "a reduction meets one to all", ranks: 3,
		says: []string{`Reduce with root 0|Reduce number 1, root 0`, `Allreduce`, `<reduce>|<allreduce>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v, w := []int{1}, []int{1}
			if world.Rank() == 1 {
				return mpiv.Reduce(ctx, world, v, w, mpiv.Sum, 0) // is reduce
			}
			return mpiv.Allreduce(ctx, world, v, w, mpiv.Sum) // is allreduce
		},
	},
	{
		name: "a rank skips a collective and finishes", ranks: 3,
		says: []string{`rank 2 has finished without taking part in Barrier number 1, in which ranks? .* \(<skipped>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 2 {
				return nil
			}
			return mpiv.Barrier(ctx, world) // is skipped
		},
	},
	{
		name: "a rank skips a collective and receives instead", ranks: 3,
		says: []string{`rank 2 waits .*Recv \(<instead>\)`, `Barrier \(<skipped-2>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 2 {
				_, err := mpiv.Recv(ctx, world, make([]int, 1), 0, 0) // is instead
				return err
			}
			if err := mpiv.Barrier(ctx, world); err != nil { // is skipped-2
				return err
			}
			return mpiv.Send(ctx, world, []int{1}, 2, 0)
		},
	},
	{
		name: "a rank calls a collective once more than the others",
		says: []string{`rank 1 has finished without taking part in Barrier number 3, in which rank 0 waits \(<once-more>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			for range 3 - world.Rank() {
				if err := mpiv.Barrier(ctx, world); err != nil { // is once-more
					return err
				}
			}
			return nil
		},
	},
	{
		name: "a collective with different lengths",
		says: []string{`Allreduce on world, rank \d, peer \d \(<lengths>\): lengths do not fit: the peer sent \d+ bytes where \d+ were expected`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 4+world.Rank())
			return mpiv.Allreduce(ctx, world, v, v, mpiv.Sum) // is lengths
		},
	},
	{
		name: "a broadcast of more than there is room for",
		says: []string{`Bcast on world, rank 1, peer 0 \(<bcast-room>\): lengths do not fit: the peer sent 80 bytes where 40 were expected`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Bcast(ctx, world, make([]int, 10-5*world.Rank()), 0) // is bcast-room
		},
	},
	{
		name: "a collective that is begun and not waited for by all",
		says: []string{`Wait \(<ibarrier>\)|Ibarrier|Barrier number 1`, `<ibarrier>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			r := mpiv.Ibarrier(ctx, world) // is ibarrier
			_, err := r.Wait(ctx)
			return err
		},
	},
	{
		name: "a collective begun by some meets another", ranks: 3,
		says: []string{`Barrier`, `Allreduce`, `<iall>|<iall-barrier>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := []int{1}
			if world.Rank() == 1 {
				return mpiv.Barrier(ctx, world) // is iall-barrier
			}
			r := mpiv.Iallreduce(ctx, world, v, v, mpiv.Sum) // is iall
			_, err := r.Wait(ctx)
			return err
		},
	},
	{
		name: "two communicators are used in another order", ranks: 2,
		says: []string{`rank 0 → rank 1 → rank 0`, `Barrier \(<dup-order>\) .*on dup of world`, `on world`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			dup, err := mpiv.Dup(ctx, world)
			if err != nil {
				return err
			}
			order := []*mpiv.Comm{world, dup}
			for i := range order {
				if err := mpiv.Barrier(ctx, order[(i+world.Rank())%2]); err != nil { // is dup-order
					return err
				}
			}
			return nil
		},
	},
	{
		name: "a split that one rank does not take part in",
		says: []string{`rank 1 has finished without taking part in Split number 1, in which rank 0 waits \(<split>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			_, err := mpiv.Split(ctx, world, 0, 0) // is split
			return err
		},
	},
	{
		name: "one rank of several gives a wrong length", ranks: 3,
		says: []string{`mpivrun: rank 1: Allgather on world, rank 1 \(<one-length>\): lengths do not fit: len\(out\) is 2, want 3`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			out := make([]int, 3)
			if world.Rank() == 1 {
				out = out[:2]
			}
			return mpiv.Allgather(ctx, world, []int{1}, out) // is one-length
		},
	},
	{
		name: "a reduction panics on one rank", ranks: 3,
		says: []string{`mpivrun: rank 1: panic: in the reduction`, `<own-op>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			op := mpiv.NewOp("odd", func(in, inout []int) {
				if world.Rank() == 1 {
					panic("in the reduction") // is own-op
				}
			}, true)
			v := make([]int, 1<<15)
			return mpiv.Allreduce(ctx, world, v, v, op)
		},
	},
	{
		name: "one rank gives up a collective with a deadline, and others wait", ranks: 3,
		says: []string{`mpivrun: rank 0: Barrier on world, rank 0, peer \d \(<one-deadline>\): waited .*: context deadline exceeded`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if err := mpiv.Barrier(ctx, world); err != nil { // processes do not start at the same moment
				return err
			}
			if world.Rank() == 2 {
				time.Sleep(time.Second)
			}
			if world.Rank() == 0 {
				mine, stop := context.WithTimeout(ctx, 200*time.Millisecond)
				defer stop()
				ctx = mine
			}
			err := mpiv.Barrier(ctx, world) // is one-deadline
			stamp()
			return err
		},
	},
	{
		name: "one rank gives up a collective with a deadline",
		says: []string{`Barrier on world, rank 0, peer 1 \(<given-up>\)`, `context deadline exceeded`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if err := mpiv.Barrier(ctx, world); err != nil { // processes do not start at the same moment
				return err
			}
			if world.Rank() == 1 {
				time.Sleep(time.Second)
				return nil
			}
			ctx, stop := context.WithTimeout(ctx, 200*time.Millisecond)
			defer stop()
			err := mpiv.Barrier(ctx, world) // is given-up
			stamp()
			return err
		},
	},
}
