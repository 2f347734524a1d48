package mpiv

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/trace"
)

// recorded runs f as every rank of two processes while calls are recorded from the middle
// on, and returns the records by rank.
func recorded(t *testing.T, f func(ctx context.Context, c *Comm) error) map[int32][]trace.Record {
	t.Helper()
	r := trace.NewRecorder()
	var all sync.WaitGroup
	runProcessesAs(t, engine.Config{}, []int{2, 2}, func(ctx context.Context, c *Comm) error {
		if err := Barrier(ctx, c); err != nil { // before: numbers do not begin at 1
			return err
		}
		c.state.recorder.Store(r.Rank(int32(c.Rank())))
		all.Add(1)
		defer all.Done()
		return f(ctx, c)
	})
	all.Wait()
	chunk, err := trace.Parse(r.Take())
	require.NoError(t, err)
	require.Zero(t, chunk.Dropped)
	byRank := map[int32][]trace.Record{}
	for _, rec := range chunk.Records {
		byRank[rec.Rank] = append(byRank[rec.Rank], rec)
	}
	return byRank
}

func ops(all []trace.Record) (names []string) {
	for _, r := range all {
		names = append(names, r.Op)
	}
	return names
}

// Tags tell the messages from each other, so they show that both ends give them the same
// number: whoever they are received from, in whatever order.
func TestBothEndsOfAMessageHaveItsNumber(t *testing.T) {
	const per = 20
	byRank := recorded(t, func(ctx context.Context, c *Comm) error {
		long := make([]int64, 20000)
		for round := range per {
			if c.Rank() > 0 {
				base := c.Rank()*1000 + round*10
				r := Isend(c, long, 0, base+1)
				if err := Send(ctx, c, []int64{1}, 0, base+2); err != nil {
					return err
				}
				if _, err := r.Wait(ctx); err != nil {
					return err
				}
				continue
			}
			var rs []Request
			for from := 1; from < c.Size(); from++ { // in the other order, and waited for in a third
				rs = append(rs, Irecv(c, make([]int64, 1), from, from*1000+round*10+2))
			}
			slices.Reverse(rs)
			if err := Waitall(ctx, rs, nil); err != nil {
				return err
			}
			for range c.Size() - 1 {
				if _, err := Recv(ctx, c, long, AnySource, AnyTag); err != nil {
					return err
				}
			}
		}
		return nil
	})
	type message struct {
		from, to int32
		seq      uint64
	}
	sent, got := map[message]int32{}, map[message]int32{}
	for rank, all := range byRank {
		for _, r := range all {
			switch r.Dir {
			case trace.Out:
				sent[message{rank, r.Peer, r.Seq}] = r.Tag
			case trace.In:
				got[message{r.Peer, rank, r.Seq}] = r.Tag
			}
		}
	}
	require.Len(t, sent, 3*2*per)
	require.Equal(t, sent, got)
}

func TestCallsAreRecordedByTheirNames(t *testing.T) {
	byRank := recorded(t, func(ctx context.Context, c *Comm) error {
		peer := c.Rank() ^ 1
		sum := []int{0}
		r := Iallreduce(ctx, c, []int{1}, sum, Sum)
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
		if c.Rank() > 1 {
			return nil
		}
		if _, err := Sendrecv(ctx, c, []int{1}, peer, 1, sum, peer, 1); err != nil {
			return err
		}
		return exchangeObjects(ctx, c, peer)
	})
	for rank := range int32(4) {
		require.Contains(t, ops(byRank[rank]), "Allreduce")
	}
	names := strings.Join(ops(byRank[0]), " ")
	for _, want := range []string{"Irecv", "Isend", "Sendrecv", "SendObj", "RecvObj"} {
		require.Contains(t, names, want)
	}
	for _, r := range byRank[0] {
		require.GreaterOrEqual(t, r.Took, int64(0), r.Op)
	}
}

// exchangeObjects sends an object to a rank and receives one.
func exchangeObjects(ctx context.Context, c *Comm, peer int) error {
	if err := SendObj(ctx, c, "hello", peer, 3); err != nil {
		return err
	}
	v, _, err := RecvObj[string](ctx, c, peer, 3)
	if err == nil && v != "hello" {
		return fmt.Errorf("RecvObj = %q", v)
	}
	return err
}

// What short calls cost, and what it adds that they could be, or are, recorded. One
// rank to itself: nothing but the calls counts.
func BenchmarkTrace(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprintf("recorded=%v", on), func(b *testing.B) {
			runWorld(b, 1, func(ctx context.Context, c *Comm) error {
				r := trace.NewRecorder()
				if on {
					c.state.recorder.Store(r.Rank(0))
				}
				data, n := []int64{1}, 0
				b.ReportAllocs()
				for b.Loop() {
					if err := Send(ctx, c, data, 0, 1); err != nil {
						return err
					}
					if _, err := Recv(ctx, c, data, 0, 1); err != nil {
						return err
					}
					if n++; on && n%1000 == 0 {
						r.Take()
					}
				}
				return nil
			})
		})
	}
}
