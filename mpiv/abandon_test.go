package mpiv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// An abandonment is a collective that rank 1 gives up.
type abandonment struct {
	name string
	// call is the collective. giveUp is true on rank 1.
	call func(ctx context.Context, c *Comm, giveUp bool) error
	want error  // of rank 1; nil: see text
	text string // in the error of the others, and of rank 1 if want is nil
	// may tells whether another rank may finish, for it needs nobody who needs
	// rank 1. nil: none may.
	may func(rank int) bool
}

var panicsOnOne = func(giveUp bool) Op[int] {
	return NewOp("panics", func(in, inout []int) {
		if giveUp {
			panic("in the op")
		}
		for i := range in {
			inout[i] += in[i]
		}
	}, true)
}

var exitsOnOne = func(giveUp bool) Op[int] {
	return NewOp("exits", func(in, inout []int) {
		if giveUp {
			runtime.Goexit()
		}
		for i := range in {
			inout[i] += in[i]
		}
	}, true)
}

var errExited = errors.New("the op ended its goroutine")

// survived is call, in a goroutine of its own; errExited if it ends that.
func survived(call func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errExited
		defer func() { done <- err }()
		err = call()
	}()
	return <-done
}

var errPanicked = errors.New("the op panicked")

// recovered is call with a panic of its as an error.
func recovered(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanicked, p)
		}
	}()
	return call()
}

const bigPart = 1 << 20 // of an Alltoall: no way sends so much without its receiver

var errTouched = errors.New("the buffer was written after the collective had ended")

// untouched tells whether nothing is written to buf, which is the caller's again.
func untouched(buf []byte) error {
	for i := range buf {
		buf[i] = 0xAB
	}
	time.Sleep(2 * time.Millisecond)
	for i := range buf {
		if buf[i] != 0xAB {
			return fmt.Errorf("%w: byte %d", errTouched, i)
		}
	}
	return nil
}

var abandonments = []abandonment{
	{"Barrier", func(ctx context.Context, c *Comm, giveUp bool) error {
		return Barrier(ctx, c)
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"Allreduce", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := make([]int, 4)
		return Allreduce(ctx, c, v, v, Sum)
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"long Allreduce", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := make([]int, 1<<17)
		return Allreduce(ctx, c, v, v, Sum)
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"Iallreduce", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := make([]int, 4)
		r := Iallreduce(ctx, c, v, v, Sum)
		_, err := r.Wait(context.Background())
		return err
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"Alltoall of large parts", func(ctx context.Context, c *Comm, giveUp bool) error {
		out := make([]byte, c.Size()*bigPart)
		err := Alltoall(ctx, c, make([]byte, c.Size()*bigPart), out)
		return errors.Join(err, untouched(out))
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"large Bcast", func(ctx context.Context, c *Comm, giveUp bool) error {
		return Bcast(ctx, c, make([]byte, 4*bigPart), c.Size()-1)
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"Bcast whose root need not wait", func(ctx context.Context, c *Comm, giveUp bool) error {
		return Bcast(ctx, c, []int{1}, c.Size()-1)
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"CreateGroup", func(ctx context.Context, c *Comm, giveUp bool) error {
		_, err := CreateGroup(ctx, c, c.Group(), 7)
		return err
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
	{"Dup", func(ctx context.Context, c *Comm, giveUp bool) error {
		_, err := Dup(ctx, c)
		return err
	}, context.DeadlineExceeded, "context deadline exceeded", nil},
}

// In these it is not the context of rank 1 that ends: it makes a mistake.
var mistakes = []abandonment{
	{"a length", func(ctx context.Context, c *Comm, giveUp bool) error {
		out := make([]int, 4)
		if giveUp {
			out = out[:3]
		}
		return Allreduce(ctx, c, make([]int, 4), out, Sum)
	}, ErrCount, "len(out) is 3, want 4", nil},
	{"a root", func(ctx context.Context, c *Comm, giveUp bool) error {
		root := 0
		if giveUp {
			root = c.Size()
		}
		return Bcast(ctx, c, make([]byte, 4*bigPart), root)
	}, ErrRoot, "no such root", func(rank int) bool { return rank > 1 }},
	{"a type", func(ctx context.Context, c *Comm, giveUp bool) error {
		if giveUp {
			return Allgather(ctx, c, []string{"a"}, make([]string, c.Size()))
		}
		return Allgather(ctx, c, []int{1}, make([]int, c.Size()))
	}, ErrType, "BcastObj", nil},
	{"a reduction that panics", func(ctx context.Context, c *Comm, giveUp bool) error {
		// Among so few ranks, each combines a part.
		v := make([]int, 1<<15)
		return recovered(func() error { return Allreduce(ctx, c, v, v, panicsOnOne(giveUp)) })
	}, errPanicked, "panic: in the op", nil},
	{"a reduction that panics, begun", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := make([]int, 1<<15)
		r := Iallreduce(ctx, c, v, v, panicsOnOne(giveUp))
		_, err := r.Wait(ctx)
		return err
	}, nil, "panic: in the op", nil},
	{"a reduction that ends its goroutine", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := make([]int, 1<<15)
		return survived(func() error { return Allreduce(ctx, c, v, v, exitsOnOne(giveUp)) })
	}, errExited, "runtime.Goexit", nil},
	{"a reduction that ends its goroutine, begun", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := make([]int, 1<<15)
		r := Iallreduce(ctx, c, v, v, exitsOnOne(giveUp))
		_, err := r.Wait(ctx)
		return err
	}, nil, "runtime.Goexit", nil},
	{"a Scan that panics", func(ctx context.Context, c *Comm, giveUp bool) error {
		v := []int{1}
		return recovered(func() error { return Scan(ctx, c, v, v, panicsOnOne(giveUp)) })
	}, errPanicked, "panic: in the op", func(rank int) bool { return rank != 3 }},
}

// abandonedIn is worlds: how many ranks each of their processes has.
var abandonedIn = [][]int{{3}, {1, 1, 1}, {2, 2}}

func inWorlds(t *testing.T, f func(ctx context.Context, c *Comm) error) {
	for _, ranks := range abandonedIn {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			runProcesses(t, ranks, f)
		})
	}
}

// soon is how long the others may take to hear of it, on a busy machine.
const soon = 10 * time.Second

// told checks what a rank other than by got that waited since then.
func told(err error, by int, text string, since time.Time) error {
	re, ok := errors.AsType[*RankError](err)
	switch {
	case !errors.Is(err, ErrAbandoned):
		return fmt.Errorf("error %v, want ErrAbandoned", err)
	case !ok || re.Peer != by:
		return fmt.Errorf("error %v, want a RankError with peer %d", err, by)
	case !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "abandon_test.go:"):
		return fmt.Errorf("error %q says nothing of %q at a line", err, text)
	case errors.Is(err, errTouched):
		return err
	case time.Since(since) > soon:
		return fmt.Errorf("the error came after %v", time.Since(since))
	}
	return nil
}

