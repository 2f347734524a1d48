package mpiv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

// twoPlaces runs f as two ranks of one process and of two.
func twoPlaces(t *testing.T, f func(ctx context.Context, c *Comm) error) {
	t.Run("one process", func(t *testing.T) { runWorld(t, 2, f) })
	t.Run("two processes", func(t *testing.T) { runProcesses(t, []int{1, 1}, f) })
}

// TestWaitanyNamesEachRequestOnce: also a send that was done when it was begun.
func TestWaitanyNamesEachRequestOnce(t *testing.T) {
	const n = 5
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		var rs [n]Request
		var data [n][]int
		for i := range rs {
			data[i] = make([]int, 1+i*3000) // short ones are done at once, long ones are not
			if c.Rank() == 0 {
				data[i][0] = 100 + i
				rs[i] = Isend(c, data[i], 1, i)
			} else {
				rs[i] = Irecv(c, data[i], 0, i)
			}
		}
		var named []int
		for range n {
			i, s, err := Waitany(ctx, rs[:])
			if err != nil {
				return err
			}
			if named = append(named, i); c.Rank() == 1 && (s.Tag != i || s.Count != len(data[i]) || data[i][0] != 100+i) {
				return fmt.Errorf("request %d: status %+v, content %d", i, s, data[i][0])
			}
		}
		slices.Sort(named)
		if !slices.Equal(named, []int{0, 1, 2, 3, 4}) {
			return fmt.Errorf("rank %d: Waitany named %v", c.Rank(), named)
		}
		if i, _, err := Waitany(ctx, rs[:]); i != -1 || err != nil {
			return fmt.Errorf("Waitany of none: %d, %v", i, err)
		}
		return nil
	})
}

func TestWaitsomeAndTestsomeEndAll(t *testing.T) {
	const n = 6
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		var rs [n]Request
		var data [n]int
		for i := range rs {
			if c.Rank() == 0 {
				rs[i] = Isend(c, []int{i}, 1, i)
			} else {
				rs[i] = Irecv(c, data[i:i+1], 0, i)
			}
		}
		var named []int
		for k := 0; len(named) < n; k++ {
			var statuses [n]Status
			some, err := Waitsome(ctx, rs[:], statuses[:])
			if err != nil || len(some) == 0 {
				return fmt.Errorf("Waitsome: %v, %w", some, err)
			}
			for j, i := range some {
				if c.Rank() == 1 && (statuses[j].Tag != i || data[i] != i) {
					return fmt.Errorf("request %d: status %+v, content %d", i, statuses[j], data[i])
				}
			}
			named = append(named, some...)
			more, err := Testsome(rs[:], nil)
			if err != nil {
				return err
			}
			named = append(named, more...)
		}
		slices.Sort(named)
		if !slices.Equal(named, []int{0, 1, 2, 3, 4, 5}) {
			return fmt.Errorf("rank %d: Waitsome and Testsome named %v", c.Rank(), named)
		}
		return nil
	})
}

func TestTestallChangesNoneBeforeAllAreDone(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			var in [2]int
			rs := []Request{Irecv(c, in[:1], 1, 0), Irecv(c, in[1:], 1, 1)}
			if done, err := Testall(rs, nil); done || err != nil {
				return fmt.Errorf("Testall before any message: %v, %w", done, err)
			}
			if err := Send(ctx, c, []int{0}, 1, 2); err != nil {
				return err
			}
			for {
				var statuses [2]Status
				done, err := Testall(rs, statuses[:])
				if err != nil {
					return err
				}
				if done {
					if in != [2]int{7, 8} || statuses[0].Tag != 0 || statuses[1].Tag != 1 {
						return fmt.Errorf("received %v, %+v", in, statuses)
					}
					break
				}
			}
			if i, _, done, err := Testany(rs); i != -1 || !done || err != nil {
				return fmt.Errorf("Testany of none: %d, %v, %w", i, done, err)
			}
			return nil
		}
		if _, err := Recv(ctx, c, make([]int, 1), 0, 2); err != nil {
			return err
		}
		for tag, v := range []int{7, 8} {
			if err := Send(ctx, c, []int{v}, 0, tag); err != nil {
				return err
			}
		}
		return nil
	})
}

