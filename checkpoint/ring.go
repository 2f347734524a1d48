package checkpoint

import (
	"fmt"
	"unsafe"
)

const (
	determinantsMagic = 0x31_74_65_64_76_69_70_6d // "mpivdet1" on a little-endian host

	// Of the header. Each word changes by itself, in one store.
	ringWord  = 64  // packed: the length of the ring, a power of two
	firstWord = 128 // packed: what is before has been truncated

	leastRing = 2 << 10  // records: 64 KiB
	mostRing  = 64 << 20 // 2 GiB

	mostNumber = 1<<47 - 1 // 162 days of 10 million a second
)

// pack adds a check of 16 bits to a number of 48, so that a damaged one is seen.
func pack(n uint64) uint64 { return n<<16 | (n*0x9e3779b97f4a7c15^0xa5a5<<48)>>48 }

func unpack(w uint64) (n uint64, ok bool) { n = w >> 16; return n, pack(n) == w }

// refresh looks where the ring is and begins now.
func (d *Determinants) refresh() error {
	first, ok := unpack(word(d.header, firstWord).Load())
	if !ok || first > mostNumber {
		return ErrCorrupt
	}
	n, ok := unpack(word(d.header, ringWord).Load())
	if !ok || n < leastRing || n > mostRing || n&(n-1) != 0 {
		return ErrCorrupt
	}
	if d.mem == nil || n != d.mask+1 {
		if err := long(d.f, pageLen+int64(n*recordLen)); err != nil {
			return err
		}
		mem, err := mapped(d.f, pageLen, int64(n*recordLen))
		if err != nil {
			return err
		}
		d.use(mem)
	}
	d.first = first
	return nil
}

func (d *Determinants) use(mem []byte) {
	if d.mem != nil {
		unmap(d.mem)
	}
	d.mem, d.mask = mem, uint64(len(mem))/recordLen-1
	d.ring = unsafe.Pointer(unsafe.SliceData(mem))
}

// takeOver makes this process the one that appends.
func (d *Determinants) takeOver() error {
	if d.header == nil {
		return ErrClosed
	}
	if d.appending {
		return nil
	}
	if err := holdAlone(d.f); err != nil {
		return err
	}
	end := d.Len()
	if d.err != nil {
		return d.err
	}
	// Behind a record that was damaged there may be good ones. They would come
	// back when it is written again.
	for i := end; i < d.first+d.mask+1; i++ {
		*d.at(i) = record{}
	}
	d.end, d.limit, d.appending = end, d.first+d.mask+1, true
	return nil
}

// makeRoom makes end less than limit.
func (d *Determinants) makeRoom() error {
	if err := d.takeOver(); err != nil {
		return err
	}
	if d.end < d.limit {
		return nil
	}
	old := d.mask + 1
	if old == mostRing {
		return fmt.Errorf("append determinant %d: %d are not covered by a snapshot: take one: %w", d.end, old, ErrFull)
	}
	if err := reserve(d.f, pageLen+int64(old*recordLen), int64(old*recordLen)); err != nil {
		return fmt.Errorf("append determinant %d: %w", d.end, err)
	}
	mem, err := mapped(d.f, pageLen, int64(2*old*recordLen))
	if err != nil {
		return fmt.Errorf("append determinant %d: %w", d.end, err)
	}
	// In a ring of twice the length every other lap is in the upper half. Until
	// ringWord says so, what is there does not count.
	upper := mem[old*recordLen:]
	populate(upper)
	clear(upper)
	for i := d.first; i < d.end; i++ {
		if i&old != 0 {
			at := i & d.mask * recordLen
			copy(upper[at:at+recordLen], mem[at:])
		}
	}
	word(d.header, ringWord).Store(pack(2 * old))
	d.use(mem)
	d.limit = d.first + d.mask + 1
	return nil
}
