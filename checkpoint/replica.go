package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
)

// A Replica makes an Area hold what another one holds, on another host, from
// deltas. Between Begin and Commit the Area keeps what it has: a replica that is
// interrupted has the snapshot before.
//
// A Replica is for one goroutine at a time.
type Replica struct {
	area *Area

	// Of the snapshot that is being put together; slot is nil when none is.
	slot    *slot
	number  uint64
	lengths []int64
	firsts  []int64 // the number of each part's first chunk
	touched []bool  // by chunk: some of it is put, and the rest of it is the base's

	base       *Sums
	baseParts  [][]byte
	baseFirsts []int64
	stale      [][]Sum // by part, what is in the slot; nil where it is not known
}

// NewReplica returns a Replica that keeps its snapshots in a. Nobody else may
// save there; a stays the caller's to read and to close.
func NewReplica(a *Area) *Replica { return &Replica{area: a} }

// Begin begins a delta, and forgets one that was begun before. The error is
// [ErrBase] when the latest snapshot here is not base, else as of [Area.Begin].
// base is 0 for a delta that needs none.
func (r *Replica) Begin(number uint64, lengths []int64, base uint64) error {
	r.slot = nil
	a := r.area
	if err := a.hold(); err != nil {
		return err
	}
	r.base, r.baseParts = &Sums{}, nil
	if base != 0 {
		snap, err := a.Latest()
		if err == nil && snap.Number != base {
			err = fmt.Errorf("snapshot %d from %d, the latest here is %d: %w", number, base, snap.Number, ErrBase)
		} else if errors.Is(err, ErrNone) || errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("snapshot %d from %d: %w (%w)", number, base, ErrBase, err)
		}
		if err != nil {
			return err
		}
		if r.base, err = a.Sums(base); err != nil {
			return err
		}
		r.baseParts = snap.Parts
	}
	target := &a.slots[1-a.latest]
	old := target.sums
	if old != nil && target.sumsTurn != target.turn(a.header) {
		old = nil
	}
	s, err := a.begin(number, lengths)
	if err != nil {
		return err
	}
	r.slot, r.number, r.lengths = s, number, slices.Clone(lengths)
	r.stale = staleIn(s, old, lengths)
	r.firsts, r.baseFirsts = firsts(lengths), firsts(r.base.Lengths)
	r.touched = make([]bool, chunksOf(lengths))
	return nil
}

// staleIn is the sums of those parts of old, which was in s, that are as long and where parts
// of these lengths will be.
func staleIn(s *slot, old *Sums, lengths []int64) [][]Sum {
	stale := make([][]Sum, len(lengths))
	if old == nil {
		return stale
	}
	offs, _, err := layout(nil, old.Lengths)
	if err != nil {
		return stale
	}
	chunks := old.Chunks
	for i, n := range old.Lengths {
		if i < len(lengths) && n == lengths[i] && offs[i] == s.offs[i] {
			stale[i] = chunks[:chunksIn(n)]
		}
		chunks = chunks[chunksIn(n):]
	}
	return stale
}

func firsts(lengths []int64) []int64 {
	all, next := make([]int64, 0, len(lengths)), int64(0)
	for _, n := range lengths {
		all = append(all, next)
		next += chunksIn(n)
	}
	return all
}

// Put takes a chunk. Chunks may come in any order, cut anywhere, and more than
// once.
func (r *Replica) Put(part int, off int64, data []byte) error {
	if err := r.begun(); err != nil {
		return err
	}
	if part < 0 || part >= len(r.lengths) || off < 0 || off > r.lengths[part] || int64(len(data)) > r.lengths[part]-off {
		return fmt.Errorf("put %d bytes at %d of part %d: outside snapshot %d", len(data), off, part, r.number)
	}
	for len(data) > 0 {
		i := off / ChunkLen
		to := r.chunk(part, i)
		n := min(int64(len(data)), i*ChunkLen+int64(len(to))-off)
		if touched := &r.touched[r.firsts[part]+i]; !*touched {
			if n < int64(len(to)) {
				r.fromBase(part, i)
			}
			*touched = true
		}
		copy(to[off-i*ChunkLen:], data[:n])
		off, data = off+n, data[n:]
	}
	return nil
}

// Commit makes what was begun the latest snapshot. sum is [Sums.Sum] of what the
// replica must now have; the error is [ErrDiffers] when it has not, and nothing
// is kept: send all of it, from no base.
func (r *Replica) Commit(sum Sum) error {
	if err := r.begun(); err != nil {
		return err
	}
	sums := &Sums{r.number, r.lengths, make([]Sum, 0, len(r.touched))}
	for p, length := range r.lengths {
		for i := range chunksIn(length) {
			sums.Chunks = append(sums.Chunks, r.finish(p, i))
		}
	}
	s := r.slot
	r.slot = nil
	if sums.Sum() != sum {
		return fmt.Errorf("commit snapshot %d: %w", r.number, ErrDiffers)
	}
	r.area.commit(s, r.number, false, sum)
	s.sums, s.sumsTurn = sums, s.turn(r.area.header)
	return nil
}

// finish completes chunk i of a part and returns its sum.
func (r *Replica) finish(part int, i int64) Sum {
	to, k := r.chunk(part, i), r.firsts[part]+i
	switch {
	case r.touched[k]:
	case part < len(r.baseParts) && chunkLen(r.base.Lengths[part], i) == int64(len(to)):
		sum := r.base.Chunks[r.baseFirsts[part]+i]
		if r.stale[part] == nil || r.stale[part][i] != sum {
			r.fromBase(part, i)
		}
		return sum
	default:
		r.fromBase(part, i)
	}
	return xxh3.Hash128(to).Bytes()
}

// chunk is the memory of chunk i of a part.
func (r *Replica) chunk(part int, i int64) []byte {
	off := r.slot.offs[part] + i*ChunkLen
	return r.slot.mem[off : off+chunkLen(r.lengths[part], i)]
}

// fromBase makes chunk i of a part what it is in the base, and zeros beyond its
// end.
func (r *Replica) fromBase(part int, i int64) {
	to, n := r.chunk(part, i), 0
	if part < len(r.baseParts) && i*ChunkLen < int64(len(r.baseParts[part])) {
		n = copy(to, r.baseParts[part][i*ChunkLen:])
	}
	clear(to[n:])
}

func (r *Replica) begun() error {
	switch {
	case r.area.header == nil:
		return ErrClosed
	case r.slot == nil:
		return errors.New("no delta has begun: call Begin first")
	}
	return nil
}
