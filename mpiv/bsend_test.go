package mpiv

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// attached begins a long buffered send to rank 1, which waits for its receive.
func attached(ctx context.Context, c *Comm, tag int) error {
	if err := BufferAttach(c, 1<<20); err != nil {
		return err
	}
	return Bsend(ctx, c, make([]byte, 300_000), 1, tag)
}

// What Bsend has taken is sent, also where who waits for that gives up.
func TestBufferDetachTakesNothingBack(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, []int{0}, 0, 1); err != nil {
				return err
			}
			s, err := Recv(ctx, c, make([]byte, 300_000), 0, 0)
			if err != nil || s.Count != 300_000 {
				return fmt.Errorf("Recv of what Bsend sent = %+v, %w", s, err)
			}
			return nil
		}
		if err := attached(ctx, c, 0); err != nil {
			return err
		}
		for range 2 {
			short, stop := context.WithTimeout(ctx, time.Millisecond)
			n, err := BufferDetach(short, c)
			stop()
			if n != 0 || !isError(err, context.DeadlineExceeded) {
				return fmt.Errorf("BufferDetach before the receive = %d, %v, want the deadline", n, err)
			}
		}
		if err := Send(ctx, c, []int{1}, 1, 1); err != nil {
			return err
		}
		if n, err := BufferDetach(ctx, c); n != 1<<20 || err != nil {
			return fmt.Errorf("BufferDetach = %d, %w, want %d", n, err, 1<<20)
		}
		if err := Bsend(ctx, c, []int{1}, 1, 2); !isError(err, ErrBuffer) {
			return fmt.Errorf("Bsend without room = %v, want ErrBuffer", err)
		}
		return nil
	})
}

// While goroutines wait in BufferDetach another sends, which takes no time.
func TestBsendWhileOthersDetach(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			for tag := 1; tag >= 0; tag-- { // the second comes first
				if _, err := Recv(ctx, c, make([]byte, 300_000), 0, tag); err != nil {
					return err
				}
			}
			return nil
		}
		if err := attached(ctx, c, 0); err != nil {
			return err
		}
		rooms, errs := make(chan int, 2), make(chan error, 2)
		for range 2 {
			go func() {
				n, err := BufferDetach(ctx, c)
				rooms <- n
				errs <- err
			}()
		}
		time.Sleep(5 * time.Millisecond)
		if err := Bsend(ctx, c, make([]byte, 300_000), 1, 1); err != nil {
			return err
		}
		for range 2 {
			if err := <-errs; err != nil {
				return err
			}
		}
		if n := <-rooms + <-rooms; n != 1<<20 {
			return fmt.Errorf("BufferDetach gave back %d bytes, want %d", n, 1<<20)
		}
		return nil
	})
}

func TestSafePointAfterABsend(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		c.state.options.Check = true // safe points look
		if err := c.State().Restore(ctx); err != nil {
			return err
		}
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, []int{0}, 0, 1); err != nil {
				return err
			}
			if _, err := Recv(ctx, c, make([]byte, 300_000), 0, 0); err != nil {
				return err
			}
			return Send(ctx, c, []int{1}, 0, 2)
		}
		if err := attached(ctx, c, 0); err != nil {
			return err
		}
		if err := c.State().SafePoint(ctx); !isError(err, ErrState) {
			return fmt.Errorf("SafePoint while a Bsend is under way = %v, want ErrState", err)
		}
		if err := Send(ctx, c, []int{1}, 1, 1); err != nil {
			return err
		}
		if _, err := Recv(ctx, c, []int{0}, 1, 2); err != nil {
			return err
		}
		return c.State().SafePoint(ctx)
	})
}
