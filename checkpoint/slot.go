package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

const (
	areaMagic = 0x32_70_61_6e_73_76_69_70 // "pivsnap2" on a little-endian host

	// The slots lie far apart, so that each can grow where it is. What is between
	// them is a hole and takes no space.
	slotSpan  = 1 << 40
	slotStart = 1 << 21 // of the first: where large pages may begin

	maxBytes = slotSpan - slotStart // of a snapshot, with its table
	maxParts = 1 << 16
	align    = 64      // of parts: a cache line
	large    = 1 << 20 // a part from that length on is looked at in chunks, and comes first

	// Of the records in the header, each in cache lines of its own.
	recordStart = 1 << 10
	recordSpan  = 1 << 9
)

// A slot holds one snapshot: a table of the lengths of its parts, the parts, and
// maybe the stamps of its chunks. Its record is in the header, eight words:
//
//	turn    odd while the slot is being written, 0 before the first time
//	number  of the snapshot
//	parts   how many
//	total   bytes of the slot that are in use
//	stamped 1 if there are stamps
//	sum     of these five and the table
//	whole   two words: Sums.Sum of a replica's snapshot, zero of others
//
// Who writes makes turn odd, writes table, parts and stamps, then the record, and makes
// turn even. A process that is killed leaves all its stores up to some point and
// none after it, so an even turn means a whole slot; the sum is against damage.
type slot struct {
	index int
	mem   []byte    // mapped
	old   [][]byte  // mapped earlier, where Parts may still point
	grown int64     // bytes that this process has reserved
	total int64     // in use, while being written
	offs  []int64   // where the parts begin, while being written
	held  []holding // by part, what is in it of what Begin was given; nil: not known

	sums     *Sums // of what was there at sumsTurn; nil when never asked for
	sumsTurn uint64
}

// errChanged: somebody else writes to the slot.
var errChanged = errors.New("the slot has changed")

// A holding is where a part is in a slot. Of its chunks those are as the rank has them
// whose stamp is not above since.
type holding struct {
	off, length int64
	since       uint64
}

func aligned(n int64) int64 { return (n + align - 1) &^ (align - 1) }

func (s *slot) offset() int64 { return slotStart + int64(s.index)*slotSpan }

// record is the word of that number.
func (s *slot) record(header []byte, i int) *atomic.Uint64 {
	return word(header, recordStart+s.index*recordSpan+8*i)
}

func (s *slot) turn(header []byte) uint64 { return s.record(header, 0).Load() }

// layout appends to offs where the parts of a snapshot begin that have these lengths,
// and tells the bytes that the snapshot takes in all, without stamps. First come the
// large ones: they stay where they are when others become longer. The last comes last.
func layout(offs, lengths []int64) (_ []int64, total int64, err error) {
	if len(lengths) > maxParts {
		return nil, 0, fmt.Errorf("%d parts: at most %d", len(lengths), maxParts)
	}
	total = (8*int64(len(lengths)) + pageLen - 1) &^ (pageLen - 1)
	offs = append(offs, lengths...)
	last := len(lengths) - 1
	for pass := range 3 {
		for i, n := range lengths {
			if n < 0 || n > maxBytes-total {
				return nil, 0, fmt.Errorf("part %d of %d bytes: a snapshot has at most %d", i, n, int64(maxBytes))
			}
			if i == last && pass == 2 || i < last && (n >= large && pass == 0 || n < large && pass == 1) {
				offs[len(offs)-len(lengths)+i] = total
				total += aligned(n)
			}
		}
	}
	if total > maxBytes {
		return nil, 0, fmt.Errorf("%d bytes: a snapshot has at most %d", total, int64(maxBytes))
	}
	return offs, total, nil
}

// tableOf appends to table that of a snapshot whose parts have these lengths.
func tableOf(table []byte, lengths []int64) []byte {
	for _, n := range lengths {
		table = binary.NativeEndian.AppendUint64(table, uint64(n))
	}
	return table
}

// room is how much is reserved and mapped for total bytes: up to an eighth more,
// so that a snapshot that grows slowly seldom waits for it.
func room(total int64) int64 {
	step := int64(1) << max(bits.Len64(uint64(total))-4, 12)
	return (total + step - 1) &^ (step - 1)
}

