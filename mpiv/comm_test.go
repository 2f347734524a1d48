package mpiv

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
)

func TestGroups(t *testing.T) {
	world := Group{size: 8, self: 5}
	pick := func(ranks ...int) Group {
		g, err := world.Incl(ranks...)
		require.NoError(t, err)
		return g
	}
	members := func(g Group) (in []int) {
		for i := range g.Size() {
			in = append(in, int(g.at(i)))
		}
		return in
	}
	odd := pick(7, 5, 3, 1)
	require.Equal(t, 1, odd.Rank())
	require.Equal(t, Undefined, pick(2, 4).Rank())
	low := pick(0, 1, 2, 3)
	require.Equal(t, []int{7, 5, 3, 1, 0, 2}, members(odd.Union(low)))
	require.Equal(t, []int{3, 1}, members(odd.Intersection(low)))
	require.Equal(t, []int{7, 5}, members(odd.Difference(low)))
	require.Equal(t, []int{1, 3}, members(low.Intersection(odd)))

	g, err := odd.Excl(0, 3)
	require.NoError(t, err)
	require.Equal(t, []int{5, 3}, members(g))
	g, err = world.RangeIncl(Range{6, 2, -2}, Range{7, 7, 1})
	require.NoError(t, err)
	require.Equal(t, []int{6, 4, 2, 7}, members(g))
	g, err = world.RangeIncl(Range{1, 3, math.MaxInt}, Range{4, 0, math.MinInt}, Range{5, 7, 2}, Range{3, -1, -3})
	require.NoError(t, err)
	require.Equal(t, []int{1, 4, 5, 7, 3, 0}, members(g))
	g, err = world.RangeExcl(Range{1, 6, 1})
	require.NoError(t, err)
	require.Equal(t, []int{0, 7}, members(g))

	at, err := odd.Translate([]int{3, 0, ProcNull}, low)
	require.NoError(t, err)
	require.Equal(t, []int{1, Undefined, ProcNull}, at)

	require.Equal(t, Ident, odd.Compare(pick(7, 5, 3, 1)))
	require.Equal(t, Similar, odd.Compare(pick(1, 3, 5, 7)))
	require.Equal(t, Unequal, odd.Compare(low))
	require.Equal(t, Ident, world.Compare(pick(0, 1, 2, 3, 4, 5, 6, 7)))
	empty := odd.Difference(odd)
	require.Equal(t, 0, empty.Size())
	require.Equal(t, Undefined, empty.Rank())

	_, err = world.Incl(1, 8)
	require.ErrorIs(t, err, ErrRank)
	_, err = world.Incl(1, 1)
	require.ErrorIs(t, err, ErrGroup)
	_, err = world.RangeIncl(Range{0, 4, 0})
	require.ErrorIs(t, err, ErrGroup)
	_, err = odd.Translate([]int{4}, world)
	require.ErrorIs(t, err, ErrRank)
}

func TestSplitOrdersByKeyAndKeepsMessagesApart(t *testing.T) {
	runWorld(t, 9, func(ctx context.Context, c *Comm) error {
		color := c.Rank() % 3
		if color == 2 {
			color = Undefined
		}
		part, err := Split(ctx, c, color, -c.Rank()/4) // ranks 4 to 8 come before 0 to 3
		if err != nil {
			return err
		}
		if color == Undefined {
			if part != nil {
				return fmt.Errorf("a rank without a color got %v", part.Name())
			}
			return Barrier(ctx, c)
		}
		all := make([]int64, part.Size())
		if err := Allgather(ctx, part, []int64{int64(c.Rank())}, all); err != nil {
			return err
		}
		want := [][]int64{{6, 0, 3}, {4, 7, 1}}[color]
		if err := wantEqual("members", all, want); err != nil {
			return err
		}
		// The same tag on both Comms, received in the other order.
		right, left := (part.Rank()+1)%part.Size(), (part.Rank()+part.Size()-1)%part.Size()
		worldRight := int(part.world(right))
		worldLeft := int(part.world(left))
		a, b := Isend(c, []int{1}, worldRight, 5), Isend(part, []int{2}, right, 5)
		got := make([]int, 1)
		if st, err := Recv(ctx, part, got, left, 5); err != nil || got[0] != 2 || st.Source != left {
			return fmt.Errorf("on the part: %v from %d, %w", got, st.Source, err)
		}
		if st, err := Recv(ctx, c, got, AnySource, 5); err != nil || got[0] != 1 || st.Source != worldLeft {
			return fmt.Errorf("on the world: %v from %d, %w", got, st.Source, err)
		}
		if err := Waitall(ctx, []Request{a, b}, nil); err != nil {
			return err
		}
		return Barrier(ctx, c)
	})
}

