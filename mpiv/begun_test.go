package mpiv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/engine"
)

// A nonBlocking collective on so many ranks, each with one number, its rank plus add.
type nonBlocking struct {
	name  string
	begin func(ctx context.Context, c *Comm, add int, out []int) Request
	want  func(c *Comm, add int) []int // nil: out is not used on this rank
}

func onRoot(c *Comm, root int, want []int) []int {
	if c.Rank() != root {
		return nil
	}
	return want
}

func ranksAnd(c *Comm, add int) (all []int) {
	for i := range c.Size() {
		all = append(all, i+add)
	}
	return all
}

func sumAnd(c *Comm, add int) []int {
	sum := 0
	for _, v := range ranksAnd(c, add) {
		sum += v
	}
	return []int{sum}
}

var ownSum = NewOp("own sum", func(in, inout []int) {
	for i, v := range in {
		inout[i] += v
	}
}, true)

// In those with a root the ranks send to the last, or get from the first.
var nonBlockings = []nonBlocking{
	{"Ibarrier", func(ctx context.Context, c *Comm, _ int, _ []int) Request { return Ibarrier(ctx, c) }, func(*Comm, int) []int { return nil }},
	{"Iallreduce", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Iallreduce(ctx, c, []int{c.Rank() + add}, out[:1], Sum)
	}, sumAnd},
	{"Iallreduce in place", func(ctx context.Context, c *Comm, add int, out []int) Request {
		out[0] = c.Rank() + add
		return Iallreduce(ctx, c, out[:1], out[:1], Sum)
	}, sumAnd},
	{"Iallreduce by the program", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Iallreduce(ctx, c, []int{c.Rank() + add}, out[:1], ownSum)
	}, sumAnd},
	{"Iallgather", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Iallgather(ctx, c, []int{c.Rank() + add}, out[:c.Size()])
	}, ranksAnd},
	{"Ialltoall", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Ialltoall(ctx, c, slices.Repeat([]int{c.Rank() + add}, c.Size()), out[:c.Size()])
	}, ranksAnd},
	{"Ialltoall in place", func(ctx context.Context, c *Comm, add int, out []int) Request {
		for i := range c.Size() {
			out[i] = c.Rank() + add
		}
		return Ialltoall(ctx, c, out[:c.Size()], out[:c.Size()])
	}, ranksAnd},
	{"Ibcast", func(ctx context.Context, c *Comm, add int, out []int) Request {
		out[0] = c.Rank() + add
		return Ibcast(ctx, c, out[:1], 0)
	}, func(_ *Comm, add int) []int { return []int{add} }},
	{"Igather", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Igather(ctx, c, []int{c.Rank() + add}, onRoot(c, c.Size()-1, out[:c.Size()]), c.Size()-1)
	}, func(c *Comm, add int) []int { return onRoot(c, c.Size()-1, ranksAnd(c, add)) }},
	{"Ireduce", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Ireduce(ctx, c, []int{c.Rank() + add}, onRoot(c, c.Size()-1, out[:1]), Sum, c.Size()-1)
	}, func(c *Comm, add int) []int { return onRoot(c, c.Size()-1, sumAnd(c, add)) }},
	{"Iscatter", func(ctx context.Context, c *Comm, add int, out []int) Request {
		return Iscatter(ctx, c, onRoot(c, 0, ranksAnd(c, add)), out[:1], 0)
	}, func(c *Comm, add int) []int { return []int{c.Rank() + add} }},
}

