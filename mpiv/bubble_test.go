package mpiv

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inBubbles runs f as each of four ranks, in one process and in several, in
// bubbles. Goroutines that are left over fail the test.
func inBubbles(t *testing.T, f func(ctx context.Context, c *Comm) error) {
	t.Run("in one process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { runWorld(t, 4, f) })
	})
	t.Run("in three processes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { runProcesses(t, []int{1, 2, 1}, f) })
	})
}

// passed is nil if time want has gone by since began, and no more: a wake-up that
// is missed costs until the next look, 5 ms.
func passed(began time.Time, want time.Duration) error {
	if took := time.Since(began); took != want {
		return fmt.Errorf("it took %v of virtual time, want %v", took, want)
	}
	return nil
}

// Before each exchange, a rank computes for as many seconds as its number says.
func TestBubbleExchanges(t *testing.T) {
	inBubbles(t, func(ctx context.Context, c *Comm) error {
		began := time.Now()
		size := c.Size()
		compute := func() { time.Sleep(time.Duration(c.Rank()) * time.Second) }
		compute()
		v := []int{c.Rank()}
		if _, err := SendrecvReplace(ctx, c, v, (c.Rank()+1)%size, 1, (c.Rank()+size-1)%size, 1); err != nil {
			return err
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		if err := passed(began, 3*time.Second); err != nil {
			return err
		}
		for _, n := range []int{1, 10_000} {
			compute()
			in, out := make([]int, n), make([]int, n)
			in[n-1] = v[0]
			if err := Allreduce(ctx, c, in, out, Sum); err != nil {
				return err
			}
			if want := size * (size - 1) / 2; out[n-1] != want {
				return fmt.Errorf("the sum of all ranks = %d, want %d", out[n-1], want)
			}
		}
		r := Ibarrier(ctx, c)
		compute()
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
		return Barrier(ctx, c)
	})
}

// All ranks but the last are in a collective when their deadline comes.
func TestBubbleDeadlineOfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		err := Run(ctx, 4, Options{}, func(ctx context.Context, c *Comm) error {
			if c.Rank() == 3 {
				<-ctx.Done()
				return ctx.Err()
			}
			return Barrier(ctx, c)
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, passed(began, time.Hour))
	})
}

// A rank that gives up a receive can go on, and so can the others.
func TestBubbleRankWaitsInVain(t *testing.T) {
	inBubbles(t, func(ctx context.Context, c *Comm) error {
		began := time.Now()
		if c.Rank() == 1 {
			short, stop := context.WithTimeout(ctx, 10*time.Second)
			defer stop()
			_, err := Recv(short, c, make([]int, 1), AnySource, 7)
			if err == nil || short.Err() == nil {
				return fmt.Errorf("Recv of what nobody sends = %v after %v", err, time.Since(began))
			}
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		return passed(began, 10*time.Second)
	})
}

// The error of a rank ends the calls of the others, and their goroutines.
func TestBubbleErrorEndsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Run(t.Context(), 4, Options{}, func(ctx context.Context, c *Comm) error {
			if c.Rank() == 3 {
				time.Sleep(time.Minute)
				return context.DeadlineExceeded
			}
			Ibarrier(ctx, c)
			_, err := Recv(ctx, c, make([]int, 1), 3, 0)
			return err
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, passed(began, time.Minute))
	})
}