func TestDupAndFree(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		d, err := Dup(ctx, c)
		if err != nil {
			return err
		}
		if got := c.Compare(d); got != Congruent {
			return fmt.Errorf("Compare of a dup = %v", got)
		}
		if got := d.Compare(d); got != Ident {
			return fmt.Errorf("Compare with itself = %v", got)
		}
		if err := d.Free(); err != nil {
			return err
		}
		if err := Barrier(ctx, d); !isError(err, ErrComm) {
			return fmt.Errorf("Barrier on a freed Comm = %v, want ErrComm", err)
		}
		if _, err := Dup(ctx, d); !isError(err, ErrComm) {
			return fmt.Errorf("Dup of a freed Comm = %v, want ErrComm", err)
		}
		return Barrier(ctx, c)
	})
}

func TestCreate(t *testing.T) {
	runWorld(t, 6, func(ctx context.Context, c *Comm) error {
		g, err := c.Group().Incl(4, 0, 2)
		if err != nil {
			return err
		}
		part, err := Create(ctx, c, g)
		if err != nil {
			return err
		}
		if in := c.Rank()%2 == 0; in != (part != nil) {
			return fmt.Errorf("Create on rank %d = %v", c.Rank(), part)
		}
		if part == nil {
			return nil
		}
		if part.Rank() != g.Rank() {
			return fmt.Errorf("rank %d, in the group %d", part.Rank(), g.Rank())
		}
		// Only the members call, and of those two groups at once.
		other, err := part.Group().Incl(0, 2)
		if err != nil {
			return err
		}
		if part.Rank() != 1 {
			pair, err := CreateGroup(ctx, part, other, 7)
			if err != nil {
				return err
			}
			sum := []int{part.Rank()}
			if err := Allreduce(ctx, pair, sum, sum, Sum); err != nil {
				return err
			}
			if sum[0] != 2 {
				return fmt.Errorf("sum of the pair is %d", sum[0])
			}
		} else if _, err := CreateGroup(ctx, part, other, 7); !isError(err, ErrGroup) {
			return fmt.Errorf("CreateGroup by a stranger = %v, want ErrGroup", err)
		}
		_, err = Create(ctx, part, c.Group())
		if !isError(err, ErrGroup) {
			return fmt.Errorf("Create with ranks of others = %v, want ErrGroup", err)
		}
		return nil
	})
}

// Many goroutines of each rank make Comms at once, from different parents.
func TestContextsDifferWhenMadeAtOnce(t *testing.T) {
	const parents, each = 4, 10
	runWorld(t, 4, func(ctx context.Context, c *Comm) error {
		var of []*Comm
		for range parents {
			d, err := Dup(ctx, c)
			if err != nil {
				return err
			}
			of = append(of, d)
		}
		var (
			made sync.WaitGroup
			mu   sync.Mutex
			used = map[uint32]bool{}
			errs = make(chan error, parents)
		)
		for i := range of {
			parent := of[(i+c.Rank())%parents]
			made.Go(func() {
				for range each {
					d, err := Dup(ctx, parent)
					if err != nil {
						errs <- err
						return
					}
					mu.Lock()
					twice := used[d.context]
					used[d.context] = true
					mu.Unlock()
					if twice {
						errs <- fmt.Errorf("context %d was given twice", d.context)
						return
					}
					sum := []int{1}
					if err := Allreduce(ctx, d, sum, sum, Sum); err != nil || sum[0] != 4 {
						errs <- fmt.Errorf("sum %d: %w", sum[0], err)
						return
					}
				}
			})
		}
		made.Wait()
		close(errs)
		return <-errs
	})
}

