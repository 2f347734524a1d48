package engine

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/wire"
)

// A past keeps what a list of messages would, whatever is added and forgotten.
func TestPastKeepsWhatIsNotCovered(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var p past
	free := freeChunks{most: 4 * chunkMost}
	type message struct {
		seq  uint64
		body []byte
	}
	var want []message
	type body struct{ is, was []byte }
	var lent []body
	giveBack := func() {
		for _, b := range lent {
			require.Equal(t, b.was, b.is)
			p.giveBack(&free)
		}
		lent = nil
	}
	seq, recycled, short := uint64(0), 0, 0
	tagOf := func(seq uint64) int32 { return int32(seq / 8 % 3) } // so that some messages have the header of the one before
	for range 20_000 {
		switch random.IntN(40) {
		case 0:
			n := seq - uint64(random.IntN(min(int(seq), 300)+1))
			size := p.size
			before := len(free.list)
			dropped := p.forget(&free, n)
			require.Equal(t, size-dropped, p.size)
			recycled += len(free.list) - before
			for len(want) > 0 && want[0].seq <= n {
				want = want[1:]
			}
		case 1:
			after := seq - uint64(random.IntN(min(int(seq), 300)+1))
			var got []message
			for h, body := range p.after(after) {
				require.Equal(t, wire.Header{Kind: wire.Eager, Source: 3, Dest: 4, Tag: tagOf(h.Seq), Seq: h.Seq}, h, "and no Ack")
				got = append(got, message{h.Seq, body})
			}
			i := 0
			for i < len(want) && want[i].seq <= after {
				i++
			}
			require.Equal(t, len(want)-i, len(got))
			for k, m := range got {
				require.Equal(t, want[i+k].seq, m.seq)
				require.True(t, bytes.Equal(want[i+k].body, m.body))
			}
		case 2:
			all := bytes.Join(p.records(seq), nil)
			lead := 0
			if p.head != nil && p.head.lead != nil {
				lead = wire.HeaderLen
			}
			require.Len(t, all, p.size+lead)
			to := seq - min(seq, uint64(random.IntN(20)))
			some := bytes.Join(p.records(to), nil)
			require.True(t, bytes.HasPrefix(all, some))
			if len(some) > 0 {
				require.Equal(t, len(some), p.upTo(to)+lead)
			}
			w := walk{rest: all}
			for w.end < len(some) && w.next() {
				require.LessOrEqual(t, w.seq, to)
			}
			require.Equal(t, len(some), w.end)
			require.True(t, !w.next() || w.seq > to)
			var other past
			if len(all) > 0 {
				other.adopt(all)
			}
			require.Equal(t, all, bytes.Join(other.records(seq), nil))
			was, there := p.first()
			is, still := other.first()
			require.Equal(t, []any{was, there}, []any{is, still})
		case 3:
			giveBack()
			for _, b := range p.after(seq - min(seq, uint64(random.IntN(300)))) {
				lent = append(lent, body{b, bytes.Clone(b)})
				p.lent++
			}
		case 4:
			giveBack()
		default:
			seq += 1 + uint64(random.IntN(2)) // others are offers
			body := make([]byte, random.IntN(100))
			if random.IntN(100) == 0 {
				body = make([]byte, random.IntN(2*chunkMost))
			}
			for i := range body {
				body[i] = byte(random.Uint32())
			}
			h := wire.Header{Kind: wire.Eager, Source: 3, Dest: 4, Tag: tagOf(seq), Seq: seq, Ack: seq / 2}
			var header [wire.HeaderLen]byte
			h.Put(header[:])
			size := p.size
			cost := p.add(&free, seq, header[:], body)
			require.Equal(t, size+cost, p.size)
			if cost < recordLen+len(body) {
				short++
			}
			want = append(want, message{seq, body})
			last, sent := p.newest(len(body))
			require.True(t, bytes.Equal(body, sent))
			h.Ack = 0
			require.Equal(t, h, last)
		}
	}
	giveBack()
	require.Positive(t, recycled)
	require.Greater(t, short, 5000)
	p.forget(&free, seq)
	require.Zero(t, p.size)
	_, some := p.first()
	require.False(t, some)
}

// What is to be sent again is in chunks that are not used again before it was.
func TestChunksOfRepetitionsStay(t *testing.T) {
	var header [wire.HeaderLen]byte
	(&wire.Header{Kind: wire.Eager, Seq: 1}).Put(header[:])
	for _, c := range []struct {
		name string
		do   func(p *past)
		used int
	}{
		{"nobody has them", func(*past) {}, 1},
		{"an entry", func(p *past) { p.lent++ }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p past
			free := freeChunks{most: 1 << 20}
			p.add(&free, 1, header[:], make([]byte, chunkMost-recordLen))
			c.do(&p)
			p.forget(&free, 1)
			require.Len(t, free.list, c.used)
		})
	}
}
