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
	seq, recycled := uint64(0), 0
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
				require.Equal(t, wire.Header{Kind: wire.Eager, Source: 3, Dest: 4, Seq: h.Seq}, h, "and no Ack")
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
			require.Len(t, all, p.size)
			to := seq - min(seq, uint64(random.IntN(20)))
			some := bytes.Join(p.records(to), nil)
			require.True(t, bytes.HasPrefix(all, some))
			require.Equal(t, len(some), p.upTo(to))
			require.True(t, len(some) == len(all) || seqOf(all[len(some):]) > to)
			for rest := some; len(rest) > 0; rest = rest[lengthOf(rest):] {
				require.LessOrEqual(t, seqOf(rest), to)
			}
			var other past
			if len(all) > 0 {
				other.adopt(all, seq)
			}
			was, there := p.first()
			is, still := other.first()
			require.Equal(t, []any{was, there}, []any{is, still})
		default:
			seq += 1 + uint64(random.IntN(2)) // others are offers
			body := make([]byte, random.IntN(100))
			if random.IntN(100) == 0 {
				body = make([]byte, random.IntN(2*chunkMost))
			}
			for i := range body {
				body[i] = byte(random.Uint32())
			}
			h := wire.Header{Kind: wire.Eager, Source: 3, Dest: 4, Seq: seq, Ack: seq / 2}
			var header [wire.HeaderLen]byte
			h.Put(header[:])
			p.add(&free, seq, header[:], body)
			want = append(want, message{seq, body})
			require.True(t, bytes.Equal(body, p.newest(len(body))[recordLen:]))
		}
	}
	require.Positive(t, recycled)
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
			p.append(&chunk{buf: make([]byte, 0, chunkMost)})
			p.add(&free, 1, header[:], []byte("body"))
			c.do(&p)
			p.forget(&free, 1)
			require.Len(t, free.list, c.used)
		})
	}
}