// Collectives on several Comms at once, each from its own goroutine, and
// several that do not block on each.
func TestCommunicatorsAreApart(t *testing.T) {
	for _, layout := range [][]int{{4}, {2, 2}} {
		f := func(ctx context.Context, c *Comm) error {
			var all sync.WaitGroup
			errs := make(chan error, 4)
			for i := range 4 {
				d, err := Dup(ctx, c)
				if err != nil {
					return err
				}
				all.Go(func() {
					for n := range 30 {
						in, out := []int{d.Rank() + n*i}, make([]int, 1)
						later := make([]int, 4)
						r := Iallgather(ctx, d, in, later)
						b := Ibarrier(ctx, d)
						if err := Allreduce(ctx, d, in, out, Sum); err != nil || out[0] != 6+4*n*i {
							errs <- fmt.Errorf("sum %d, want %d: %w", out[0], 6+4*n*i, err)
							return
						}
						if err := Waitall(ctx, []Request{r, b}, nil); err != nil || later[3] != 3+n*i {
							errs <- fmt.Errorf("gathered %v: %w", later, err)
							return
						}
					}
				})
			}
			all.Wait()
			close(errs)
			return <-errs
		}
		if len(layout) == 1 {
			runWorld(t, 4, f)
		} else {
			runProcesses(t, layout, f)
		}
	}
}

func TestCart(t *testing.T) {
	runWorld(t, 7, func(ctx context.Context, c *Comm) error {
		g, err := CartCreate(ctx, c, []int{3, 2}, []bool{true, false})
		if err != nil {
			return err
		}
		if c.Rank() == 6 {
			if g != nil {
				return fmt.Errorf("rank 6 is in a grid of 6")
			}
			return nil
		}
		coords, err := g.Coords(c.Rank())
		if err != nil {
			return err
		}
		if err := wantEqual("coords", coords, []int{c.Rank() / 2, c.Rank() % 2}); err != nil {
			return err
		}
		from, to, err := g.Shift(0, 1)
		if err != nil || from != (c.Rank()+4)%6 || to != (c.Rank()+2)%6 {
			return fmt.Errorf("Shift(0, 1) on rank %d = %d, %d, %w", c.Rank(), from, to, err)
		}
		from, to, err = g.Shift(1, 1)
		want := [2]int{ProcNull, c.Rank() + 1}
		if c.Rank()%2 == 1 {
			want = [2]int{c.Rank() - 1, ProcNull}
		}
		if err != nil || [2]int{from, to} != want {
			return fmt.Errorf("Shift(1, 1) on rank %d = %d, %d, %w, want %v", c.Rank(), from, to, err, want)
		}
		if from, to, err := g.Shift(0, math.MaxInt); err != nil || from != (c.Rank()+4)%6 || to != (c.Rank()+2)%6 { // 1 more than a multiple of 3
			return fmt.Errorf("Shift(0, %d) on rank %d = %d, %d, %w", math.MaxInt, c.Rank(), from, to, err)
		}
		if r, err := g.RankOf(-1, 1); err != nil || r != 5 {
			return fmt.Errorf("RankOf(-1, 1) = %d, %w", r, err)
		}
		if _, err := g.RankOf(0, 2); !isError(err, ErrRank) {
			return fmt.Errorf("RankOf(0, 2) = %v, want ErrRank", err)
		}
		got := []int{-1}
		if _, err := Sendrecv(ctx, g.Comm, []int{c.Rank()}, to, 1, got, from, 1); err != nil {
			return err
		}
		if from != ProcNull && got[0] != from {
			return fmt.Errorf("got %d from %d", got[0], from)
		}
		return nil
	})
}

