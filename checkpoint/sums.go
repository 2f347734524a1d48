package checkpoint

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// ChunkLen is how finely snapshots are compared: parts are cut into chunks of so
// many bytes, each with a last one that may be shorter. It is a page of most systems'
// memory, which is how finely they tell what was written to.
const ChunkLen = 4 << 10

// A Sum is an XXH3 of 128 bits, in its canonical order of bytes. Two chunks that
// differ by accident have the same one with probability 2⁻¹²⁸. Who wants to can
// make such chunks: it is no protection from enemies.
type Sum [16]byte

// Sums is what a snapshot's chunks hash to: 16 bytes for 4 KiB.
type Sums struct {
	Number  uint64
	Lengths []int64 // of its parts
	Chunks  []Sum   // of the first part, then the second, …
}

// Sum is of the whole: equal when two snapshots have the same number, lengths
// and bytes.
func (s *Sums) Sum() Sum {
	b := make([]byte, 0, 16+8*len(s.Lengths)+16*len(s.Chunks))
	b = binary.LittleEndian.AppendUint64(b, s.Number)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.Lengths)))
	for _, n := range s.Lengths {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	for i := range s.Chunks {
		b = append(b, s.Chunks[i][:]...)
	}
	return xxh3.Hash128(b).Bytes()
}

// chunkSum is that of the i-th chunk of a part.
func chunkSum(part []byte, i int) Sum {
	return xxh3.Hash128(part[i*ChunkLen : min((i+1)*ChunkLen, len(part))]).Bytes()
}

// chunksOf is how many chunks parts of these lengths have.
func chunksOf(lengths []int64) (n int64) {
	for _, l := range lengths {
		n += chunksIn(l)
	}
	return n
}

func chunksIn(length int64) int64 { return (length + ChunkLen - 1) / ChunkLen }

// stampsLen is the bytes of the stamps of parts of these lengths.
func stampsLen(lengths []int64) int64 { return 8 * chunksOf(lengths) }

// chunkLen is of chunk i of a part of that length; 0 when it has none.
func chunkLen(length, i int64) int64 { return max(0, min(ChunkLen, length-i*ChunkLen)) }

// Sums is of the snapshot with that number, which is read once for it. The error
// is [ErrGone] when it is not there, or is overwritten meanwhile.
func (a *Area) Sums(number uint64) (*Sums, error) { return a.sumsSince(&Sums{}, number) }

// sumsSince takes the sums of those chunks from base that were not written to since.
func (a *Area) sumsSince(base *Sums, number uint64) (*Sums, error) {
	snap, s, turn, err := a.find(number)
	if err != nil {
		return nil, err
	}
	if s.sums != nil && s.sumsTurn == turn && s.sums.Number == number {
		return s.sums, nil
	}
	sums := newSums(number, snap.Parts)
	stamps, old := snap.stamps, base.Chunks
	for p, part := range snap.Parts {
		n := int(chunksIn(int64(len(part))))
		var known []Sum // of the base, for the chunks of the part
		if p < len(base.Lengths) {
			was := base.Lengths[p]
			if was == int64(len(part)) && stamps != nil {
				known = old[:n]
			}
			old = old[chunksIn(was):]
		}
		for i := range n {
			if known != nil && binary.NativeEndian.Uint64(stamps[8*i:]) <= base.Number {
				sums.Chunks = append(sums.Chunks, known[i])
				continue
			}
			sums.Chunks = append(sums.Chunks, chunkSum(part, i))
		}
		if stamps != nil {
			stamps = stamps[8*n:]
		}
	}
	if s.turn(a.header) != turn {
		return nil, fmt.Errorf("sums of snapshot %d: %w", number, ErrGone)
	}
	if err := snap.differs(sums); err != nil { // it would be passed on as if it were whole
		return nil, err
	}
	s.sums, s.sumsTurn = sums, turn
	return sums, nil
}

// newSums is room for those of a snapshot.
func newSums(number uint64, parts [][]byte) *Sums {
	sums := &Sums{Number: number, Lengths: make([]int64, 0, len(parts))}
	for _, p := range parts {
		sums.Lengths = append(sums.Lengths, int64(len(p)))
	}
	sums.Chunks = make([]Sum, 0, chunksOf(sums.Lengths))
	return sums
}
