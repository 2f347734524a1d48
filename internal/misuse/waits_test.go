package misuse

import (
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// waits is programs of which some rank waits in vain for a message, or for a
// receive.
var waits = []program{
	{
		name: "two ranks receive before they send",
		says: []string{`rank 0 → rank 1 → rank 0`, `rank 0 waits .*Recv \(<cycle>\) for a message from rank 1, tag 3, on world`, `rank 1 waits .*Recv \(<cycle>\) for a message from rank 0`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v, other := []int{1}, 1-world.Rank()
			if _, err := mpiv.Recv(ctx, world, v, other, 3); err != nil { // is cycle
				return err
			}
			return mpiv.Send(ctx, world, v, other, 3)
		},
	},
	{
		name: "three ranks in a ring receive before they send", ranks: 3,
		says: []string{`rank 0 → rank 2 → rank 1 → rank 0`, `rank 2 waits .*Recv \(<ring>\) for a message from rank 1`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := []int{1}
			left, right := (world.Rank()+2)%3, (world.Rank()+1)%3
			if _, err := mpiv.Recv(ctx, world, v, left, 0); err != nil { // is ring
				return err
			}
			return mpiv.Send(ctx, world, v, right, 0)
		},
	},
	{
		name: "a rank receives from itself what it has not sent",
		says: []string{`rank 0 waits for itself`, `rank 0 waits .*Recv \(<itself>\) for a message from rank 0`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 0, 0) // is itself
			return err
		},
	},
	{
		name: "two ranks send synchronously, head to head",
		says: []string{`rank 0 → rank 1 → rank 0`, `rank 1 waits .*Ssend \(<ssend-head>\) for rank 0 to receive its message, tag 0, on world`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v, other := []int{1}, 1-world.Rank()
			if err := mpiv.Ssend(ctx, world, v, other, 0); err != nil { // is ssend-head
				return err
			}
			_, err := mpiv.Recv(ctx, world, v, other, 0)
			return err
		},
	},
	{
		name: "two ranks send much, head to head",
		says: []string{`rank 0 → rank 1 → rank 0`, `rank 0 waits .*Send \(<send-head>\) for rank 1 to receive its message`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v, other := make([]byte, 32<<20), 1-world.Rank()
			stamp()                                                    // finding so much memory can take seconds
			if err := mpiv.Send(ctx, world, v, other, 0); err != nil { // is send-head
				return err
			}
			_, err := mpiv.Recv(ctx, world, v, other, 0)
			return err
		},
	},
	{
		name: "two goroutines of each rank wait for what it has buffered, which nobody receives",
		says: []string{`rank 0 → rank 1 → rank 0`, `rank 1 waits .*BufferDetach \(<detach-twice>\) for rank 0 to receive its message`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]byte, 1<<20)
			if err := mpiv.BufferAttach(world, 2*len(v)); err != nil {
				return err
			}
			if err := mpiv.Bsend(ctx, world, v, 1-world.Rank(), 0); err != nil {
				return err
			}
			errs := make(chan error, 2)
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					_, err := mpiv.BufferDetach(ctx, world) // is detach-twice
					errs <- err
				})
			}
			both.Wait()
			return errors.Join(<-errs, <-errs)
		},
	},
	{
		name: "a peer finishes without sending",
		says: []string{`rank 1 has finished without sending what rank 0 waits for in Recv \(<unsent>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 1, 0) // is unsent
			return err
		},
	},
	{
		name: "a peer sends less often than it is received from",
		says: []string{`rank 1 has finished without sending what rank 0 waits for in Recv \(<fewer>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 1)
			for i := range 10 {
				if world.Rank() == 1 && i < 9 {
					if err := mpiv.Send(ctx, world, v, 0, 0); err != nil {
						return err
					}
				}
				if world.Rank() == 0 {
					if _, err := mpiv.Recv(ctx, world, v, 1, 0); err != nil { // is fewer
						return err
					}
				}
			}
			return nil
		},
	},
	{
		name: "a message has another tag than its receive",
		says: []string{`rank 0 wants tag 5 from rank 1 in Recv \(<tag>\), and has from there, unreceived, a message with tag 7: was that meant\?`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 1)
			if world.Rank() == 1 {
				return mpiv.Send(ctx, world, v, 0, 7)
			}
			_, err := mpiv.Recv(ctx, world, v, 1, 5) // is tag
			return err
		},
	},
	{
		name: "a message is on another communicator than its receive",
		says: []string{`rank 0 wants .*from rank 1 on dup of world in Recv \(<comm>\), and has, unreceived and with that tag, a message from rank 1 on world: was that meant\?`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 1)
			dup, err := mpiv.Dup(ctx, world)
			if err != nil {
				return err
			}
			if world.Rank() == 1 {
				return mpiv.Send(ctx, world, v, 0, 4)
			}
			_, err = mpiv.Recv(ctx, dup, v, 1, 4) // is comm
			return err
		},
	},
	{
		name: "a message is from another rank than its receive wants", ranks: 3,
		says: []string{`rank 0 waits .*Recv \(<source>\)`, `rank 0 wants tag 4 from rank 1 on world in Recv \(<source>\), and has, unreceived and with that tag, a message from rank 2: was that meant\?`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 1)
			switch world.Rank() {
			case 0:
				_, err := mpiv.Recv(ctx, world, v, 1, 4) // is source
				return err
			case 2:
				return mpiv.Send(ctx, world, v, 0, 4)
			}
			return nil
		},
	},
	{
		name: "a receive from anybody, with nobody left", ranks: 3,
		says: []string{`ranks 1-2 have finished without sending what rank 0 waits for in Recv \(<anybody>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() != 0 {
				return nil
			}
			_, err := mpiv.Recv(ctx, world, make([]int, 1), mpiv.AnySource, mpiv.AnyTag) // is anybody
			return err
		},
	},
	{
		name: "a probe for what nobody sends",
		says: []string{`rank 1 has finished without sending what rank 0 waits for in Probe \(<probe>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			_, err := mpiv.Probe(ctx, world, 1, 2) // is probe
			return err
		},
	},
	{
		name: "a matched probe for what nobody sends",
		says: []string{`rank 0 waits .*Mprobe \(<mprobe>\)`, `rank 1 waits .*RecvAlloc \(<recvalloc>\) for a message from rank 0`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				_, _, err := mpiv.RecvAlloc[int](ctx, world, 0, 2) // is recvalloc
				return err
			}
			_, _, err := mpiv.Mprobe(ctx, world, 1, 2) // is mprobe
			return err
		},
	},
	{
		name: "an object that is received under another tag",
		says: []string{`rank 0 waits .*SendObj \(<sendobj>\)`, `rank 1 waits .*RecvObj \(<recvobj>\) for a message from rank 0`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				_, _, err := mpiv.RecvObj[[]byte](ctx, world, 0, 2) // is recvobj
				return err
			}
			return mpiv.SendObj(ctx, world, make([]byte, 8<<20), 1, 1) // is sendobj
		},
	},
	{
		name: "a wait for a receive that is not matched",
		says: []string{`Wait \(<wait>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			r := mpiv.Irecv(world, make([]int, 1), 1-world.Rank(), 0)
			_, err := r.Wait(ctx) // is wait
			return err
		},
	},
	{
		name: "a wait for a receive that is not matched, with checks", check: true,
		says: []string{`rank 0 waits .*Wait \(<wait-check>\) for a message from rank 1, tag 0, on world \(begun at <irecv-check>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			r := mpiv.Irecv(world, make([]int, 1), 1-world.Rank(), 0) // is irecv-check
			_, err := r.Wait(ctx)                                     // is wait-check
			return err
		},
	},
	{
		name: "a wait for two receives of which one is not matched",
		says: []string{`Waitall \(<waitall>\) for a message from rank 1, tag 2`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v := make([]int, 2)
			if world.Rank() == 1 {
				return mpiv.Send(ctx, world, v[:1], 0, 1)
			}
			rs := []mpiv.Request{mpiv.Irecv(world, v[:1], 1, 1), mpiv.Irecv(world, v[1:], 1, 2)}
			return mpiv.Waitall(ctx, rs, nil) // is waitall
		},
	},
	{
		name: "a wait for any of two receives that are not matched",
		says: []string{`Waitany \(<waitany>\) for a message from rank 1, tag 1, on world, or for a message from rank 1, tag 2`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			v := make([]int, 2)
			rs := []mpiv.Request{mpiv.Irecv(world, v[:1], 1, 1), mpiv.Irecv(world, v[1:], 1, 2)}
			_, _, err := mpiv.Waitany(ctx, rs) // is waitany
			return err
		},
	},
	{
		name: "a synchronous send to a rank that has finished",
		says: []string{`rank 1 has finished without receiving what rank 0 sends in Ssend \(<ssend-gone>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			time.Sleep(300 * time.Millisecond)
			stamp()
			return mpiv.Ssend(ctx, world, []int{1}, 1, 0) // is ssend-gone
		},
	},
	{
		name: "a rank exchanges with one that exchanges with another", ranks: 3,
		says: []string{`Sendrecv \(<exchange>\)`, `rank 1 has finished without sending what rank 0 waits for in Sendrecv \(<exchange>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v, w := []int{1}, []int{1}
			with := []int{1, 2, 1}[world.Rank()]
			_, err := mpiv.Sendrecv(ctx, world, v, with, 0, w, []int{1, 2, 0}[world.Rank()], 0) // is exchange
			return err
		},
	},
	{
		name: "a buffered send that nobody receives, waited for",
		says: []string{`BufferDetach \(<detach>\) for rank 1 to receive its message`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			if err := mpiv.BufferAttach(world, 33<<20); err != nil {
				return err
			}
			if err := mpiv.Bsend(ctx, world, make([]byte, 32<<20), 1, 0); err != nil {
				return err
			}
			stamp()                                 // finding so much memory can take seconds
			_, err := mpiv.BufferDetach(ctx, world) // is detach
			return err
		},
	},
	{
		name: "a deadline ends before a message comes",
		says: []string{`Recv on world, rank 0, peer 1, tag 6 \(<deadline>\): waited \d+ms: context deadline exceeded`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				time.Sleep(time.Second)
				return nil
			}
			ctx, stop := context.WithTimeout(ctx, 300*time.Millisecond)
			defer stop()
			time.Sleep(1 * time.Millisecond)
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 1, 6) // is deadline
			stamp()
			return err
		},
	},
	{
		name: "a goroutine of the program waits for a message nobody sends",
		hint: true,
		says: []string{`perhaps a deadlock`, `rank 1 has finished without sending what rank 0 waits for in Recv \(<goroutine>\)`, `rank 0 waits in a channel receive \(<channel>\) for another goroutine or a timer`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				return nil
			}
			got := make(chan error)
			go func() {
				_, err := mpiv.Recv(ctx, world, make([]int, 1), 1, 6) // is goroutine
				got <- err
			}()
			return <-got // is channel
		},
	},
	{
		name: "goroutines of the program wait in a group for messages nobody sends",
		says: []string{`(?m)^  each waits for the next: rank 0 → rank 1 → rank 0`, `rank 0 waits .*Recv \(<in-group>\)`, `rank 0 waits in WaitGroup.Wait \(<group>\) for another goroutine\n`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			var all sync.WaitGroup
			for tag := range 2 {
				all.Go(func() {
					mpiv.Recv(ctx, world, make([]int, 1), 1-world.Rank(), tag) // is in-group
				})
			}
			all.Wait() // is group
			return nil
		},
	},
	{
		name: "a rank waits for its own goroutines in vain, and another for it",
		says: []string{`rank 0 waits in Mutex.Lock \(<mutex>\) for another goroutine`, `rank 1 waits .*Recv \(<for-mutex>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 0 {
				var mu sync.Mutex
				mu.Lock()
				mu.Lock() // is mutex
			}
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 0, 0) // is for-mutex
			return err
		},
	},
	{
		name: "a deadlock while Go's own goroutines work for the rank",
		says: []string{`deadlock in job`, `rank 0 → rank 1 → rank 0`, `Recv \(<beside-go>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1)
			if err := trace.Start(io.Discard); err == nil { // else another rank of the process has
				defer trace.Stop()
			}
			if err := pprof.StartCPUProfile(io.Discard); err == nil {
				defer pprof.StopCPUProfile()
			}
			next, stop := iter.Pull(slices.Values([]int{1, 2}))
			defer stop()
			next()
			_, begun := iter.Pull(slices.Values([]int{1, 2}))
			defer begun()
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 1-world.Rank(), 0) // is beside-go
			return err
		},
	},
	{
		name: "a deadlock of ranks with servers, that somebody has asked", hint: true,
		says: []string{`perhaps a deadlock`, `rank 0 → rank 1 → rank 0`, `Recv \(<beside-server>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer l.Close()
			go http.Serve(l, http.NotFoundHandler())
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: rank\r\n\r\n")
			if _, err := c.Read(make([]byte, 100)); err != nil {
				return err
			}
			_, err = mpiv.Recv(ctx, world, make([]int, 1), 1-world.Rank(), 0) // is beside-server
			return err
		},
	},
	{
		name: "a deadlock in a goroutine that an iterator runs in",
		says: []string{`deadlock in job`, `rank 0 → rank 1 → rank 0`, `Recv \(<in-iterator>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			next, stop := iter.Pull(func(yield func(error) bool) {
				_, err := mpiv.Recv(ctx, world, make([]int, 1), 1-world.Rank(), 0) // is in-iterator
				yield(err)
			})
			defer stop()
			err, _ := next()
			return err
		},
	},
	{
		name: "a deadlock of ranks with profiler labels of their own",
		says: []string{`deadlock in job`, `rank 0 → rank 1 → rank 0`, `Recv \(<own-labels>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("phase", "exchange")))
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 1-world.Rank(), 0) // is own-labels
			return err
		},
	},
	{
		name: "an idle goroutine beside a deadlock", hint: true,
		says: []string{`perhaps a deadlock`, `rank 0 → rank 1 → rank 0`, `Recv \(<beside-idle>\)`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			work := make(chan int)
			go func() {
				for range work {
				}
			}()
			_, err := mpiv.Recv(ctx, world, make([]int, 1), 1-world.Rank(), 0) // is beside-idle
			return err
		},
	},
}