func TestDimsCreate(t *testing.T) {
	for _, x := range []struct {
		n          int
		dims, want []int
	}{
		{6, []int{0, 0}, []int{3, 2}},
		{16, []int{0, 0}, []int{4, 4}},
		{7, []int{0, 0, 0}, []int{7, 1, 1}},
		{24, []int{0, 2, 0}, []int{4, 2, 3}},
		{60, []int{0, 0, 0}, []int{5, 4, 3}},
		{8, []int{8}, []int{8}},
	} {
		dims := append([]int(nil), x.dims...)
		require.NoError(t, DimsCreate(x.n, dims))
		require.Equal(t, x.want, dims)
	}
	require.ErrorIs(t, DimsCreate(7, []int{2, 0}), ErrDims)
	require.ErrorIs(t, DimsCreate(7, []int{2, 3}), ErrDims)
	err := DimsCreate(0, []int{0})
	require.ErrorIs(t, err, ErrDims)
	require.Regexp(t, `^DimsCreate on a grid \(comm_test\.go:\d+\): invalid grid: 0 ranks cannot`, err.Error(), "any rank may have called it")
}

func TestGroupFindsRanksInAnyOrder(t *testing.T) {
	ranks := []topology.Rank{9, 2, 700, 3}
	g := groupOf(ranks, 3)
	for i, w := range ranks {
		require.Equal(t, i, g.index(w))
	}
	require.Equal(t, Undefined, g.index(4))
}

func TestWhatIsUnderWayOutlivesFree(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, world *Comm) error {
		for i := range 50 {
			c, err := Dup(ctx, world)
			if err != nil {
				return err
			}
			in, sum, got := []int{i}, make([]int, 1), make([]int, 1)
			rs := []Request{Iallreduce(ctx, c, in, sum, Sum), Ibarrier(ctx, c), Irecv(c, got, 1-c.Rank(), 3), Isend(c, in, 1-c.Rank(), 3)}
			if err := c.Free(); err != nil {
				return err
			}
			r := Ibarrier(ctx, c)
			if _, err := r.Wait(ctx); !isError(err, ErrComm) {
				return fmt.Errorf("Ibarrier on a freed Comm = %v, want ErrComm", err)
			}
			if err := Waitall(ctx, rs, nil); err != nil {
				return err
			}
			if sum[0] != 2*i || got[0] != i {
				return fmt.Errorf("the sum is %d and the message %d, want %d and %d", sum[0], got[0], 2*i, i)
			}
		}
		return nil
	})
}

func TestANameOfAnyLengthOrLinesBreaksNoLine(t *testing.T) {
	runWorld(t, 1, func(ctx context.Context, world *Comm) error {
		const name, quoted = "two\nlines\x1b[2J", `"two\nlines\x1b[2J"`
		world.SetName(name)
		require.Equal(t, name, world.Name())
		err := Send(ctx, world, []int{1}, 1, 0)
		require.ErrorIs(t, err, ErrRank)
		require.ErrorContains(t, err, "Send on "+quoted+", rank 0")
		require.ErrorContains(t, err, "the ranks of "+quoted+" are 0 to 0")
		require.NotContains(t, err.Error(), "\n")
		world.SetName(strings.Repeat("n", 20<<20) + " and its end")
		require.Less(t, len(world.Name()), 1100, "it is part of every report")
		require.Contains(t, world.Name(), " and its end")
		world.SetName("the größte of 2 worlds")
		require.ErrorContains(t, Send(ctx, world, []int{1}, 1, 0), "Send on the größte of 2 worlds, rank 0")
		return nil
	})
}