// Who gives up the wait for a collective can wait for it again: it goes on.
func TestACollectiveOutlivesItsWait(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, []int{0}, 0, 5); err != nil {
				return err
			}
			return Allreduce(ctx, c, []int{7}, []int{0}, Sum)
		}
		sum := []int{0}
		rs := []Request{Iallreduce(ctx, c, []int{35}, sum, Sum)}
		for name, wait := range map[string]func(ctx context.Context) error{
			"Wait":    func(ctx context.Context) error { _, err := rs[0].Wait(ctx); return err },
			"Waitall": func(ctx context.Context) error { return Waitall(ctx, rs, nil) },
			"Waitany": func(ctx context.Context) error { _, _, err := Waitany(ctx, rs); return err },
		} {
			short, stop := context.WithTimeout(ctx, time.Millisecond)
			err := wait(short)
			stop()
			if re, ok := errors.AsType[*RankError](err); !ok || re.Op != name || !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("%s for a collective that others have not begun = %v, want its deadline", name, err)
			}
			if _, done, err := rs[0].Test(); done || err != nil {
				return fmt.Errorf("Test of it = %v, %w", done, err)
			}
		}
		if err := Send(ctx, c, []int{1}, 1, 5); err != nil {
			return err
		}
		if _, err := rs[0].Wait(ctx); err != nil || sum[0] != 42 {
			return fmt.Errorf("Wait = %w with the sum %d, want 42", err, sum[0])
		}
		return nil
	})
}

// What fails names the call that found it, whichever that is.
func TestEndsOfRequestsNameTheirCall(t *testing.T) {
	calls := map[string]func(ctx context.Context, rs []Request) error{
		"Wait":     func(ctx context.Context, rs []Request) error { _, err := rs[0].Wait(ctx); return err },
		"Test":     func(ctx context.Context, rs []Request) error { _, _, err := rs[0].Test(); return err },
		"Waitall":  func(ctx context.Context, rs []Request) error { return Waitall(ctx, rs, nil) },
		"Testall":  func(ctx context.Context, rs []Request) error { _, err := Testall(rs, nil); return err },
		"Waitany":  func(ctx context.Context, rs []Request) error { _, _, err := Waitany(ctx, rs); return err },
		"Testany":  func(ctx context.Context, rs []Request) error { _, _, _, err := Testany(rs); return err },
		"Waitsome": func(ctx context.Context, rs []Request) error { _, err := Waitsome(ctx, rs, nil); return err },
		"Testsome": func(ctx context.Context, rs []Request) error { _, err := Testsome(rs, nil); return err },
	}
	runWorld(t, 1, func(ctx context.Context, c *Comm) error {
		for name, call := range calls {
			cancelled := Irecv(c, []int{0}, 0, 0)
			cancelled.Cancel()
			message, collective := cancelled, Ibarrier(ctx, c)
			copied := collective
			if _, err := collective.Wait(ctx); err != nil {
				return err
			}
			for _, x := range []struct {
				r    Request
				want error
				op   string
			}{
				{cancelled, ErrCancelled, name + " (Irecv)"},
				{message, ErrRequest, name + " (Irecv)"},
				{copied, ErrRequest, name},
			} {
				rs := []Request{x.r}
				if strings.HasSuffix(name, "some") {
					rs = []Request{Irecv(c, []int{0}, c.Size(), 0), x.r}
				}
				err := call(ctx, rs)
				if all, ok := err.(interface{ Unwrap() []error }); ok { // the last is of x.r
					err = all.Unwrap()[len(all.Unwrap())-1]
				}
				if re, ok := errors.AsType[*RankError](err); !ok || re.Op != x.op || !errors.Is(err, x.want) {
					return fmt.Errorf("%s = %v, want a RankError of %q with %v", name, err, x.op, x.want)
				}
			}
		}
		return nil
	})
}

