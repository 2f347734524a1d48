package checkpoint

import (
	"errors"
	"fmt"
	"os"
)

// An Area is where the snapshots of one rank rest on one host: a file with two
// slots, of which Begin overwrites the older.
//
// An Area is for one goroutine at a time. Others, and other processes, open the
// file themselves: they find the latest whole snapshot while one process saves.
type Area struct {
	f      *os.File
	header []byte // mapped; nil once closed
	slots  [2]slot

	// Of who saves.
	saving  bool
	latest  int     // the slot that must not be touched
	number  uint64  // of what is there
	lengths []int64 // of its parts
	table   []byte  // of the one that is being written

	// Of what Begin began last.
	begun   *slot // nil: nothing that has not ended
	next    uint64
	stamped []int64   // the lengths of its parts
	stamps  []uint64  // by chunk of the large ones; none: nothing is known of them
	changed []int64   // bytes, by part
	holding []holding // what its slot holds when it has ended
	copied  int64
}

// A Snapshot is the state of a rank that covers everything before it.
type Snapshot struct {
	Number uint64 // from 1

	// Parts are what Begin and End were given. They are memory of the file: read only.
	// The second Begin after this one, by whichever process, overwrites them
	// ([Area.Has] tells); Close takes them away, and touching them is then a fault.
	Parts [][]byte

	stamps []byte // of all chunks, a word each; nil if they are not known
	whole  Sum    // of a replica's snapshot: what its bytes have to be; zero: not known
}

// Verify is [ErrCorrupt] if the bytes of Parts, in the file or copied, are others than were
// put there by a [Replica]. Of a snapshot that was saved by Begin and End nobody knows them.
func (s Snapshot) Verify() error {
	if s.whole == (Sum{}) {
		return nil
	}
	sums := newSums(s.Number, s.Parts)
	for _, part := range s.Parts {
		for i := range int(chunksIn(int64(len(part)))) {
			sums.Chunks = append(sums.Chunks, chunkSum(part, i))
		}
	}
	return s.differs(sums)
}

// differs is ErrCorrupt if sums, which are of its bytes, are not those that a replica had.
func (s Snapshot) differs(sums *Sums) error {
	if s.whole != (Sum{}) && sums.Sum() != s.whole {
		return fmt.Errorf("the bytes of snapshot %d: %w", s.Number, ErrCorrupt)
	}
	return nil
}

// Create makes an Area in a new file of mode 0600. The error is [os.ErrExist]
// when there is one.
func Create(path string) (*Area, error) {
	f, err := create(path, pageLen, func(header []byte) { word(header, 0).Store(areaMagic) })
	if err != nil {
		return nil, err
	}
	f.Close()
	return Open(path)
}

// Open opens the Area of another process, which may be alive. The error is
// [ErrCorrupt] for what is no Area.
func Open(path string) (*Area, error) {
	f, header, err := open(path, areaMagic)
	if err != nil {
		return nil, err
	}
	a := &Area{f: f, header: header}
	for i := range a.slots {
		a.slots[i].index = i
	}
	return a, nil
}

// copySlowly gives the garbage collector a chance to stop this goroutine: within
// one large copy it cannot, and all others wait.
func copySlowly(to, from []byte) {
	for len(from) > 0 {
		n := copy(to, from[:min(len(from), 1<<20)])
		to, from = to[n:], from[n:]
	}
}

// Latest is the newest whole snapshot. The error is [ErrNone] before the first,
// [ErrCorrupt] when there were some and none verifies, [ErrClosed] after Close.
//
// What verifies is the record of a snapshot: its number and lengths. The bytes
// are whole because the record was written after them.
func (a *Area) Latest() (Snapshot, error) {
	snap, _, err := a.newest()
	return snap, err
}

// Has tells whether snapshot number is here, whole. While another process saves,
// what was read from Parts is good when Has is still true afterwards.
func (a *Area) Has(number uint64) bool {
	_, _, _, err := a.find(number)
	return err == nil
}

// Close keeps the file. Twice is harmless.
func (a *Area) Close() error {
	if a.header == nil {
		return nil
	}
	unmap(a.header)
	a.header = nil
	for i := range a.slots {
		a.slots[i].close()
	}
	return a.f.Close()
}

