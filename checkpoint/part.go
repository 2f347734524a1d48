package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A Part is one part of a snapshot, and which bytes of it may be others than in the
// snapshot that was begun before.
type Part struct {
	Bytes []byte

	// Known: the part was begun before, with the same length and at the same place among
	// the parts, and no byte is another that is not in Written. Without it a part of 1 MiB
	// or more is compared with what it was, if it was as long.
	Known   bool
	Written []Range
}

// A Range is bytes of a part, from From up to To.
type Range struct{ From, To int }

// Begin is the first half of a snapshot, of all parts but the last, and copies what is not in
// the older slot already: of parts of 1 MiB or more, the chunks that were written to since
// that slot's snapshot; of others, all. [Area.End] is the second half. What was begun and not
// ended is forgotten by the next Begin.
//
// number must be larger than that of the last snapshot, or the error is
// [ErrNumber]. It is [ErrFull] when there is no space, [ErrBusy] while another
// process that has saved here lives, [ErrClosed] after Close. A snapshot larger than any before
// in its slot also waits for the system to find the memory.
func (a *Area) Begin(number uint64, parts ...Part) error {
	a.lengths = slices.Grow(a.lengths[:0], len(parts)+1) // and that of the last
	for _, p := range parts {
		a.lengths = append(a.lengths, int64(len(p.Bytes)))
	}
	stamps, was := a.stamps, a.slots[1-a.latest].held // begin forgets them: after an error nothing is known
	s, err := a.begin(number, append(a.lengths, 0))
	if err != nil {
		return err
	}
	a.holding = nil
	if slices.ContainsFunc(a.lengths, func(n int64) bool { return n >= large }) {
		a.stamp(stamps, number, parts)
		a.holding = make([]holding, len(parts))
	}
	a.copied = 0
	stamps = a.stamps
	for i, p := range parts {
		h := holding{off: s.offs[i], length: int64(len(p.Bytes))}
		if h.length < large {
			copySlowly(s.mem[h.off:], p.Bytes)
			a.copied += h.length
			continue
		}
		if i < len(was) && was[i].off == h.off && was[i].length == h.length {
			h.since = was[i].since
		}
		n := int(chunksIn(h.length))
		a.copied += copyWritten(s.mem[h.off:h.off+h.length], p.Bytes, stamps[:n], h.since)
		h.since = number
		a.holding[i], stamps = h, stamps[n:]
	}
	a.begun, a.next = s, number
	return nil
}

// stamp makes a.stamps those of the large ones of parts: for each chunk the number of the
// snapshot before which it was last written to. old are those of the snapshot that was begun
// before, whose parts a.stamped tells.
func (a *Area) stamp(old []uint64, number uint64, parts []Part) {
	stamps := make([]uint64, 0, len(old))
	was := a.stamped
	a.stamped, a.changed = nil, make([]int64, len(parts))
	for i, p := range parts {
		length := int64(len(p.Bytes))
		var before []uint64
		if i < len(was) && was[i] >= large {
			n := min(chunksIn(was[i]), int64(len(old)))
			if was[i] == length {
				before = old[:n]
			}
			old = old[n:]
		}
		a.stamped = append(a.stamped, length)
		if length < large {
			continue
		}
		n := len(stamps)
		switch {
		case len(before) == 0:
			stamps = append(stamps, slices.Repeat([]uint64{number}, int(chunksIn(length)))...)
		case p.Known:
			stamps = append(stamps, before...)
			for _, r := range p.Written {
				for k := r.From / ChunkLen; k < (r.To+ChunkLen-1)/ChunkLen; k++ {
					stamps[n+k] = number
				}
			}
		default:
			stamps = append(stamps, before...)
			a.compare(stamps[n:], number, i, p.Bytes)
		}
		for _, x := range stamps[n:] {
			if x == number {
				a.changed[i] += ChunkLen
			}
		}
		a.changed[i] = min(a.changed[i], length)
	}
	a.stamps = stamps
}

