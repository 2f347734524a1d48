package mpiv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func isError(err, target error) bool { return errors.Is(err, target) }

// Argument errors name the call and what is wrong, and leave the Comm usable:
// all ranks make the same mistake here.
func TestArgumentsThatAreWrong(t *testing.T) {
	type call func(ctx context.Context, c *Comm) error
	mistakes := []struct {
		name string
		call call
		want error
		text string
	}{
		{"a root that is too large", func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, []int{1}, 2) }, ErrRoot, "ranks of world are 0 to 1"},
		{"a negative root", func(ctx context.Context, c *Comm) error { return Reduce(ctx, c, []int{1}, []int{1}, Sum, -1) }, ErrRoot, "-1"},
		{"a type with pointers", func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, []string{"a"}, 0) }, ErrType, "BcastObj"},
		{"out too short", func(ctx context.Context, c *Comm) error { return Allreduce(ctx, c, []int{1, 2}, []int{1}, Sum) }, ErrCount, "len(out) is 1, want 2"},
		{"no op", func(ctx context.Context, c *Comm) error { return Allreduce(ctx, c, []int{1}, []int{1}, nil) }, ErrOp, "there is none"},
		{"an op without a function", func(ctx context.Context, c *Comm) error {
			return Scan(ctx, c, []int{1}, []int{1}, NewOp[int]("empty", nil, true))
		}, ErrOp, "empty"},
		{"gathered too little", func(ctx context.Context, c *Comm) error { return Allgather(ctx, c, []int{1, 2}, make([]int, 3)) }, ErrCount, "len(out) is 3, want 4"},
		{"parts that do not divide", func(ctx context.Context, c *Comm) error { return Alltoall(ctx, c, make([]int, 3), make([]int, 3)) }, ErrCount, "multiple of 2"},
		{"too few counts", func(ctx context.Context, c *Comm) error {
			return Allgatherv(ctx, c, []int{1}, []int{1, 2}, []int{1}, nil)
		}, ErrCount, "number of counts of out is 1, want 2"},
		{"a negative count", func(ctx context.Context, c *Comm) error {
			return Allgatherv(ctx, c, []int{1}, []int{1, 2}, []int{1, -1}, nil)
		}, ErrCount, "block 1 of out"},
		{"a block beyond the end", func(ctx context.Context, c *Comm) error {
			return Alltoallv(ctx, c, []int{1, 2}, []int{1, 1}, []int{0, 2}, []int{1, 2}, []int{1, 1}, nil)
		}, ErrCount, "block 1 of in is elements 2 to 3 of 2"},
		{"not the rank's own count", func(ctx context.Context, c *Comm) error {
			return ReduceScatter(ctx, c, []int{1, 2}, []int{1, 2}, []int{1, 1}, Sum)
		}, ErrCount, "len(out) is 2, want 1"},
	}
	overlapping := make([]int, 6)
	for _, x := range []struct {
		name string
		call call
	}{
		{"Allreduce", func(ctx context.Context, c *Comm) error {
			return Allreduce(ctx, c, overlapping[:4], overlapping[1:5], Sum)
		}},
		{"Scan", func(ctx context.Context, c *Comm) error { return Scan(ctx, c, overlapping[:4], overlapping[2:], Sum) }},
		{"Alltoall", func(ctx context.Context, c *Comm) error {
			return Alltoall(ctx, c, overlapping[:4], overlapping[2:])
		}},
		{"Allgather", func(ctx context.Context, c *Comm) error {
			return Allgather(ctx, c, overlapping[1:3], overlapping[:4])
		}},
		{"Alltoallv", func(ctx context.Context, c *Comm) error {
			return Alltoallv(ctx, c, overlapping, []int{1, 1}, nil, overlapping, []int{1, 1}, nil)
		}},
	} {
		mistakes = append(mistakes, struct {
			name string
			call call
			want error
			text string
		}{"overlap in " + x.name, x.call, ErrOverlap, "apart"})
	}
	for _, x := range mistakes {
		t.Run(x.name, func(t *testing.T) {
			runWorld(t, 2, func(ctx context.Context, c *Comm) error {
				err := x.call(ctx, c)
				var re *RankError
				switch {
				case !errors.Is(err, x.want):
					return fmt.Errorf("error %v, want %v", err, x.want)
				case !errors.As(err, &re) || re.Rank != c.Rank():
					return fmt.Errorf("error %v, want a RankError of rank %d", err, c.Rank())
				case !strings.Contains(err.Error(), x.text):
					return fmt.Errorf("error %q says nothing of %q", err, x.text)
				}
				return Barrier(ctx, c)
			})
		})
	}
}

