package mpiv

import (
	"context"
	"fmt"
	"slices"
	"testing"
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
