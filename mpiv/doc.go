// Package mpiv is message passing the way MPI does it: ranks of one program send and
// receive slices, alone and in collectives.
//
//	func main() { mpiv.Main(run) }
//
//	func run(ctx context.Context, world *mpiv.Comm) error {
//		sum := []int{0}
//		if err := mpiv.Allreduce(ctx, world, []int{world.Rank()}, sum, mpiv.Sum); err != nil {
//			return err
//		}
//		if world.Rank() == 0 {
//			fmt.Println(world.Size(), "ranks, sum", sum[0])
//		}
//		return nil
//	}
//
// [Main] runs the ranks of a process that mpivrun has started ("mpivrun -n 4 ./prog"), or a
// single one without it. [Run] runs all of a small world inside one process, for tests.
//
// A [Comm] is a group of ranks that talk to each other; those of another ([Dup], [Split],
// [Create], [CartCreate]) hear nothing of it. Functions have MPI's names and take what,
// whom and tag, in this order; the count is the length of the slice, whose elements are
// numbers, or structs and arrays without pointers ([Elem]). That both ends name the same
// type is not checked. Anything else goes by [SendObj], [RecvObj] and the other functions
// that end so. Messages from one rank to another arrive once and in order. Any goroutine
// may call.
//
// ctx bounds how long a call waits. A call that fails returns a [*RankError], which says what
// was tried, with whom and at which line; errors.Is tells them apart by [ErrTruncate] and the others.
// A rank that returns an error from run ends the job.
//
// A rank that says what it needs to go on, by [Comm.State], can be moved to another process,
// and outlives its own: see [State], and docs/survive.md.
package mpiv