func TestATypeThatCannotBeSentIsSaidByItsPart(t *testing.T) {
	type node struct {
		ID   int
		Next *int
	}
	for _, x := range []struct {
		err  error
		want string
	}{
		{fits[*int](), ": *int; use"},
		{fits[node](), ": mpiv.node, in which Next is a *int; use"},
		{fits[[2]node](), ": [2]mpiv.node, in which [0].Next is a *int; use"},
		{fits[[2][3]string](), ": [2][3]string, in which [0][0] is a string; use"},
	} {
		require.ErrorIs(t, x.err, ErrType)
		require.ErrorContains(t, x.err, x.want)
	}
}

func TestErrorsOfNonBlockingComeWithWait(t *testing.T) {
	runWorld(t, 2, func(ctx context.Context, c *Comm) error {
		r := Iallreduce(ctx, c, []int{1, 2}, []int{1}, Sum)
		if _, err := r.Wait(ctx); !isError(err, ErrCount) {
			return fmt.Errorf("Wait = %v, want ErrCount", err)
		}
		r = Iallreduce(ctx, c, []int{1}, []int{1}, NewOp("panics", func(in, inout []int) { panic("in the op") }, true))
		_, err := r.Wait(ctx)
		if _, ok := errors.AsType[*PanicError](err); !ok {
			return fmt.Errorf("Wait = %v, want the op's panic", err)
		}
		return Barrier(ctx, c)
	})
}

// Ranks that are in different collectives, or disagree, are told, at least one
// of them; none gets a wrong result in silence.
func TestMismatches(t *testing.T) {
	for _, x := range []struct {
		name  string
		calls [2]func(ctx context.Context, c *Comm) error
		want  error
		text  string
	}{
		{"different collectives", [2]func(ctx context.Context, c *Comm) error{
			func(ctx context.Context, c *Comm) error { return Barrier(ctx, c) },
			func(ctx context.Context, c *Comm) error { return Allreduce(ctx, c, []int{1}, []int{1}, Sum) },
		}, ErrMismatch, "collective number 1 on world is"},
		{"different roots", [2]func(ctx context.Context, c *Comm) error{
			func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, []int{1}, 0) },
			func(ctx context.Context, c *Comm) error { return Gather(ctx, c, []int{1}, []int{1, 2}, 1) },
		}, ErrMismatch, "Gather with root 1 on rank 1 and Bcast with root 0 on rank 0"},
		{"different lengths", [2]func(ctx context.Context, c *Comm) error{
			func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, []int{1, 2, 3}, 0) },
			func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, []int{1, 2}, 0) },
		}, ErrCount, "sent 24 bytes where 16 were expected"},
		{"nothing against something", [2]func(ctx context.Context, c *Comm) error{
			func(ctx context.Context, c *Comm) error { return Allreduce(ctx, c, []int{}, []int{}, Sum) },
			func(ctx context.Context, c *Comm) error {
				return Allreduce(ctx, c, make([]int, 5000), make([]int, 5000), Sum)
			},
		}, ErrCount, "bytes where"},
	} {
		t.Run(x.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := Run(ctx, 2, Options{}, func(ctx context.Context, c *Comm) error { return x.calls[c.Rank()](ctx, c) })
			require.ErrorIs(t, err, x.want)
			require.ErrorContains(t, err, x.text)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// A rank that never enters a collective gives nothing up: the others wait until
// the context of one of them ends. That leaves no trace behind.
func TestAbandonedCollective(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		for _, n := range []int{1, 50_000} {
			d, err := Dup(ctx, c)
			if err != nil {
				return err
			}
			if c.Rank() != 1 {
				mine, stop := context.WithTimeout(ctx, 20*time.Millisecond)
				data := make([]int, n)
				err := Allreduce(mine, d, data, data, Sum)
				stop()
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrAbandoned) {
					return fmt.Errorf("Allreduce without rank 1 = %v", err)
				}
			}
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
}
