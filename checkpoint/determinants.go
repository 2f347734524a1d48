package checkpoint

import (
	"fmt"
	"iter"
	"math/bits"
	"os"
	"unsafe"

	"github.com/mpiv/mpiv/internal/release"
)

// A Determinant is the outcome of one choice that a rank could not determine by
// itself: which message a receive from any source matched, how many tests failed
// before one succeeded. What the fields mean is up to who writes them.
type Determinant struct {
	Kind   uint8
	Source int32
	Count  uint32
	Seq    uint64
	Value  uint64
}

// Determinants is the ordered record of a rank's choices, in a file that other
// processes read while the rank's process appends. They are numbered from 0, for
// good: Truncate does not change the number of any.
//
// A Determinants is for one goroutine at a time; others open the file themselves.
type Determinants struct {
	f      *os.File
	header []byte // mapped; nil once closed
	mem    []byte // the ring of records, mapped

	ring  unsafe.Pointer // mem, as Append wants it
	mask  uint64         // the ring's length less one
	first uint64         // what is before has been truncated
	known uint64         // as many were there when last looked
	err   error

	// Of who appends; equal for all others, so that Append asks no more.
	appending  bool
	end, limit uint64 // the next number, and the first for which there is no room
}

// A record is a Determinant in the file. It never straddles cache lines.
type record struct {
	seq, value uint64
	origin     uint64 // source<<32 | count
	check      uint64 // check<<9 | 1<<8 | kind; last to be written
}

const recordLen = uint64(unsafe.Sizeof(record{}))

// ReplaceDeterminants makes a list of records in place of the file that may be there: path is
// always one or the other, whole.
func ReplaceDeterminants(path string, records []Determinant) (*Determinants, error) {
	b, err := NewBlank(path + ".new")
	if err != nil {
		return nil, err
	}
	return b.Replace(path, records)
}

// A Blank is a list that was made before it is known of what. To make the file takes half a
// millisecond, for which who needs it need not wait then.
type Blank struct {
	d    *Determinants
	path string
}

// NewBlank makes one in the file at path. One that is left there came to nothing, and is removed.
func NewBlank(path string) (*Blank, error) {
	os.Remove(path)
	d, err := CreateDeterminants(path)
	if err != nil {
		return nil, err
	}
	b := &Blank{d, path}
	if err := d.takeOver(); err != nil {
		b.Discard()
		return nil, err
	}
	return b, nil
}

// Replace makes it a list of records, in place of the file that may be at path, in the same directory or
// at least file system. It can be used once.
func (b *Blank) Replace(path string, records []Determinant) (*Determinants, error) {
	for _, r := range records {
		if err := b.d.Append(r); err != nil {
			b.Discard()
			return nil, err
		}
	}
	if err := os.Rename(b.path, path); err != nil {
		b.Discard()
		return nil, err
	}
	return b.d, nil
}

// Discard removes one that was not used.
func (b *Blank) Discard() {
	b.d.Close()
	os.Remove(b.path)
}

// CreateDeterminants makes an empty list in a new file of mode 0600. The error
// is [os.ErrExist] when there is one.
func CreateDeterminants(path string) (*Determinants, error) {
	f, err := create(path, pageLen+int64(leastRing*recordLen), func(header []byte) {
		word(header, 0).Store(determinantsMagic)
		word(header, ringWord).Store(pack(leastRing))
		word(header, firstWord).Store(pack(0))
	})
	if err != nil {
		return nil, err
	}
	f.Close()
	return OpenDeterminants(path)
}