// Rank 1 waits in a collective that the last rank has not entered when the
// context of rank 1 ends. The others that wait are told, as is the last when it
// enters. The next collective works.
func TestGivenUpWhileWaiting(t *testing.T) {
	for _, x := range abandonments {
		t.Run(x.name, func(t *testing.T) {
			inWorlds(t, func(ctx context.Context, c *Comm) error {
				enter := time.Now()
				switch c.Rank() {
				case 1:
					mine, stop := context.WithTimeout(ctx, 20*time.Millisecond)
					defer stop()
					err := x.call(mine, c, true)
					if !errors.Is(err, x.want) || errors.Is(err, ErrAbandoned) || errors.Is(err, errTouched) {
						return fmt.Errorf("error %v, want %v", err, x.want)
					}
					if err := Send(ctx, c, []int{0}, c.Size()-1, 0); err != nil {
						return err
					}
				case c.Size() - 1:
					if _, err := Recv(ctx, c, []int{0}, 1, 0); err != nil {
						return err
					}
					enter = time.Now()
					fallthrough
				default:
					if err := told(x.call(ctx, c, false), 1, x.text, enter); err != nil {
						return err
					}
				}
				return next(ctx, c)
			})
		})
	}
}

// next is a collective after one that was given up.
func next(ctx context.Context, c *Comm) error {
	sum := []int{c.Rank()}
	if err := Allreduce(ctx, c, sum, sum, Sum); err != nil {
		return fmt.Errorf("the next collective: %w", err)
	}
	if want := c.Size() * (c.Size() - 1) / 2; sum[0] != want {
		return fmt.Errorf("the next collective gave %d, want %d", sum[0], want)
	}
	return nil
}

func TestGivenUpForAMistake(t *testing.T) {
	for _, x := range mistakes {
		t.Run(x.name, func(t *testing.T) {
			inWorlds(t, func(ctx context.Context, c *Comm) error {
				enter := time.Now()
				err := x.call(ctx, c, c.Rank() == 1)
				switch {
				case c.Rank() != 1 && (err != nil || x.may == nil || !x.may(c.Rank())):
					err = told(err, 1, x.text, enter)
				case c.Rank() != 1:
				case x.want != nil && !errors.Is(err, x.want) || x.want == nil && !strings.Contains(fmt.Sprint(err), x.text) || errors.Is(err, ErrAbandoned):
					err = fmt.Errorf("error %v, want %v: %s", err, x.want, x.text)
				default:
					err = nil
				}
				if err != nil {
					return err
				}
				return next(ctx, c)
			})
		})
	}
}
