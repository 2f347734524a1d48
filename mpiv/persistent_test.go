package mpiv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestPersistentRequests(t *testing.T) {
	runWorld(t, 2, func(ctx context.Context, c *Comm) error {
		other := 1 - c.Rank()
		out, in := make([]int, 3), make([]int, 3)
		send, recv := SendInit(c, out, other, 4), RecvInit(c, in, other, 4)
		if c.Rank() == 1 {
			send = SsendInit(c, out, other, 4)
		}
		if _, err := recv.Wait(ctx); err != nil {
			return fmt.Errorf("Wait before Start: %w", err)
		}
		for round := range 10 {
			out[2] = round*2 + c.Rank()
			if err := Startall(recv, send); err != nil {
				return err
			}
			if err := recv.Start(); !isError(err, ErrInactive) {
				return fmt.Errorf("Start of an active one = %v, want ErrInactive", err)
			}
			if _, err := send.Wait(ctx); err != nil {
				return err
			}
			st, err := recv.Wait(ctx)
			if err != nil || st.Count != 3 || in[2] != round*2+other {
				return fmt.Errorf("round %d: %v, %v, %w", round, st, in, err)
			}
			if recv.Active() {
				return fmt.Errorf("active after Wait")
			}
		}
		bad := SendInit(c, []string{"a"}, other, 1)
		if err := bad.Start(); err != nil {
			return err
		}
		if _, err := bad.Wait(ctx); !isError(err, ErrType) {
			return fmt.Errorf("Wait = %v, want ErrType", err)
		}
		return nil
	})
}

// All modes of send, with all ways to wait for several.
func TestPersistentsAreWaitedForTogether(t *testing.T) {
	type wait func(ctx context.Context, ps []*Persistent) error
	waits := []struct {
		name string
		wait wait
	}{
		{"Waitall", func(ctx context.Context, ps []*Persistent) error { return Waitall(ctx, ps, nil) }},
		{"Testall", func(ctx context.Context, ps []*Persistent) error {
			for {
				if done, err := Testall(ps, nil); done || err != nil {
					return err
				}
			}
		}},
		{"Waitany", func(ctx context.Context, ps []*Persistent) error {
			for {
				if i, _, err := Waitany(ctx, ps); i < 0 || err != nil {
					return err
				}
			}
		}},
		{"Testany", func(ctx context.Context, ps []*Persistent) error {
			for {
				if i, _, done, err := Testany(ps); done && i < 0 || err != nil {
					return err
				}
			}
		}},
		{"Waitsome", func(ctx context.Context, ps []*Persistent) error {
			for {
				if some, err := Waitsome(ctx, ps, nil); len(some) == 0 || err != nil {
					return err
				}
			}
		}},
		{"Testsome", func(ctx context.Context, ps []*Persistent) error {
			for slices.ContainsFunc(ps, (*Persistent).Active) {
				if _, err := Testsome(ps, nil); err != nil {
					return err
				}
			}
			return nil
		}},
	}
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		other := 1 - c.Rank()
		var out, in [4][]int
		for i := range out {
			out[i], in[i] = make([]int, 1+i*3000), make([]int, 1+i*3000) // short ones are done at once, long ones are not
		}
		if err := BufferAttach(c, 100_000); err != nil {
			return err
		}
		receives := []*Persistent{RecvInit(c, in[0], other, 0), RecvInit(c, in[1], other, 1), RecvInit(c, in[2], other, 2), RecvInit(c, in[3], other, 3)}
		sends := []*Persistent{SendInit(c, out[0], other, 0), SsendInit(c, out[1], other, 1), BsendInit(c, out[2], other, 2), RsendInit(c, out[3], other, 3)}
		for round := range 3 {
			for _, w := range waits {
				for i := range out {
					out[i][len(out[i])-1] = 100*round + 10*c.Rank() + i
				}
				if err := Startall(receives...); err != nil {
					return err
				}
				if done, err := Testall(receives, nil); done || err != nil {
					return fmt.Errorf("Testall before anything was sent = %v, %w", done, err)
				}
				if err := Barrier(ctx, c); err != nil { // a ready send wants its receive posted
					return err
				}
				if err := Startall(sends...); err != nil {
					return err
				}
				if err := w.wait(ctx, slices.Concat(sends, receives)); err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				for i := range in {
					if sends[i].Active() || receives[i].Active() {
						return fmt.Errorf("active after %s: send %d %v, receive %v", w.name, i, sends[i].Active(), receives[i].Active())
					}
					if got, want := in[i][len(in[i])-1], 100*round+10*other+i; got != want {
						return fmt.Errorf("message %d after %s = %d, want %d", i, w.name, got, want)
					}
				}
				if err := Barrier(ctx, c); err != nil {
					return err
				}
			}
		}
		_, err := BufferDetach(ctx, c)
		return err
	})
}

func TestStatusesOfPersistents(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			p := SendInit(c, []int16{1, 2, 3}, 1, 6)
			return errors.Join(p.Start(), Waitall(ctx, []*Persistent{p}, nil))
		}
		idle, p, statuses := RecvInit(c, []int16{0}, 0, 1), RecvInit(c, make([]int16, 5), AnySource, AnyTag), make([]Status, 2)
		if err := p.Start(); err != nil {
			return err
		}
		if err := Waitall(ctx, []*Persistent{idle, p}, statuses); err != nil {
			return err
		}
		if want := []Status{{Source: AnySource, Tag: AnyTag}, {Source: 0, Tag: 6, Count: 3, Bytes: 6}}; !slices.Equal(statuses, want) {
			return fmt.Errorf("statuses %+v, want %+v", statuses, want)
		}
		return nil
	})
}

func TestABufferedPersistentWithoutRoom(t *testing.T) {
	runWorld(t, 2, func(ctx context.Context, c *Comm) error {
		p := BsendInit(c, []int{1}, 1-c.Rank(), 0)
		for range 2 {
			if err := p.Start(); err != nil {
				return err
			}
			if err := Waitall(ctx, []*Persistent{p}, nil); !errors.Is(err, ErrBuffer) || p.Active() {
				return fmt.Errorf("Waitall = %v, and active %v after it; want ErrBuffer and false", err, p.Active())
			}
		}
		return nil
	})
}

func TestPersistentsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	runWorld(t, 1, func(ctx context.Context, c *Comm) error {
		ps := []*Persistent{RecvInit(c, []int{0}, 0, 0), SendInit(c, []int{7}, 0, 0)}
		var failed error
		round := func() { failed = errors.Join(failed, Startall(ps...), Waitall(ctx, ps, nil)) }
		round()
		if n := testing.AllocsPerRun(100, round); n > 0 || failed != nil {
			return fmt.Errorf("%v allocations in a round, want 0; %w", n, failed)
		}
		return nil
	})
}