// OpenDeterminants opens the list of another process, which may be alive. The
// error is [ErrCorrupt] for what is no such list.
func OpenDeterminants(path string) (*Determinants, error) {
	f, header, err := open(path, determinantsMagic)
	if err != nil {
		return nil, err
	}
	d := &Determinants{f: f, header: header}
	if err := d.refresh(); err != nil {
		d.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return d, nil
}

// Append adds one. When it returns nil others find it, though this process ends
// at once. It is a few stores; only when the file must grow does it wait. The
// errors are [ErrFull], [ErrClosed], [ErrBusy] while another process that has
// appended lives, and after each the list is as before.
func (d *Determinants) Append(rec Determinant) error {
	if d.end == d.limit {
		if err := d.makeRoom(); err != nil {
			return err
		}
	}
	p := d.at(d.end)
	p.seq, p.value, p.origin = rec.Seq, rec.Value, uint64(uint32(rec.Source))<<32|uint64(rec.Count)
	release.Store64(&p.check, checkOf(d.end, rec.Seq, rec.Value, p.origin, rec.Kind))
	d.end++
	return nil
}

// At is determinant i, and whether it is there: not truncated, and written.
func (d *Determinants) At(i uint64) (Determinant, bool) {
	for d.header != nil {
		if i < d.first || d.appending && i >= d.end {
			return Determinant{}, false
		}
		p := d.at(i)
		check := word(d.mem, int(i&d.mask*recordLen)+24).Load()
		rec := Determinant{uint8(check), int32(p.origin >> 32), uint32(p.origin), p.seq, p.value}
		good := check == checkOf(i, rec.Seq, rec.Value, p.origin, rec.Kind)
		// Who appends writes over what has been truncated, and may have a longer
		// ring by now.
		first, mask := d.first, d.mask
		if !d.appending {
			if err := d.refresh(); err != nil {
				d.err = err
				return Determinant{}, false
			}
		}
		if first == d.first && mask == d.mask {
			return rec, good
		}
	}
	return Determinant{}, false
}

// From yields those from n on with their numbers, in order, until the last that
// is there. What has been truncated is left out: compare the first number.
func (d *Determinants) From(n uint64) iter.Seq2[uint64, Determinant] {
	return func(yield func(uint64, Determinant) bool) {
		for i := max(n, d.First()); ; i++ {
			rec, ok := d.At(i)
			if !ok || !yield(i, rec) {
				return
			}
		}
	}
}

// First is the number of the first that was not truncated.
func (d *Determinants) First() uint64 {
	if d.header != nil && !d.appending {
		if err := d.refresh(); err != nil {
			d.err = err
		}
	}
	return d.first
}

// Len is how many have been appended, those truncated included: the number of
// the next. A record that was not written to its end is not there, nor is
// anything after it.
func (d *Determinants) Len() uint64 {
	if d.appending {
		return d.end
	}
	d.known = max(d.known, d.First())
	for {
		if _, ok := d.At(d.known); !ok {
			return d.known
		}
		d.known++
	}
}

// Err is why At, From or Len ended before they should have: the file was
// damaged, or could not be mapped.
func (d *Determinants) Err() error { return d.err }

// Whole is [ErrCorrupt] if a record is there behind one that is not. They are written in their order, so no
// process that ended, whenever, has left that: the file was damaged.
func (d *Determinants) Whole() error {
	end := d.Len()
	for i := end + 1; i < d.first+d.mask+1; i++ {
		if _, later := d.At(i); !later {
			continue
		}
		if _, now := d.At(end); now { // somebody appends
			return nil
		}
		return fmt.Errorf("record %d of %s: %w", end, d.f.Name(), ErrCorrupt)
	}
	return nil
}

// Truncate forgets those before number before: a snapshot covers them. Their
// space is used again. The errors are those of Append.
func (d *Determinants) Truncate(before uint64) error {
	if err := d.takeOver(); err != nil {
		return err
	}
	if before = min(before, d.end); before > d.first {
		word(d.header, firstWord).Store(pack(before))
		d.first = before
		d.limit = before + d.mask + 1
	}
	return nil
}

// Close keeps the file. Twice is harmless.
func (d *Determinants) Close() error {
	if d.header == nil {
		return nil
	}
	unmap(d.header)
	if d.mem != nil {
		unmap(d.mem)
	}
	d.header, d.mem, d.ring = nil, nil, nil
	d.known, d.appending, d.limit = d.Len(), false, d.end
	return d.f.Close()
}

// at is where determinant i is, or will be.
func (d *Determinants) at(i uint64) *record {
	return (*record)(unsafe.Add(d.ring, i&d.mask*recordLen))
}

// checkOf tells a record that was written to its end, as number i, from all
// else: what is torn, damaged, or of an earlier lap passes once in 2⁵⁵.
func checkOf(i, seq, value, origin uint64, kind uint8) uint64 {
	hi, lo := bits.Mul64(seq^0x9e3779b97f4a7c15, value^0xd6e8feb86659fd93)
	hi, lo = bits.Mul64(hi^lo^origin^0xa0761d6478bd642f, i<<8^uint64(kind)^0xe7037ed1a0b428db)
	return (hi^lo)<<9 | 1<<8 | uint64(kind)
}
