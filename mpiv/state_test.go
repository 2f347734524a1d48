package mpiv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agree"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/migrate"
)

func TestWrongUsesOfAState(t *testing.T) {
	type step func(ctx context.Context, c *Comm) error
	restore := func(ctx context.Context, c *Comm) error { return c.State().Restore(ctx) }
	safePoint := func(ctx context.Context, c *Comm) error { return c.State().SafePoint(ctx) }
	dup := func(ctx context.Context, c *Comm) error {
		_, err := Dup(ctx, c)
		return err
	}
	irecv := func(_ context.Context, c *Comm) error {
		Irecv(c, make([]int, 1), c.Rank(), 5)
		return nil
	}
	protect := func(name string, ptr any) step {
		return func(_ context.Context, c *Comm) error {
			c.State().Protect(name, ptr)
			return nil
		}
	}
	bsend := func(ctx context.Context, c *Comm) error {
		if err := BufferAttach(c, 1<<20); err != nil {
			return err
		}
		return Bsend(ctx, c, make([]byte, 300_000), c.Rank(), 5)
	}
	mprobe := func(ctx context.Context, c *Comm) error {
		_, _, err := Mprobe(ctx, c, AnySource, 5)
		return err
	}
	send := func(ctx context.Context, c *Comm) error { return Send(ctx, c, []int{1}, c.Rank(), 5) }

	for _, c := range []struct {
		name  string
		steps []step // the last fails
		says  string
	}{
		{"Restore twice", []step{restore, restore}, "Restore is called twice"},
		{"no Restore", []step{safePoint}, "call Restore before it"},
		{"Protect after Restore", []step{restore, protect("late", new(int)), safePoint}, `"late" is protected after Restore (state_test.go:`},
		{"a communicator after Restore", []step{restore, dup, safePoint}, "a communicator was made after Restore, and would be lost; make it before, or Free it"},
		{"a message before Restore", []step{send, restore}, "1 messages were sent before Restore beside those that make communicators; send them after it, where First is true"},
		{"a pending request", []step{restore, irecv, safePoint}, "a receive from rank 0 with tag 5 is pending or was not waited for (1 in all)"},
		{"a Bsend under way", []step{restore, bsend, safePoint}, "1 messages of Bsend are under way; BufferDetach waits for them"},
		{"a Message that was not received", []step{restore, send, mprobe, safePoint}, "a message of 8 bytes from rank 0 of world with tag 5 was taken by a probe and not received (1 in all); receive it with Mrecv"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Run(t.Context(), 1, Options{Check: true}, func(ctx context.Context, world *Comm) error {
				last := len(c.steps) - 1
				for _, s := range c.steps[:last] {
					require.NoError(t, s(ctx, world))
				}
				return c.steps[last](ctx, world)
			})
			require.ErrorIs(t, err, ErrState)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "(state_test.go:")
		})
	}
}

func TestWhatCannotBeProtectedIsSaidByRestore(t *testing.T) {
	for _, c := range []struct {
		name string
		ptr  any
		says string
	}{
		{"no pointer", 7, "pass the address of the variable, not int"},
		{"a nil pointer", (*int)(nil), "pass the address of the variable, not *int"},
		{"a channel", new(chan int), "chan"},
		{"a function", new(func()), "func"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Run(t.Context(), 1, Options{}, func(ctx context.Context, world *Comm) error {
				world.State().Protect("it", c.ptr)
				return world.State().Restore(ctx)
			})
			require.ErrorContains(t, err, `protect "it" (state_test.go:`)
			require.ErrorContains(t, err, c.says)
		})
	}
	t.Run("a name twice", func(t *testing.T) {
		err := Run(t.Context(), 1, Options{}, func(ctx context.Context, world *Comm) error {
			world.State().Protect("it", new(int))
			world.State().Protect("it", new(int))
			return world.State().Restore(ctx)
		})
		require.ErrorContains(t, err, `protect "it"`)
	})
}

