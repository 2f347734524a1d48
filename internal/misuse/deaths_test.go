package misuse

import (
	"context"
	"log"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// dying is f on rank 1, once the others wait for a message from it. What the
// mistake is, f stamps.
func dying(f func()) func(ctx context.Context, world *mpiv.Comm) error {
	return func(ctx context.Context, world *mpiv.Comm) error {
		if world.Rank() == 1 {
			for range world.Size() - 1 {
				if _, err := mpiv.Recv(ctx, world, make([]int, 1), mpiv.AnySource, 0); err != nil {
					return err
				}
			}
			time.Sleep(300 * time.Millisecond) // they wait by then
			stamp()
			f()
			return nil
		}
		if err := mpiv.Send(ctx, world, []int{world.Rank()}, 1, 0); err != nil {
			return err
		}
		_, err := mpiv.Recv(ctx, world, make([]int, 1), 1, 0) // is bereaved
		return err
	}
}

var nobody map[string]int

// deaths is programs that end where no message core could help.
var deaths = []program{
	{
		name: "a panic", ranks: 3,
		says:  []string{`rank 1: panic: the sum is odd\n`, `<panic>`},
		never: []string{`rank 0: `},
		run: dying(func() {
			panic("the sum is odd") // is panic
		}),
	},
	{
		name: "an assignment to a map that is nil", ranks: 3,
		says: []string{`rank 1: panic: assignment to entry in nil map`, `<nil-map>`},
		run: dying(func() {
			nobody["x"] = 1 // is nil-map
		}),
	},
	{
		name: "a rank ends its goroutine", ranks: 3,
		says:  []string{`rank 1: it ended by runtime\.Goexit, as t\.FailNow and t\.Fatal do\n`, `<goexit>`},
		never: []string{`rank 0: `},
		run: dying(func() {
			runtime.Goexit() // is goexit
		}),
	},
	{
		name: "an index out of range in a goroutine of its own", code: 2,
		says: []string{`ranks? (1|0-1) on host here exited with code 2; its last lines:\n    panic: runtime error: index out of range \[3\] with length 2`, `<index>`},
		run: dying(func() {
			go func() {
				v := make([]int, 2)
				n := 3
				v[n] = 1 // is index
			}()
			time.Sleep(time.Second)
		}),
	},
	{
		name: "exit with code 0 in the middle", ranks: 3,
		says: []string{`ranks? (1|0-2) exited without finishing: was os.Exit called`, `rank 0 waits .*Recv \(<bereaved>\) for a message from rank 1|^mpivrun: ranks 0-2`},
		run:  dying(func() { os.Exit(0) }),
	},
	{
		name: "exit with code 3 in the middle", ranks: 3, code: 3,
		says: []string{`ranks? (1|0-2) on host here exited with code 3`, `rank 0 waits .*Recv \(<bereaved>\) for a message from rank 1|^mpivrun: ranks 0-2`},
		run:  dying(func() { os.Exit(3) }),
	},
	{
		name: "a rank kills itself", ranks: 3, code: 137,
		says: []string{`(rank 1|ranks 0-2) on host here (was|were) killed by signal 9`, `rank 0 waits .*Recv \(<bereaved>\) for a message from rank 1|^mpivrun: ranks 0-2`},
		run:  dying(func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) }),
	},
	{
		name: "a fatal line in the log", ranks: 3,
		says: []string{`ranks? (1|0-2) on host here exited with code 1; its last lines:\n    .*<log>: the input is empty`},
		run: dying(func() {
			log.SetFlags(log.Lshortfile)
			log.Fatal("the input is empty") // is log
		}),
	},
	{
		name: "an exit error with a code of its own", ranks: 3, code: 9,
		says: []string{`rank 0: exit with status 9: Send on world, rank 0, peer 77, tag 0 \(<exit-error>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 0 {
				return &mpiv.ExitError{Code: 9, Err: mpiv.Send(ctx, world, []int{1}, 77, 0)} // is exit-error
			}
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 0, 0)
			return err
		},
	},
}