// Several of them at once are ended in every way there is, in the order in which they began, in the opposite one,
// and in a different one on each rank.
func TestNonBlockingCollectivesEndInEveryWay(t *testing.T) {
	type other struct{}
	ends := map[string]func(ctx context.Context, rs []Request) error{
		"Wait": func(ctx context.Context, rs []Request) error { return waitEach(ctx, rs) },
		"Wait with another context": func(ctx context.Context, rs []Request) error {
			return waitEach(context.WithValue(ctx, other{}, 1), rs)
		},
		"Waitall": func(ctx context.Context, rs []Request) error { return Waitall(ctx, rs, nil) },
		"Test": func(_ context.Context, rs []Request) error {
			for i := range rs {
				for done := false; !done; {
					var err error
					if _, done, err = rs[i].Test(); err != nil {
						return err
					}
				}
			}
			return nil
		},
		"Testall": func(_ context.Context, rs []Request) (err error) {
			for done := false; !done && err == nil; {
				done, err = Testall(rs, nil)
			}
			return err
		},
		"Waitany": func(ctx context.Context, rs []Request) error {
			for {
				if i, _, err := Waitany(ctx, rs); i < 0 || err != nil {
					return err
				}
			}
		},
		"Waitsome": func(ctx context.Context, rs []Request) error {
			for {
				if some, err := Waitsome(ctx, rs, nil); len(some) == 0 || err != nil {
					return err
				}
			}
		},
		"a Barrier, and then Wait": func(ctx context.Context, rs []Request) error {
			return waitEach(ctx, rs)
		},
	}
	orders := map[string]func(c *Comm, rs []Request){
		"in order":       func(*Comm, []Request) {},
		"in reverse":     func(_ *Comm, rs []Request) { slices.Reverse(rs) },
		"each its order": func(c *Comm, rs []Request) { rotate(rs, c.Rank()) },
	}
	for _, ranks := range [][]int{{1}, {1, 1}, {1, 1, 1}, {2, 2}, {1, 1, 1, 1}, {1, 1, 1, 1, 1}} {
		for name, end := range ends {
			for order, rearrange := range orders {
				runProcessesAs(t, engine.Config{Shared: true, Crowded: len(ranks) > 3}, ranks, func(ctx context.Context, c *Comm) error {
					var rs []Request
					var outs [][]int
					for i, op := range nonBlockings {
						outs = append(outs, make([]int, c.Size()))
						rs = append(rs, op.begin(ctx, c, 10*i, outs[i]))
					}
					if name == "a Barrier, and then Wait" {
						if err := Barrier(ctx, c); err != nil {
							return err
						}
					}
					rearrange(c, rs)
					if err := end(ctx, rs); err != nil {
						return fmt.Errorf("%s, %s: %w", name, order, err)
					}
					for i, op := range nonBlockings {
						if want := op.want(c, 10*i); want != nil && !slices.Equal(outs[i][:len(want)], want) {
							return fmt.Errorf("%s, ended by %s %s: %v, want %v", op.name, name, order, outs[i], want)
						}
					}
					return nil
				})
			}
		}
	}
}