// Communicators made before Restore, and messages after it, are as they should be.
func TestARankThatBegins(t *testing.T) {
	runWorld(t, 4, func(ctx context.Context, world *Comm) error {
		half, err := Split(ctx, world, world.Rank()%2, 0)
		require.NoError(t, err)
		turn := 3
		s := half.State()
		require.Same(t, world.State(), s, "the State is the rank's, not the Comm's")
		s.Protect("turn", &turn)
		require.NoError(t, s.Restore(ctx))
		require.True(t, s.First())
		require.Equal(t, 3, turn, "where a rank begins the variables stay as they are")
		require.False(t, s.Due(), "nobody can move a rank of Run")

		sum := []int{0}
		require.NoError(t, Allreduce(ctx, half, []int{turn}, sum, Sum))
		require.Equal(t, []int{6}, sum)
		late, err := Dup(ctx, half)
		require.NoError(t, err)
		require.ErrorIs(t, s.SafePoint(ctx), ErrState)
		require.NoError(t, late.Free())
		require.NoError(t, s.SafePoint(ctx), "what was made late is free")
		return nil
	})
}

// goesOn is the world of c's rank where it goes on, as in another process, from a safe point
// here: of what the library knew it has what was noted. It makes communicators as before.
func goesOn(c *Comm, prologue func(world *Comm) error) (*Comm, error) {
	if err := c.State().SafePoint(context.Background()); err != nil {
		return nil, err
	}
	noted, err := c.state.extra()
	if err != nil {
		return nil, err
	}
	world := worldOf(c.box, c.state.options, nil)
	world.state.prologue.stays = false
	if err := world.state.recall(noted); err != nil {
		return nil, err
	}
	if err := prologue(world); err != nil {
		return nil, err
	}
	world.State().restored.Store(true)
	return world, world.state.resume(noted)
}

