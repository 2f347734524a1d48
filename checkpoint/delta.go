package checkpoint

import (
	"fmt"
	"iter"
)

// A Delta is what must be said to make a replica that has snapshot Base have
// snapshot Number.
type Delta struct {
	Number  uint64
	Base    uint64  // 0: the replica needs none
	Lengths []int64 // of the parts
	Bytes   int64   // of all chunks
	Sums    *Sums   // of Number: the base of the next delta

	area *Area
	slot *slot
	turn uint64
	snap Snapshot
	max  int64
	runs []run
}

// A Chunk is bytes from Off on of a part.
type Chunk struct {
	Part int
	Off  int64
	Data []byte // memory of the file: valid until the next chunk
}

// A run is neighbouring chunks of a part.
type run struct {
	part   int
	off, n int64
}

// Delta compares the latest snapshot with the one that base is of, which need
// not be here, but must be of this Area; nil stands for none. It reads what was written
// since, as far as that is known (see [Part]), or all. No chunk will be longer than max bytes;
// zero means 1 MiB.
//
// Bytes are compared with those at the same place of the same part. Who inserts
// some in front makes all that follows travel: give it a part of its own.
func (a *Area) Delta(base *Sums, max int) (*Delta, error) {
	if max < 0 {
		return nil, fmt.Errorf("delta in chunks of at most %d bytes", max)
	}
	if max == 0 {
		max = 1 << 20
	}
	latest, err := a.Latest()
	if err != nil {
		return nil, err
	}
	if base == nil {
		base = &Sums{}
	}
	sums, err := a.sumsSince(base, latest.Number)
	if err != nil {
		return nil, err
	}
	snap, s, turn, err := a.find(latest.Number)
	if err != nil {
		return nil, err
	}
	d := &Delta{Number: snap.Number, Base: base.Number, Lengths: sums.Lengths, Sums: sums,
		area: a, slot: s, turn: turn, snap: snap, max: int64(max)}
	d.compare(base)
	return d, nil
}

// compare finds the runs of chunks that base has not.
func (d *Delta) compare(base *Sums) {
	new, old := d.Sums.Chunks, base.Chunks
	for p, length := range d.Lengths {
		var was int64
		if p < len(base.Lengths) {
			was = base.Lengths[p]
		}
		for i := range chunksIn(length) {
			n := chunkLen(length, i)
			if n == chunkLen(was, i) && new[i] == old[i] {
				continue
			}
			d.Bytes += n
			if k := len(d.runs) - 1; k >= 0 && d.runs[k].part == p && d.runs[k].off+d.runs[k].n == i*ChunkLen {
				d.runs[k].n += n
			} else {
				d.runs = append(d.runs, run{p, i * ChunkLen, n})
			}
		}
		new, old = new[chunksIn(length):], old[chunksIn(was):]
	}
}

// Chunks are what changed, for [Replica.Put]. An error is the last: ErrGone when
// the snapshot was overwritten while it was read, ErrClosed.
//
// A chunk may be overwritten while the loop has it, and then the error follows;
// a replica would refuse the whole.
func (d *Delta) Chunks() iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		for _, r := range d.runs {
			for r.n > 0 {
				if err := d.gone(); err != nil {
					yield(Chunk{}, err)
					return
				}
				n := min(r.n, d.max)
				if !yield(Chunk{r.part, r.off, d.snap.Parts[r.part][r.off : r.off+n]}, nil) {
					return
				}
				r.off, r.n = r.off+n, r.n-n
			}
		}
		if err := d.gone(); err != nil {
			yield(Chunk{}, err)
		}
	}
}

func (d *Delta) gone() error {
	switch {
	case d.area.header == nil:
		return ErrClosed
	case d.slot.turn(d.area.header) != d.turn:
		return fmt.Errorf("delta from %d to %d: %w", d.Base, d.Number, ErrGone)
	}
	return nil
}