func waitEach(ctx context.Context, rs []Request) error {
	for i := range rs {
		if _, err := rs[i].Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rotate moves the first n of rs behind the others.
func rotate(rs []Request, n int) {
	slices.Reverse(rs[:n])
	slices.Reverse(rs[n:])
	slices.Reverse(rs)
}

// Who has begun a collective holds nobody up, whatever it does then.
func TestWhoHasBegunACollectiveHoldsNobodyUp(t *testing.T) {
	for _, op := range nonBlockings {
		for _, ranks := range [][]int{{2}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1, 1}} {
			last := make(chan struct{})
			runProcessesAs(t, engine.Config{Shared: true}, ranks, func(ctx context.Context, c *Comm) error {
				r := op.begin(ctx, c, 1, make([]int, c.Size()))
				if c.Rank() < c.Size()-1 {
					select { // it computes
					case <-last:
					case <-ctx.Done():
						return fmt.Errorf("%s: the last of %d ranks waits for a rank that computes: %w", op.name, c.Size(), ctx.Err())
					}
				}
				_, err := r.Wait(ctx)
				if c.Rank() == c.Size()-1 {
					close(last)
				}
				return err
			})
		}
	}
}

// So many collectives are begun that their messages have no room where nobody receives them, and the last is
// waited for first.
func TestTheLastOfManyCollectivesIsWaitedForFirst(t *testing.T) {
	const many = 300
	for _, ranks := range [][]int{{1, 1}, {1, 1, 1}, {2, 2}} {
		runProcessesAs(t, engine.Config{Unexpected: 64 << 10}, ranks, func(ctx context.Context, c *Comm) error {
			in, outs, rs := slices.Repeat([]int{c.Rank()}, 400), [many][]int{}, []Request{}
			for i := range outs {
				outs[i] = make([]int, len(in))
				rs = append(rs, Iallreduce(ctx, c, in, outs[i], Max))
			}
			slices.Reverse(rs)
			if err := waitEach(ctx, rs); err != nil {
				return err
			}
			for i := range outs {
				if slices.Min(outs[i]) != c.Size()-1 {
					return fmt.Errorf("the maximum of ranks is %d, want %d", slices.Min(outs[i]), c.Size()-1)
				}
			}
			return nil
		})
	}
}

// What is wrong with a collective is told by the wait for it, and nothing was sent.
func TestAWrongCollectiveSendsNothing(t *testing.T) {
	runProcessesAs(t, engine.Config{}, []int{1, 1}, func(ctx context.Context, c *Comm) error {
		wrong := []Request{
			Iallreduce(ctx, c, []int{1}, []int{1, 2}, Sum),
			Iallgather(ctx, c, []int{1}, []int{1}),
			Ialltoall(ctx, c, []int{1}, []int{1}),
			Ibcast(ctx, c, []int{1}, 2),
			Iallreduce(ctx, c, []int{1}, []int{1}, Op[int](nil)),
		}
		for i := range wrong {
			if _, err := wrong[i].Wait(ctx); err == nil {
				return fmt.Errorf("collective %d is wrong and ends well", i)
			}
		}
		if _, there, err := Iprobe(c, AnySource, AnyTag); there || err != nil {
			return fmt.Errorf("a message is there: %v, %w", there, err)
		}
		sum := []int{0}
		r := Iallreduce(ctx, c, []int{c.Rank()}, sum, Sum)
		_, err := r.Wait(ctx)
		require.Equal(t, 1, sum[0])
		return err
	})
}

// An error of a collective names the line that began it, whoever finds it.
func TestErrorsOfNonBlockingCollectivesNameTheirBegin(t *testing.T) {
	runProcessesAs(t, engine.Config{}, []int{1, 1}, func(ctx context.Context, c *Comm) error {
		ops := []func() Request{
			func() Request { return Ibarrier(ctx, c) },
			func() Request { return Iallreduce(ctx, c, []int{1}, []int{0}, Sum) },
		}
		here := callsite.Here()
		r := ops[c.Rank()]()
		_, err := r.Wait(ctx)
		re, ok := errors.AsType[*RankError](err)
		if !ok {
			return fmt.Errorf("ranks in different collectives end with %w", err)
		}
		var below, line int
		if _, err := fmt.Sscanf(here+" "+re.Where, "begun_test.go:%d begun_test.go:%d", &below, &line); err != nil || line != below-3+c.Rank() {
			return fmt.Errorf("%w is said to be of %s, want %d lines above %s", re, re.Where, 3-c.Rank(), here)
		}
		return nil
	})
}

// Where a rank holds so much that it has not received that its peers only offer messages, non-blocking collectives
// end, too, in whichever order each rank waits for them.
func TestBegunWhereMuchIsUnexpected(t *testing.T) {
	whereMuchIsUnexpected(t, func(ctx context.Context, c *Comm) error {
		const root = 1
		rs := []Request{Igather(ctx, c, []int{c.Rank()}, make([]int, 2), root), Iscatter(ctx, c, []int{3, 4}, []int{0}, root)}
		for _, i := range []int{c.Rank(), 1 - c.Rank()} {
			if _, err := rs[i].Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// There they also go on while their rank asks again and again for something else.
func TestBegunWhileOthersAreTested(t *testing.T) {
	const tag = 5
	for name, ask := range map[string]func(c *Comm, rs []Request) (bool, error){
		"Test": func(c *Comm, rs []Request) (bool, error) {
			_, ok, err := rs[0].Test()
			return ok, err
		},
		"Testany": func(c *Comm, rs []Request) (bool, error) {
			_, _, ok, err := Testany(rs)
			return ok, err
		},
		"Testsome": func(c *Comm, rs []Request) (bool, error) {
			done, err := Testsome(rs, nil)
			return len(done) > 0, err
		},
		"Testall": func(c *Comm, rs []Request) (bool, error) { return Testall(rs, nil) },
		"Iprobe": func(c *Comm, rs []Request) (bool, error) {
			_, ok, err := Iprobe(c, 0, tag+1)
			return ok, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			whereMuchIsUnexpected(t, func(ctx context.Context, c *Comm) error {
				const root = 1
				r := Igather(ctx, c, []int{c.Rank()}, make([]int, 2), root)
				if c.Rank() == root {
					of := []Request{Irecv(c, []int{0}, 0, tag)}
					for ok := false; !ok; {
						var err error
						if ok, err = ask(c, of); err != nil {
							return err
						} else if ctx.Err() != nil {
							return ctx.Err()
						}
					}
					if _, err := Recv(ctx, c, []int{0}, 0, tag+1); err != nil {
						return err
					}
					if err := Waitall(ctx, of, nil); err != nil {
						return err
					}
				}
				if _, err := r.Wait(ctx); err != nil {
					return err
				}
				if c.Rank() != root {
					if err := Send(ctx, c, []int{1}, root, tag); err != nil {
						return err
					}
					return Send(ctx, c, []int{1}, root, tag+1)
				}
				return nil
			})
		})
	}
}

// whereMuchIsUnexpected runs f on two ranks, each of which holds much of the other's that it has not received.
func whereMuchIsUnexpected(t *testing.T, f func(ctx context.Context, c *Comm) error) {
	for _, layout := range [][]int{{2}, {1, 1}} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			runProcessesAs(t, engine.Config{Unexpected: 1 << 10}, layout, func(ctx context.Context, c *Comm) error {
				peer := 1 - c.Rank()
				const n = 448 // two of them are more than 1 KiB, with what holds them
				much := []Request{Isend(c, make([]byte, n), peer, 0), Isend(c, make([]byte, n), peer, 0)}
				for range 3 { // it is there, and the peer has heard that it is much
					if err := Barrier(ctx, c); err != nil {
						return err
					}
				}
				if err := f(ctx, c); err != nil {
					return err
				}
				for range much {
					if _, err := Recv(ctx, c, make([]byte, n), peer, 0); err != nil {
						return err
					}
				}
				return Waitall(ctx, much, nil)
			})
		})
	}
}