func TestARequestStaysSmall(t *testing.T) {
	require.LessOrEqual(t, sizeOf[Request](), 32, "what is larger the compiler keeps in memory, not in registers")
}

// A program that asks whether all are done until the last is records that once, however many
// are done before.
func TestTestallIsOneDecision(t *testing.T) {
	runWorld(t, 2, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			if err := Send(ctx, c, []int32{1}, 0, 1); err != nil {
				return err
			}
			if _, err := Recv(ctx, c, []int32{0}, 0, 3); err != nil {
				return err
			}
			return Send(ctx, c, []int32{2}, 0, 2)
		}
		var recorded []engine.Choice
		c.box.Record(engine.Recording{Record: func(x engine.Choice) { recorded = append(recorded, x) }})
		rs := []Request{Irecv(c, []int32{0}, 1, 1), Irecv(c, []int32{0}, 1, 2)}
		for range 100 {
			if all, err := Testall(rs, nil); all || err != nil {
				return fmt.Errorf("Testall = %v, %w", all, err)
			}
			if !rs[0].r.Finished() {
				time.Sleep(time.Millisecond)
			}
		}
		if !rs[0].r.Finished() || len(recorded) > 0 {
			return fmt.Errorf("finished: %v, recorded: %v", rs[0].r.Finished(), recorded)
		}
		if err := Send(ctx, c, []int32{3}, 1, 3); err != nil {
			return err
		}
		for {
			if all, err := Testall(rs, nil); err != nil {
				return err
			} else if all {
				break
			}
		}
		if n := len(recorded); n != 2 || recorded[0].Kind != engine.ChoseNothing || recorded[1] != (engine.Choice{Kind: engine.ChoseOutcome, Index: recorded[1].Index, Seq: 1}) {
			return fmt.Errorf("recorded: %v", recorded)
		}
		return nil
	})
}

// A Waitany whose ctx ended does so in the next life, too, though something is done by then; and one that was in time
// takes nothing back. Otherwise the next would end what is ended.
func TestWaitanyRunsOutOfTimeAgain(t *testing.T) {
	live := func(again []engine.Choice) (recorded []engine.Choice) {
		runWorld(t, 2, func(ctx context.Context, c *Comm) error {
			if c.Rank() == 1 {
				if again == nil { // else it has come before Waitany
					if _, err := Recv(ctx, c, []int32{0}, 0, 2); err != nil {
						return err
					}
				}
				if err := Send(ctx, c, []int32{1}, 0, 1); err != nil {
					return err
				}
				if again != nil {
					if _, err := Recv(ctx, c, []int32{0}, 0, 2); err != nil {
						return err
					}
				}
				_, err := Recv(ctx, c, []int32{0}, 0, 3)
				if err == nil {
					err = Send(ctx, c, []int32{1}, 0, 4)
				}
				return err
			}
			c.box.Record(engine.Recording{Record: func(x engine.Choice) { recorded = append(recorded, x) }, Again: again})
			defer c.box.EndRecord()
			rs := []Request{Irecv(c, []int32{0}, 1, 1), Irecv(c, []int32{0}, 1, 4)}
			for again != nil && !rs[0].r.Finished() {
				c.box.Progress()
			}
			soon, stop := context.WithTimeout(ctx, 20*time.Millisecond)
			defer stop()
			if i, _, err := Waitany(soon, rs); i != -1 || !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("the first: %d, %w", i, err)
			}
			if err := Send(ctx, c, []int32{0}, 1, 2); err != nil {
				return err
			}
			for want := range 2 {
				in := ctx
				if again != nil {
					in = soon
				}
				if i, s, err := Waitany(in, rs); i != want || err != nil || s.Source != 1 {
					return fmt.Errorf("%d after it: %d, %v, %w", want, i, s, err)
				}
				if want == 0 {
					if err := Send(ctx, c, []int32{0}, 1, 3); err != nil {
						return err
					}
				}
			}
			return nil
		})
		return recorded
	}
	again := live(nil)
	if more := live(again); len(again) != 3 || len(more) != 0 {
		t.Errorf("recorded %v, and then %v", again, more)
	}
}
