package mpiv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingInOneProcess(t *testing.T) {
	for _, size := range []int{1, 2, 4, 100} {
		err := Run(t.Context(), size, Options{}, func(ctx context.Context, world *Comm) error {
			v := []int{world.Rank()}
			right, left := (world.Rank()+1)%world.Size(), (world.Rank()-1+world.Size())%world.Size()
			for range world.Size() {
				if _, err := SendrecvReplace(ctx, world, v, right, 1, left, 1); err != nil {
					return err
				}
			}
			if v[0] != world.Rank() {
				return fmt.Errorf("token is %d after a whole round", v[0])
			}
			return Barrier(ctx, world)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// As t.FailNow does it, which ends no test but in the test's own goroutine.
func TestARankThatEndsItsGoroutineHasFailed(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		var told atomic.Int32
		err := Run(t.Context(), 3, Options{}, func(ctx context.Context, world *Comm) error {
			if world.Rank() == 1 {
				runtime.Goexit()
			}
			err := Barrier(ctx, world)
			if errors.Is(err, context.Canceled) {
				told.Add(1)
			}
			return err
		})
		require.ErrorContains(t, err, "rank 1: it ended by runtime.Goexit, as t.FailNow and t.Fatal do\n")
		require.ErrorContains(t, err, "mpiv_test.go:", "it says where")
		require.Positive(t, told.Load(), "the others are told to end")
	})
	t.Run("all", func(t *testing.T) {
		err := Run(t.Context(), 3, Options{}, func(context.Context, *Comm) error {
			runtime.Goexit()
			return nil
		})
		require.ErrorContains(t, err, "rank 0: it ended by runtime.Goexit")
		require.ErrorContains(t, err, "rank 2: it ended by runtime.Goexit")
	})
	t.Run("a panic is one yet", func(t *testing.T) {
		err := Run(t.Context(), 1, Options{}, func(context.Context, *Comm) error { panic(nil) })
		var p *PanicError
		require.ErrorAs(t, err, &p)
	})
}

// failing is an error whose methods need more than a nil pointer.
type failing struct{ text string }

func (e *failing) Error() string { return e.text }

// A rank that returns a nil pointer as an error, as a function does that declares one of its own
// type, is told so; nothing else ends by it.
func TestErrorThatIsNoError(t *testing.T) {
	for _, bad := range []error{(*failing)(nil), (*ExitError)(nil), fmt.Errorf("it: %w", (*ExitError)(nil))} {
		err := Run(t.Context(), 2, Options{}, func(ctx context.Context, c *Comm) error {
			if c.Rank() == 1 {
				return bad
			}
			return nil
		})
		require.ErrorContains(t, err, "rank 1: run returned an error of type *")
		require.ErrorContains(t, err, "nil pointer")
	}
}
