package mpiv

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type note struct {
	Text string
	Of   map[string]int
}

func TestObjects(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		rank, size := c.Rank(), c.Size()
		mine := note{fmt.Sprint("from ", rank), map[string]int{"rank": rank}}
		right, left := (rank+1)%size, (rank+size-1)%size
		r := IsendObj(c, mine, right, 3)
		got, st, err := RecvObj[note](ctx, c, left, 3)
		if err != nil || got.Of["rank"] != left || st.Source != left {
			return fmt.Errorf("RecvObj = %v, %v, %w", got, st, err)
		}
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
		got, err = BcastObj(ctx, c, mine, 2)
		if err != nil || got.Text != "from 2" {
			return fmt.Errorf("BcastObj = %v, %w", got, err)
		}
		all, err := GatherObj(ctx, c, mine.Text, 1)
		if err != nil {
			return err
		}
		want := []string{"from 0", "from 1", "from 2"}
		if rank != 1 {
			want = nil
		}
		if !slices.Equal(all, want) {
			return fmt.Errorf("GatherObj = %v, want %v", all, want)
		}
		numbers, err := AllgatherObj(ctx, c, []int{rank})
		if err != nil || fmt.Sprint(numbers) != "[[0] [1] [2]]" {
			return fmt.Errorf("AllgatherObj = %v, %w", numbers, err)
		}
		var words []string
		if rank == 0 {
			words = []string{"a", "", "c"}
		}
		word, err := ScatterObj(ctx, c, words, 0)
		if err != nil || word != []string{"a", "", "c"}[rank] {
			return fmt.Errorf("ScatterObj = %q, %w", word, err)
		}
		return nil
	})
}

// A value that cannot be encoded is an error everywhere, and nobody waits.
func TestObjectsThatCannotBeEncoded(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		bad := any(nil)
		if c.Rank() == 1 {
			bad = make(chan int)
		} else {
			bad = "text"
		}
		if _, err := BcastObj(ctx, c, bad, 1); !isError(err, ErrObject) {
			return fmt.Errorf("BcastObj = %v, want ErrObject", err)
		}
		if _, err := AllgatherObj(ctx, c, bad); !isError(err, ErrObject) {
			return fmt.Errorf("AllgatherObj = %v, want ErrObject", err)
		}
		if _, err := GatherObj(ctx, c, bad, 0); isError(err, ErrObject) != (c.Rank() < 2) {
			return fmt.Errorf("GatherObj = %v", err)
		}
		if _, err := ScatterObj(ctx, c, []any{"a", bad, "b"}, 1); !isError(err, ErrObject) {
			return fmt.Errorf("ScatterObj = %v, want ErrObject", err)
		}
		if _, err := ScatterObj(ctx, c, []string{"a"}, 1); isError(err, ErrCount) != (c.Rank() == 1) || err == nil {
			return fmt.Errorf("ScatterObj of one = %v", err)
		}
		return Barrier(ctx, c)
	})
}

// Errors speak of the program's types, and of a message that is no object.
func TestWhatIsWrongWithAnObject(t *testing.T) {
	type call func(ctx context.Context, c *Comm) error
	send := func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, "text", 1, 3) }
	plain := func(n int) call {
		return func(ctx context.Context, c *Comm) error { return Send(ctx, c, make([]float64, n), 1, 3) }
	}
	recv := func(ctx context.Context, c *Comm) error {
		_, _, err := RecvObj[int](ctx, c, 0, 3)
		return err
	}
	none := func(context.Context, *Comm) error { return nil }
	for _, x := range []struct {
		name        string
		send, recv  call
		says, never string
	}{
		{"a channel", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, make(chan int), 1, 3) }, none, "SendObj on world, rank 0, peer 1, tag 3 (object_test.go:", "envelope"},
		{"a channel, by its type", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, make(chan int), 1, 3) }, none, "type chan int has no exported fields", "envelope"},
		{"another type", send, recv, "wrong type (int) for a received string", "envelope"},
		{"another type, of an object", send, recv, "RecvObj on world, rank 1, peer 0, tag 3 (object_test.go:", "was it sent with SendObj?"},
		{"an empty message", plain(0), recv, "EOF; was it sent with SendObj?", "envelope"},
		{"a message of numbers", plain(4), recv, "was it sent with SendObj?", "envelope"},
		{"no such rank", func(ctx context.Context, c *Comm) error {
			r := IsendObj(c, "text", 2, 3)
			_, err := r.Wait(ctx)
			return err
		}, none, "IsendObj on world, rank 0, peer 2, tag 3 (object_test.go:", "Isend on"},
	} {
		t.Run(x.name, func(t *testing.T) {
			err := Run(t.Context(), 2, Options{}, func(ctx context.Context, c *Comm) error {
				if c.Rank() == 0 {
					return x.send(ctx, c)
				}
				return x.recv(ctx, c)
			})
			require.ErrorContains(t, err, x.says)
			require.NotContains(t, err.Error(), x.never)
		})
	}
}
