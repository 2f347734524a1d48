package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/wire"
)

// A stream keeps what a list of messages would, and finds the Offers that wait, whatever is added, ends and is forgotten.
func TestStreamFindsWhatWaits(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	l := &link{e: new(Engine)}
	s := new(stream)
	type message struct {
		seq   uint64
		waits bool
	}
	want := []message{}
	for range 20_000 {
		waiting := slices.DeleteFunc(slices.Clone(want), func(m message) bool { return !m.waits })
		switch action := random.IntN(10); {
		case action < 4:
			s.sent++
			x := l.newEntry(s)
			x.header = wire.Header{Kind: wire.Eager, Seq: s.sent}
			if random.IntN(3) > 0 {
				x.header.Kind = wire.Offer
			}
			l.keep(x)
			want = append(want, message{seq: s.sent, waits: x.waits()})
		case action < 8 && len(waiting) > 0:
			m := waiting[min(random.IntN(len(waiting)), random.IntN(len(waiting)))] // rather the first ones
			x := s.offer(m.seq)
			require.NotNil(t, x)
			require.Equal(t, m.seq, x.header.Seq)
			i := slices.Index(want, m)
			if random.IntN(2) == 0 {
				l.unkeep(x)
				want = slices.Delete(want, i, i+1)
			} else {
				x.done = true
				s.closed(x)
				want[i].waits = false
			}
		case action == 8 && len(want) > 0:
			i := random.IntN(len(want))
			x := s.head
			for range i {
				x = x.snext
			}
			if !want[i].waits && x.header.Kind == wire.Eager {
				l.offer(x)
				want[i].waits = true
			}
		default:
			n := s.sent - uint64(random.IntN(min(int(s.sent), 40)+1))
			l.forget(s, n)
			want = slices.DeleteFunc(want, func(m message) bool { return m.seq <= n && !m.waits })
		}
		has := []message{}
		var before *entry
		for x := s.head; x != nil; before, x = x, x.snext {
			require.Same(t, before, x.sprev)
			has = append(has, message{seq: x.header.Seq, waits: x.waits()})
		}
		require.Same(t, before, s.tail)
		require.Same(t, s.head.firstOpen(), s.open)
		require.Equal(t, want, has)
		for seq := s.sent - min(s.sent, 50); seq <= s.sent; seq++ {
			waits := slices.Contains(want, message{seq: seq, waits: true})
			require.Equal(t, waits, s.offer(seq) != nil)
		}
	}
	require.Equal(t, len(want), l.kept)
}

func TestNumbers(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var n numbers
	want := []uint64{}
	for seq := range uint64(20_000) {
		if random.IntN(2) == 0 {
			n.add(seq)
			want = append(want, seq)
		} else if gone := seq - min(seq, uint64(random.IntN(60))); random.IntN(3) == 0 || len(want) == 0 {
			n.remove(gone)
			want = slices.DeleteFunc(want, func(seq uint64) bool { return seq == gone })
		} else {
			n.remove(want[0])
			want = want[1:]
		}
		require.Equal(t, want, append([]uint64{}, n.all()...))
		require.Equal(t, slices.Contains(want, seq), n.has(seq))
		require.LessOrEqual(t, len(n.list), max(1, 2*len(want)))
	}
}
