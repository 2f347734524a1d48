// Wander tests what programs are promised that survive: in every turn its ranks do what a
// seed says, out of all that mpiv can do, and each folds what it has received into a sum,
// on which hangs what it sends next. What rank 0 prints at the end depends on the seed and
// the number of turns and ranks alone, however often ranks are killed and moved meanwhile.
//
// What depends on timing, as who is first, goes into luck, which hangs on the order of
// events and is a part of messages. Every two ranks remember what they have told each
// other of it, so that lives that contradict each other are found.
//
//	mpivrun -n 4 --spares 2 bin/wander -seed 7     # and kill -9 one of its processes
//	mpivtrials -seed 7 -program wander survive     # does that
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"

	"github.com/mpiv/mpiv/mpiv"
)

var (
	seed  = flag.Uint64("seed", 1, "of what is drawn")
	turns = flag.Int("turns", 1000, "how many to take")
)

func main() {
	flag.Parse()
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		sum, err := wander(ctx, world, *seed, *turns)
		if err == nil && world.Rank() == 0 {
			fmt.Printf("seed %d, %d turns, %d ranks: %016x\n", *seed, *turns, world.Size(), sum)
		}
		return err
	})
}

// A walk is what a rank has to remember.
type walk struct {
	Turn        int
	Sum, Luck   uint64
	Told, Heard []uint64 // by rank
}

const room = 1 << 20 // bytes for Bsend

// An op is something that all ranks of c do together. What r draws is the same on all.
type op func(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand)

var ops = []op{exchange, exchange, exchange, storm, storm, collect, collect, persist, takeBack, tooLate, short, passing}

// wander returns the sums of all ranks, combined, on rank 0.
func wander(ctx context.Context, world *mpiv.Comm, seed uint64, turns int) (all uint64, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = f.error
		}
	}()
	comms := communicators(ctx, world)
	must(mpiv.BufferAttach(world, room))
	w := &walk{Sum: mix(seed, uint64(world.Rank())), Told: make([]uint64, world.Size()), Heard: make([]uint64, world.Size())}
	state := world.State()
	state.Protect("walk", w)
	must(state.Restore(ctx))
	for ; w.Turn < turns; w.Turn++ {
		must(state.SafePoint(ctx))
		r := rand.New(rand.NewPCG(seed, uint64(w.Turn)))
		for i := range 1 + r.IntN(4) {
			c, do, own := comms[r.IntN(len(comms))], ops[r.IntN(len(ops))], rand.New(rand.NewPCG(r.Uint64(), 0))
			if c != nil {
				do(ctx, w, c, w.Turn%100*1000+i*100, own)
			}
		}
		w.tell(ctx, world, r.IntN(world.Size()))
		must2(mpiv.BufferDetach(ctx, world))
		must(mpiv.BufferAttach(world, room))
	}
	out := make([]uint64, 1)
	must(mpiv.Reduce(ctx, world, []uint64{mix(w.Sum, uint64(world.Rank()))}, out, mpiv.Sum, 0))
	return out[0], nil
}

// communicators makes some; nil is one that the rank is not in.
func communicators(ctx context.Context, world *mpiv.Comm) []*mpiv.Comm {
	n, me := world.Size(), world.Rank()
	dup := must2(mpiv.Dup(ctx, world))
	halves := must2(mpiv.Split(ctx, world, me%2, 0))
	reverse := must2(mpiv.Split(ctx, dup, 0, -me))
	some := must2(mpiv.Split(ctx, world, map[bool]int{true: 1, false: mpiv.Undefined}[me != 1 || n == 1], 0))
	all := []*mpiv.Comm{world, world, dup, halves, reverse, some, must2(mpiv.Dup(ctx, reverse)), nil}
	var members []int
	for r := n - 1; r >= n/3; r-- {
		members = append(members, r)
	}
	if g := must2(world.Group().Incl(members...)); g.Rank() >= 0 {
		all[len(all)-1] = must2(mpiv.CreateGroup(ctx, world, g, 5))
	}
	return all
}

// tell tells another rank of the luck, and what was told it before.
func (w *walk) tell(ctx context.Context, c *mpiv.Comm, by int) {
	const tag = 1 << 20
	n, me := c.Size(), c.Rank()
	to, from := (me+by)%n, (me-by+n)%n
	out, in := []uint64{w.Told[to], mix(w.Told[to], w.Luck)}, make([]uint64, 2)
	must2(mpiv.Sendrecv(ctx, c, out, to, tag, in, from, tag))
	if in[0] != w.Heard[from] {
		wrong("turn %d: rank %d says that it told rank %d %x last, which heard %x", w.Turn, from, me, in[0], w.Heard[from])
	}
	w.Told[to], w.Heard[from] = out[1], in[1]
	w.Luck = mix(w.Luck, in[1])
}

// fold adds to what the rank has received.
func (w *walk) fold(of ...uint64) {
	for _, v := range of {
		w.Sum = mix(w.Sum, v)
	}
}

// chance adds something that depends on timing.
func (w *walk) chance(of int) { w.Luck = mix(w.Luck, uint64(of)) }

// mix is after SplitMix64.
func mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// A failure is what ends a walk.
type failure struct{ error }

func wrong(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must2[V any](v V, err error) V {
	must(err)
	return v
}