// compare stamps the chunks of part i that are others than in the latest snapshot.
func (a *Area) compare(stamps []uint64, number uint64, i int, part []byte) {
	s := &a.slots[a.latest]
	if i >= len(s.held) || s.held[i].length != int64(len(part)) {
		for k := range stamps {
			stamps[k] = number
		}
		return
	}
	old := s.mem[s.held[i].off:][:len(part)]
	for k := range stamps {
		from, to := k*ChunkLen, min((k+1)*ChunkLen, len(part))
		if !bytes.Equal(part[from:to], old[from:to]) {
			stamps[k] = number
		}
	}
}

// copyWritten copies the chunks whose stamps are above since, and tells their bytes.
func copyWritten(to, from []byte, stamps []uint64, since uint64) (n int64) {
	for k := 0; k < len(stamps); k++ {
		first := k
		for k < len(stamps) && stamps[k] > since {
			k++
		}
		if k > first {
			at, end := first*ChunkLen, min(k*ChunkLen, len(from))
			copySlowly(to[at:end], from[at:end])
			n += int64(end - at)
		}
	}
	return n
}

// Room is memory for a last part of n bytes or fewer, of what Begin began: what is written
// there End does not copy. It has no length, and what is appended beyond n is elsewhere.
// The errors are those of End.
func (a *Area) Room(n int) ([]byte, error) {
	s, err := a.unended()
	if err != nil {
		return nil, err
	}
	last, _, err := a.extend(s, int64(n))
	return last[:0], err
}

// End ends what Begin began, with its last part. When it returns nil they are there, one
// snapshot, for whoever opens the file, and the one before is the older. When it
// returns an error, or never, what was the latest is still. The errors are those of Begin.
func (a *Area) End(last []byte) error {
	s, err := a.unended()
	a.begun = nil
	if err != nil {
		return err
	}
	n := int64(len(last))
	to, stamps, err := a.extend(s, n)
	if err != nil {
		return err
	}
	if n > 0 && &to[0] != &last[0] {
		copySlowly(to, last)
	}
	lengths := append(a.lengths, n)
	a.table = tableOf(a.table[:0], lengths)
	copy(s.mem, a.table)
	if len(a.stamps) > 0 {
		a.writeStamps(stamps[:0], lengths)
	}
	a.copied += n + int64(len(stamps))
	a.commit(s, a.next, len(a.stamps) > 0, Sum{})
	s.held = a.holding
	return nil
}

// unended is the slot of what was begun and not ended.
func (a *Area) unended() (*slot, error) {
	switch {
	case a.header == nil:
		return nil, ErrClosed
	case a.begun == nil:
		return nil, errors.New("end a snapshot: none was begun")
	}
	return a.begun, nil
}

// extend makes room for a last part of n bytes, and for the stamps of all.
func (a *Area) extend(s *slot, n int64) (last, stamps []byte, err error) {
	lengths := append(a.lengths, n)
	offs, total, err := layout(s.offs[:0], lengths)
	stampsAt := total
	if len(a.stamps) > 0 {
		total += stampsLen(lengths)
	}
	if err == nil && total > maxBytes {
		err = fmt.Errorf("%d bytes with its stamps: a snapshot has at most %d", total, int64(maxBytes))
	}
	if err == nil {
		err = s.grow(a.f, total)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("save snapshot %d: %w", a.next, err)
	}
	s.offs, s.total = offs, total
	at := offs[len(offs)-1]
	return s.mem[at : at+n : at+n], s.mem[stampsAt:total:total], nil
}

// writeStamps appends the stamps of all chunks of a snapshot whose parts have these
// lengths: those of parts that are not large, and of the last, have its own number.
func (a *Area) writeStamps(to []byte, lengths []int64) {
	stamps, last := a.stamps, len(lengths)-1
	for i, length := range lengths {
		for range chunksIn(length) {
			x := a.next
			if i < last && length >= large {
				x, stamps = stamps[0], stamps[1:]
			}
			to = binary.NativeEndian.AppendUint64(to, x)
		}
	}
}

// Changed is how many bytes of part i, of 1 MiB or more, of the last snapshot that was begun
// may be others than in the one before, in whole chunks.
func (a *Area) Changed(i int) int64 { return a.changed[i] }

// Copied is how many bytes the last snapshot that was begun has taken.
func (a *Area) Copied() int64 { return a.copied }