// hold makes sure that this process may write, and knows what is there.
func (a *Area) hold() error {
	if a.header == nil {
		return ErrClosed
	}
	if a.saving {
		return nil
	}
	if err := holdAlone(a.f); err != nil {
		return err
	}
	snap, latest, err := a.newest()
	switch {
	case err == nil:
		a.number, a.latest = snap.Number, latest
	case errors.Is(err, ErrNone), errors.Is(err, ErrCorrupt): // nothing to lose
		a.latest = 1
	default:
		return err
	}
	a.saving = true
	return nil
}

// begin is the older slot, with room for parts of the given lengths and without
// a snapshot.
func (a *Area) begin(number uint64, lengths []int64) (*slot, error) {
	a.begun, a.stamps = nil, nil
	if err := a.hold(); err != nil {
		return nil, err
	}
	if number <= a.number {
		return nil, fmt.Errorf("save snapshot %d after %d: %w", number, a.number, ErrNumber)
	}
	s := &a.slots[1-a.latest]
	offs, total, err := layout(s.offs[:0], lengths)
	if err != nil {
		return nil, fmt.Errorf("save snapshot %d: %w", number, err)
	}
	s.held = nil
	if err := s.grow(a.f, total); err != nil {
		return nil, fmt.Errorf("save snapshot %d: %w", number, err)
	}
	s.open(a.header)
	a.table = tableOf(a.table[:0], lengths)
	copy(s.mem, a.table)
	s.offs, s.total = offs, total
	return s, nil
}

// commit makes what is in s the latest.
func (a *Area) commit(s *slot, number uint64, stamped bool, whole Sum) {
	s.seal(a.header, number, a.table, stamped, whole)
	a.number, a.latest = number, s.index
}

// newest is the latest snapshot and its slot.
func (a *Area) newest() (Snapshot, int, error) {
	if a.header == nil {
		return Snapshot{}, 0, ErrClosed
	}
	// A slot that changes while it is read does so because the process that saves
	// has a later snapshot, which is then the one to find.
	for range 1000 {
		var turns [2]uint64
		var snaps [2]Snapshot
		var errs [2]error
		best := -1
		for i := range a.slots {
			turns[i] = a.slots[i].turn(a.header)
			snaps[i], errs[i] = a.slots[i].snapshot(a.f, a.header)
			switch err := errs[i]; {
			case err == nil:
				if best < 0 || snaps[i].Number > snaps[best].Number {
					best = i
				}
			case err != ErrNone && err != ErrCorrupt && err != errChanged:
				return Snapshot{}, 0, err
			}
		}
		still := func(i int) bool { return a.slots[i].turn(a.header) == turns[i] }
		switch {
		case best >= 0 && still(best): // so the other slot was not written to in between
			return snaps[best], best, nil
		case best >= 0 || !still(0) || !still(1):
		case errs[0] == ErrNone && errs[1] == ErrNone:
			return Snapshot{}, 0, ErrNone
		default:
			return Snapshot{}, 0, fmt.Errorf("read %s: %w", a.f.Name(), ErrCorrupt)
		}
	}
	return Snapshot{}, 0, fmt.Errorf("read %s: it changes faster than it can be read: %w", a.f.Name(), ErrGone)
}

// find is the snapshot of that number, its slot, and the slot's turn: while that
// is the same, so is the snapshot.
func (a *Area) find(number uint64) (Snapshot, *slot, uint64, error) {
	if a.header == nil {
		return Snapshot{}, nil, 0, ErrClosed
	}
	for i := range a.slots {
		s := &a.slots[i]
		turn := s.turn(a.header)
		snap, err := s.snapshot(a.f, a.header)
		switch {
		case err == nil && snap.Number == number && s.turn(a.header) == turn:
			return snap, s, turn, nil
		case err != nil && err != ErrNone && err != ErrCorrupt && err != errChanged:
			return Snapshot{}, nil, 0, err
		}
	}
	return Snapshot{}, nil, 0, fmt.Errorf("snapshot %d: %w", number, ErrGone)
}