// grow makes total bytes safe to write.
func (s *slot) grow(f *os.File, total int64) error {
	n := room(max(total, 1))
	if n <= s.grown {
		return nil
	}
	if err := reserve(f, s.offset()+s.grown, n-s.grown); err != nil {
		return err
	}
	if err := s.see(f, n); err != nil {
		return err
	}
	populate(s.mem[:n])
	s.grown = n
	return nil
}

// see maps n bytes at least.
func (s *slot) see(f *os.File, n int64) error {
	if n <= int64(len(s.mem)) {
		return nil
	}
	mem, err := mapped(f, s.offset(), room(n))
	if err != nil {
		return err
	}
	if s.mem != nil {
		s.old = append(s.old, s.mem)
	}
	s.mem = mem
	return nil
}

// open begins to write. What was in the slot is no longer a snapshot.
func (s *slot) open(header []byte) {
	turn := s.turn(header) | 1
	if turn+1 == 0 { // only damage can lead here
		turn = 1
	}
	// Swap, as no store of what follows may become visible before it.
	s.record(header, 0).Swap(turn)
}

// seal ends what open began: a snapshot with that table.
func (s *slot) seal(header []byte, number uint64, table []byte, stamped bool, whole Sum) {
	turn := s.turn(header) + 1
	words := [5]uint64{turn, number, uint64(len(table) / 8), uint64(s.total), 0}
	if stamped {
		words[4] = 1
	}
	for i := 1; i < len(words); i++ {
		s.record(header, i).Store(words[i])
	}
	s.record(header, len(words)).Store(sumOf(table, words))
	for i := range 2 {
		s.record(header, len(words)+1+i).Store(binary.NativeEndian.Uint64(whole[8*i:]))
	}
	s.record(header, 0).Store(turn)
}

// sumOf is of a record and a table. Eight bytes: a damaged record passes once in
// 2⁶⁴.
func sumOf(table []byte, words [5]uint64) uint64 {
	var b [8 * len(words)]byte
	for i, w := range words {
		binary.NativeEndian.PutUint64(b[8*i:], w)
	}
	return xxh3.HashSeed(table, xxh3.Hash(b[:]))
}

// snapshot is what is in the slot. The error is ErrNone when nothing ever was,
// errChanged when it is being written, ErrCorrupt when it does not verify. Who asks compares the turns before
// and after.
func (s *slot) snapshot(f *os.File, header []byte) (Snapshot, error) {
	turn := s.turn(header)
	if turn <= 1 {
		return Snapshot{}, ErrNone
	}
	if turn%2 == 1 {
		return Snapshot{}, errChanged
	}
	return s.verify(f, header, turn)
}

func (s *slot) verify(f *os.File, header []byte, turn uint64) (Snapshot, error) {
	words := [5]uint64{turn}
	for i := 1; i < len(words); i++ {
		words[i] = s.record(header, i).Load()
	}
	number, parts, total, stamped := words[1], words[2], words[3], words[4]
	if number == 0 || parts > maxParts || total > maxBytes || total < 8*parts || stamped > 1 {
		return Snapshot{}, ErrCorrupt
	}
	if err := long(f, s.offset()+int64(total)); err != nil {
		return Snapshot{}, err
	}
	if err := s.see(f, max(int64(total), 1)); err != nil {
		return Snapshot{}, err
	}
	table := append([]byte(nil), s.mem[:8*parts]...) // it may change
	if sumOf(table, words) != s.record(header, len(words)).Load() {
		return Snapshot{}, ErrCorrupt
	}
	lengths := make([]int64, parts)
	for i := range lengths {
		lengths[i] = int64(binary.NativeEndian.Uint64(table[8*i:]))
	}
	offs, end, err := layout(nil, lengths)
	if err != nil || end+int64(stamped)*stampsLen(lengths) != int64(total) {
		return Snapshot{}, ErrCorrupt
	}
	snap := Snapshot{Number: number, Parts: make([][]byte, parts)}
	for i, n := range lengths {
		snap.Parts[i] = s.mem[offs[i] : offs[i]+n : offs[i]+n]
	}
	for i := range 2 {
		binary.NativeEndian.PutUint64(snap.whole[8*i:], s.record(header, len(words)+1+i).Load())
	}
	if stamped == 1 {
		snap.stamps = s.mem[end:total:total]
	}
	return snap, nil
}

func (s *slot) close() {
	for _, mem := range s.old {
		unmap(mem)
	}
	if s.mem != nil {
		unmap(s.mem)
	}
	s.old, s.mem = nil, nil
}
