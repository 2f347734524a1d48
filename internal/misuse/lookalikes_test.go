package misuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/race"
	"github.com/mpiv/mpiv/mpiv"
)

// freedBy is two ranks of which each waits for a message of the other, which a goroutine of that sends
// once free has returned.
func freedBy(free func()) func(ctx context.Context, world *mpiv.Comm) error {
	return func(ctx context.Context, world *mpiv.Comm) error {
		other := 1 - world.Rank()
		sent := make(chan error, 1)
		go func() {
			free()
			sent <- mpiv.Send(ctx, world, []int{1}, other, 0)
		}()
		if _, err := mpiv.Recv(ctx, world, make([]int, 1), other, 0); err != nil {
			return err
		}
		return <-sent
	}
}

// computes is for longer than a deadlock is suspected after.
func computes() {
	for begun := time.Now(); time.Since(begun) < 1500*time.Millisecond; {
	}
}

// lookalikes is programs that are right and must be left alone.
var lookalikes = []program{
	{
		name: "ranks wait two seconds for one that computes", ranks: 3, right: true,
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 0 {
				for begun := time.Now(); time.Since(begun) < 2*time.Second; {
				}
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "ranks wait for one that sleeps", ranks: 3, right: true,
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 0 {
				time.Sleep(1500 * time.Millisecond)
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "a goroutine of a rank that waits still computes", right: true,
		run: freedBy(computes),
	},
	{
		name: "a goroutine of a rank that waits is woken by a timer", right: true, hint: true,
		run: freedBy(func() { <-time.After(1500 * time.Millisecond) }), // sooner or later than it is suspected
	},
	{
		name: "a goroutine of a rank that waits is woken by a signal", right: true, hint: true,
		says: []string{`perhaps a deadlock in job wrong, which goes on`, `rank 0 waits in a channel receive \(<signal>\) for another goroutine or a timer`},
		run: freedBy(func() {
			told := make(chan os.Signal, 1)
			signal.Notify(told, syscall.SIGUSR1)
			fmt.Printf("waker %d\n", os.Getpid())
			<-told // is signal
		}),
	},
	{
		name: "a goroutine that has no rank's label still computes", right: true,
		run: freedBy(func() {
			pprof.SetGoroutineLabels(context.Background()) // as one that package main has started has it
			computes()
		}),
	},
	{
		name: "a goroutine that has no rank's label is woken by a timer", right: true, hint: true,
		run: freedBy(func() {
			pprof.SetGoroutineLabels(context.Background())
			<-time.After(1500 * time.Millisecond)
		}),
	},
	{
		name: "ranks wait for a signal that ends their context", right: true, hint: true,
		says: []string{`perhaps a deadlock in job wrong, which goes on`},
		run: func(ctx context.Context, world *mpiv.Comm) error {
			pprof.SetGoroutineLabels(context.Background()) // as package main has them
			told, stop := signal.NotifyContext(ctx, syscall.SIGUSR1)
			pprof.SetGoroutineLabels(ctx)
			defer stop()
			fmt.Printf("waker %d\n", os.Getpid())
			if _, err := mpiv.Recv(told, world, make([]int, 1), 1-world.Rank(), 0); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("no signal came: %w", err)
			}
			return nil
		},
	},
	{
		name: "a world within a rank computes", right: true,
		run: func(ctx context.Context, world *mpiv.Comm) error {
			if world.Rank() == 1 {
				if err := mpiv.Run(ctx, 2, mpiv.Options{}, func(context.Context, *mpiv.Comm) error {
					computes()
					return nil
				}); err != nil {
					return err
				}
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "a deadline ends a wait that would be in vain, and the program goes on", right: true,
		run: func(ctx context.Context, world *mpiv.Comm) error {
			short, stop := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer stop()
			other := 1 - world.Rank()
			if _, err := mpiv.Recv(short, world, make([]int, 1), other, 0); err == nil {
				panic("a message came")
			}
			return mpiv.Barrier(ctx, world)
		},
	},
	{
		name: "two ranks send little, head to head", right: true,
		run: func(ctx context.Context, world *mpiv.Comm) error {
			v, other := []int{1}, 1-world.Rank()
			if err := mpiv.Send(ctx, world, v, other, 0); err != nil {
				return err
			}
			_, err := mpiv.Recv(ctx, world, v, other, 0)
			return err
		},
	},
	{
		name: "a long message takes its time", right: true,
		run: func(ctx context.Context, world *mpiv.Comm) error {
			size := 64 << 20
			if race.Enabled {
				size >>= 2 // which takes as long there
			}
			v := make([]byte, size)
			for range 3 {
				if world.Rank() == 0 {
					if err := mpiv.Send(ctx, world, v, 1, 0); err != nil {
						return err
					}
				} else if _, err := mpiv.Recv(ctx, world, v, 0, 0); err != nil {
					return err
				}
			}
			return nil
		},
	},
}
