package misuse

import (
	"context"

	"github.com/mpiv/mpiv/mpiv"
)

// alone is f on rank 0, while the others wait for it.
func alone(f func(ctx context.Context, world *mpiv.Comm) error) func(ctx context.Context, world *mpiv.Comm) error {
	return func(ctx context.Context, world *mpiv.Comm) error {
		if world.Rank() == 0 {
			if err := f(ctx, world); err != nil {
				return err
			}
		}
		return mpiv.Barrier(ctx, world)
	}
}

// arguments is programs that call with wrong arguments, or misuse what they
// got.
var arguments = []program{
	{
		name: "a message longer than its buffer",
		says: []string{`Recv on world, rank 0, peer 1, tag 1 \(<truncated>\): message longer than the receive buffer: 24 bytes in 16`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return mpiv.Send(ctx, world, make([]int64, 3), 0, 1)
			}
			_, err := mpiv.Recv(ctx, world, make([]int64, 2), 1, 1) // is truncated
			return err
		},
	},
	{
		name: "a long message longer than its buffer, waited for",
		says: []string{`Wait \(Irecv\) on world, rank 0, peer 1, tag 1 \(<truncated-wait>\): message longer than the receive buffer: 33554432 bytes in 8`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				much := make([]byte, 32<<20)
				stamp() // finding so much memory can take seconds
				return mpiv.Send(ctx, world, much, 0, 1)
			}
			r := mpiv.Irecv(world, make([]byte, 8), 1, 1)
			_, err := r.Wait(ctx) // is truncated-wait
			return err
		},
	},
	{
		name: "part of an element",
		says: []string{`Recv on world, rank 0, peer 1, tag 1 \(<partial>\): lengths do not fit: a message of 6 bytes is no whole number of elements of 4 bytes`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return mpiv.Send(ctx, world, make([]byte, 6), 0, 1)
			}
			_, err := mpiv.Recv(ctx, world, make([]int32, 2), 1, 1) // is partial
			return err
		},
	},
	{
		name: "a send to a rank that there is not",
		says: []string{`Send on world, rank 0, peer 2, tag 0 \(<rank>\): no such rank: 2, the ranks of world are 0 to 1`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Send(ctx, world, []int{1}, world.Size(), 0) // is rank
		}),
	},
	{
		name: "a receive begun from a rank that there is not",
		says: []string{`Irecv on world, rank 0, tag 0 \(<irank>\): no such rank: -7`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			r := mpiv.Irecv(world, []int{1}, -7, 0) // is irank
			_, err := r.Wait(ctx)
			return err
		}),
	},
	{
		name: "a send to anybody",
		says: []string{`Send on world, rank 0, tag 0 \(<any-dest>\): no such rank: AnySource is for receives`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Send(ctx, world, []int{1}, mpiv.AnySource, 0) // is any-dest
		}),
	},
	{
		name: "a negative tag",
		says: []string{`Send on world, rank 0, peer 1 \(<negative-tag>\): invalid tag: -3, want 0 to 2147483647`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Send(ctx, world, []int{1}, 1, -3) // is negative-tag
		}),
	},
	{
		name: "a root that there is not",
		says: []string{`Bcast on world, rank [01] \(<root>\): no such root: 2`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Bcast(ctx, world, []int{1}, 2) // is root
		},
	},
	{
		name: "a collective begun with a root that there is not",
		says: []string{`Bcast on world, rank [01] \(<iroot>\): no such root: 2`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			r := mpiv.Ibcast(ctx, world, []int{1}, 2) // is iroot
			_, err := r.Wait(ctx)
			return err
		},
	},
	{
		name: "a communicator that was freed",
		says: []string{`Send on dup of world, rank [01], peer [01], tag 0 \(<freed>\): communicator was freed`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			dup, err := mpiv.Dup(ctx, world)
			if err != nil {
				return err
			}
			if err := dup.Free(); err != nil {
				return err
			}
			return mpiv.Send(ctx, dup, []int{1}, 1-world.Rank(), 0) // is freed
		},
	},
	{
		name: "a collective on a communicator that was freed",
		says: []string{`Barrier on dup of world, rank [01] \(<freed-coll>\): communicator was freed`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			dup, err := mpiv.Dup(ctx, world)
			if err != nil {
				return err
			}
			if err := dup.Free(); err != nil {
				return err
			}
			return mpiv.Barrier(ctx, dup) // is freed-coll
		},
	},
	{
		name: "the world is freed",
		says: []string{`Free on world, rank 0 \(<free-world>\): .*the world cannot be freed`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			return world.Free() // is free-world
		}),
	},
	{
		name: "a rank that is in no part uses the part",
		says: []string{`rank 0: Barrier \(<no-part>\): communicator is nil: Split gives none to ranks whose color is Undefined`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			color := 1
			if world.Rank() == 0 {
				color = mpiv.Undefined
			}
			part, err := mpiv.Split(ctx, world, color, 0)
			if err != nil {
				return err
			}
			if world.Rank() == 1 {
				return mpiv.Barrier(ctx, world)
			}
			return mpiv.Barrier(ctx, part) // is no-part
		},
	},
	{
		name: "a type with pointers",
		says: []string{`Send on world, rank 0, peer 1, tag 0 \(<pointers>\): type cannot be sent as it lies in memory: string; use SendObj`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Send(ctx, world, []string{"a"}, 1, 0) // is pointers
		}),
	},
	{
		name: "a structure with a pointer deep inside, received",
		says: []string{`Recv on world, rank 0, peer 1, tag 0 \(<deep-pointer>\): type cannot be sent as it lies in memory: .*outer, in which Inner\[0\]\.Next is a \*int; use SendObj and RecvObj`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			type inner struct {
				X    int
				Next *int
			}
			type outer struct{ Inner [2]inner }
			_, err := mpiv.Recv(ctx, world, make([]outer, 1), 1, 0) // is deep-pointer
			return err
		}),
	},
	{
		name: "a buffered send without room",
		says: []string{`Bsend on world, rank 0, peer 1, tag 0 \(<bsend>\): buffer attached for Bsend is too small: needs \d+ bytes, 0 of 100 are in use; attach more with BufferAttach`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			if err := mpiv.BufferAttach(world, 100); err != nil {
				return err
			}
			return mpiv.Bsend(ctx, world, make([]byte, 1000), 1, 0) // is bsend
		}),
	},
	{
		name: "a request is waited for twice, by a copy",
		says: []string{`Wait \(Irecv\) on world, rank 0, peer 0, tag 0 \(<stale>\): request was already waited for`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			v := []int{1}
			r := mpiv.Irecv(world, v, 0, 0)
			again := r
			if err := mpiv.Send(ctx, world, []int{2}, 0, 0); err != nil {
				return err
			}
			if _, err := r.Wait(ctx); err != nil {
				return err
			}
			_, err := again.Wait(ctx) // is stale
			return err
		}),
	},
	{
		name: "a message is received twice",
		says: []string{`Mrecv \(Irecv\) on world, rank 0, peer 0, tag 0 \(<twice>\): request was already waited for|Mrecv on world, rank 0, peer 0, tag 0 \(<twice>\): message was already received`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			v := []int{1}
			if err := mpiv.Send(ctx, world, []int{2}, 0, 0); err != nil {
				return err
			}
			m, _, err := mpiv.Mprobe(ctx, world, 0, 0)
			if err != nil {
				return err
			}
			if _, err := mpiv.Mrecv(ctx, m, v); err != nil {
				return err
			}
			_, err = mpiv.Mrecv(ctx, m, v) // is twice
			return err
		}),
	},
	{
		name: "a persistent request is started twice",
		says: []string{`Start on world, rank 0, peer 1, tag 0 \(<start>\): persistent request is not in the right state: it is active`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			p := mpiv.RecvInit(world, []int{1}, 1, 0)
			if err := p.Start(); err != nil {
				return err
			}
			return p.Start() // is start
		}),
	},
	{
		name: "a buffer is changed before the wait", check: true, racy: true,
		says: []string{`buffer changed while its request was pending: what Isend \(<isend-changed>\) sends was changed before the wait at <wait-changed>`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := []int{1}
			if world.Rank() == 1 {
				_, err := mpiv.Recv(ctx, world, v, 0, 0)
				if err != nil {
					return err
				}
				return mpiv.Barrier(ctx, world)
			}
			r := mpiv.Isend(world, v, 1, 0) // is isend-changed
			v[0] = 2
			if _, err := r.Wait(ctx); err != nil { // is wait-changed
				return err
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "two receives share a buffer", check: true,
		says: []string{`buffers overlap: Irecv \(<overlap-2>\) uses some of the buffer of Irecv \(<overlap-1>\), which was not waited for`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 3)
			rs := []mpiv.Request{
				mpiv.Irecv(world, v[:2], 1, 0), // is overlap-1
				mpiv.Irecv(world, v[1:], 1, 0), // is overlap-2
			}
			return mpiv.Waitall(ctx, rs, nil)
		}),
	},
	{
		name: "a reduction into what it reads",
		says: []string{`Allreduce on world, rank [01] \(<apart>\): buffers overlap`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 3)
			return mpiv.Allreduce(ctx, world, v[:2], v[1:], mpiv.Sum) // is apart
		},
	},
	{
		name: "no communicator",
		says: []string{`rank 0: Send, peer 1, tag 0 \(<no-comm>\): communicator is nil`},
		run: alone(func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Send(ctx, nil, []int{1}, 1, 0) // is no-comm
		}),
	},
	{
		name: "too little room to gather",
		says: []string{`rank 0: Gather on world, rank 0 \(<gather>\): lengths do not fit: len\(out\) is 1, want 2`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			return mpiv.Gather(ctx, world, []int{1}, []int{1}, 0) // is gather
		},
	},
}