func TestAgreementsGoOn(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, world *Comm) error {
		world.state.options.Check = true // safe points look
		if err := world.State().Restore(ctx); err != nil {
			return err
		}
		for i := range 20 {
			flag, err := world.Agree(ctx, uint64(i)<<8|1<<world.Rank())
			if err != nil {
				return err
			}
			if flag != uint64(i)<<8 {
				return fmt.Errorf("agreement %d = %x", i, flag)
			}
			if err := world.State().SafePoint(ctx); err != nil {
				return err
			}
			if i%5 == world.Rank() {
				if world, err = goesOn(world, func(*Comm) error { return nil }); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestWhatHasComeOfTheNextAgreementGoesOn(t *testing.T) {
	a := agreements{number: 7, early: []earlyAgree{
		{8, 1, agree.Message{Kind: agree.Contribute, Accepted: -1, Value: agree.Value{Flag: 5, Failed: agree.NewSet(3), Acked: agree.NewSet(3), Quit: agree.NewSet(3)}}},
		{8, 2, agree.Message{Kind: agree.Quit}},
	}}
	var b agreements
	require.NoError(t, b.resume(a.ledger(), 3))
	require.Equal(t, a.number, b.number)
	require.Equal(t, a.early, b.early)
}

// TestGroupsOfOneTagGoOn: one is made after the other.
func TestGroupsOfOneTagGoOn(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, world *Comm) error {
		world.state.prologue.stays = false
		var made [3]*Comm
		prologue := func(world *Comm) error {
			for i := range made {
				c, err := CreateGroup(ctx, world, world.Group(), i/2)
				if err != nil {
					return err
				}
				made[i] = c
			}
			return nil
		}
		if err := prologue(world); err != nil {
			return err
		}
		if err := world.State().Restore(ctx); err != nil {
			return err
		}
		before := made
		if world.Rank() == 1 {
			if _, err := goesOn(world, prologue); err != nil {
				return err
			}
		}
		for i, c := range made {
			if c.context != before[i].context {
				return fmt.Errorf("group %d has context %d where its rank goes on, and had %d", i, c.context, before[i].context)
			}
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestSafePointAfterAMessageWasReceived(t *testing.T) {
	runWorld(t, 1, func(ctx context.Context, c *Comm) error {
		c.state.options.Check = true // safe points look
		if err := c.State().Restore(ctx); err != nil {
			return err
		}
		for range 3 {
			if err := Send(ctx, c, []int{1}, 0, 5); err != nil {
				return err
			}
		}
		first, _, err := Mprobe(ctx, c, 0, 5)
		if err != nil {
			return err
		}
		second, _, err := Improbe(c, 0, 5)
		if err != nil {
			return err
		}
		if _, _, err := RecvAlloc[int](ctx, c, 0, 5); err != nil {
			return err
		}
		for _, m := range []*Message{second, first} {
			if err := c.State().SafePoint(ctx); !isError(err, ErrState) {
				return fmt.Errorf("SafePoint while a Message was not received = %v, want ErrState", err)
			}
			if _, err := Mrecv(ctx, m, []int{0}); err != nil {
				return err
			}
		}
		return c.State().SafePoint(ctx)
	})
}

// A rank that sends messages before it calls Restore reaches no safe point: who would move it can know. Those
// that make communicators are none.
func TestWhoSendsWithoutRestoreIsBarred(t *testing.T) {
	restores := func(t *testing.T, restore bool) {
		runWorld(t, 3, func(ctx context.Context, c *Comm) error {
			state := c.State()
			c.state.life = &process.Life{Rank: c.box.Rank(), Box: c.box}
			looked, stop, wrong := make(chan struct{}), make(chan struct{}), error(nil)
			go func() { // as who would move it does, at any time
				defer close(looked)
				for wrong == nil {
					wrong = state.barred()
					select {
					case <-stop:
						return
					default:
						runtime.Gosched()
					}
				}
			}()
			for range 50 {
				part, err := Split(ctx, c, c.Rank()%2, 0)
				if err != nil {
					return err
				}
				if _, err := Dup(ctx, part); err != nil {
					return err
				}
			}
			close(stop)
			<-looked
			if wrong != nil {
				return fmt.Errorf("barred() = %w while communicators are made", wrong)
			}
			if restore {
				if err := state.Restore(ctx); err != nil {
					return err
				}
			}
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			if err := state.barred(); (err == nil) != restore {
				return fmt.Errorf("barred() = %v after a Barrier, Restore called: %v", err, restore)
			}
			return nil
		})
	}
	t.Run("without Restore", func(t *testing.T) { restores(t, false) })
	t.Run("with it", func(t *testing.T) { restores(t, true) })
}

// Shared memory is found at the first safe point, and not when the rank is moved some day.
func TestCheckedSafePointsLayTheStateOut(t *testing.T) {
	for _, check := range []bool{false, true} {
		var grid struct{ Cells [4]int }
		err := Run(t.Context(), 1, Options{Check: check}, func(ctx context.Context, world *Comm) error {
			state := world.State()
			state.Protect("grid", &grid)
			state.Protect("cells", &grid.Cells)
			require.NoError(t, state.Restore(ctx))
			return state.SafePoint(ctx)
		})
		require.Equal(t, check, errors.Is(err, migrate.ErrShared), "%v", err)
	}
}

// Goroutines of a rank may be at one safe point at once: one of them lays the state out.
func TestSafePointOfSeveralGoroutines(t *testing.T) {
	err := Run(t.Context(), 1, Options{Check: true}, func(ctx context.Context, world *Comm) error {
		state, values := world.State(), map[int][]int{1: {2}, 3: {4}}
		state.Protect("values", &values)
		if err := state.Restore(ctx); err != nil {
			return err
		}
		var both sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			both.Go(func() {
				for n := 0; n < 100 && errs[i] == nil; n++ {
					errs[i] = state.SafePoint(ctx)
				}
			})
		}
		both.Wait()
		return errors.Join(errs...)
	})
	require.NoError(t, err)
}