// Any goroutine may name a Comm, use it and make others of it; the race detector looks.
func TestGoroutinesShareAComm(t *testing.T) {
	runWorld(t, 1, func(ctx context.Context, world *Comm) error {
		var all sync.WaitGroup
		all.Go(func() {
			for i := range 100 {
				world.SetName(fmt.Sprint("name ", i))
			}
		})
		all.Go(func() {
			for range 100 {
				if err := Send(ctx, world, []int{1}, 1, 0); !isError(err, ErrRank) {
					t.Errorf("Send to rank 1 of 1 = %v, want ErrRank", err)
				}
			}
		})
		all.Go(func() {
			for range 100 {
				c, err := Dup(ctx, world)
				if err != nil {
					t.Error(err)
					return
				}
				c.Free()
			}
		})
		err := world.State().Restore(ctx)
		all.Wait()
		return err
	})
}

// A communicator that is freed leaves nothing behind.
func TestWhatIsFreedIsForgotten(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		for range 10 {
			d, err := Dup(ctx, c)
			if err != nil {
				return err
			}
			if name := c.box.ContextName(d.context); name != d.Name() {
				return fmt.Errorf("its context is called %q", name)
			}
			if err := d.Free(); err != nil {
				return err
			}
			if name := c.box.ContextName(d.context); name != "" {
				return fmt.Errorf("when it is freed its context is called %q", name)
			}
		}
		if p := &c.state.prologue; len(p.comms)+len(p.notes)+len(p.calls) > 1 { // the world
			return fmt.Errorf("%d communicators and %d notes are kept for a rank that goes nowhere", len(p.comms), len(p.notes))
		}
		return nil
	})
}

// Who has sent messages without Restore goes nowhere, whatever the level. Communicators alone are no such messages.
func TestNothingIsNotedOfWhoCannotRestore(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		p := &c.state.prologue
		p.stays = false
		dup := func() error {
			d, err := Split(ctx, c, 0, c.Rank())
			if err != nil {
				return err
			}
			return d.Free()
		}
		for range 3 {
			if err := dup(); err != nil {
				return err
			}
		}
		if len(p.comms) != 4 || len(p.notes) == 0 {
			return fmt.Errorf("%d communicators and %d notes are kept for a rank that may call Restore", len(p.comms), len(p.notes))
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		if err := dup(); err != nil {
			return err
		}
		if !p.stays || len(p.comms)+len(p.notes)+len(p.calls) > 0 {
			return fmt.Errorf("%d communicators and %d notes are kept for a rank that goes nowhere", len(p.comms), len(p.notes))
		}
		return nil
	})
}

// Nor has who makes communicators without end.
func TestNotesHaveABound(t *testing.T) {
	runWorld(t, 2, func(ctx context.Context, c *Comm) error {
		p := &c.state.prologue
		p.stays = false
		for range notesMost {
			if len(p.notes) > notesMost+1 {
				return fmt.Errorf("%d notes", len(p.notes))
			}
			d, err := Split(ctx, c, 0, c.Rank())
			if err != nil {
				return err
			}
			if err := d.Free(); err != nil {
				return err
			}
		}
		if !p.stays || len(p.comms)+len(p.notes)+len(p.calls) > 0 {
			return fmt.Errorf("%d communicators and %d notes are kept for a rank that goes nowhere", len(p.comms), len(p.notes))
		}
		if err := c.State().Restore(ctx); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "more than 512 communicators were made before Restore") {
			return fmt.Errorf("Restore = %v", err)
		}
		return nil
	})
}

// To the zero Group, which does not know whose it is, others are added.
func TestUnionWithTheZeroGroup(t *testing.T) {
	require.NoError(t, Run(t.Context(), 3, Options{}, func(ctx context.Context, world *Comm) error {
		var g Group
		u := g.Union(world.Group())
		c, err := Create(ctx, world, u)
		if err != nil {
			return err
		}
		if u.Rank() != world.Rank() || c.Group().Rank() != c.Rank() {
			return fmt.Errorf("ranks %d and %d, want %d", u.Rank(), c.Group().Rank(), world.Rank())
		}
		return nil
	}))
}
