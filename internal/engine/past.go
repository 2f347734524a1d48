package engine

import (
	"encoding/binary"
	"iter"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// A message that was sent with its body is kept until it is acknowledged, or at level
// "crashes" until a snapshot of its receiver covers it, long after it was sent. Such are
// most of a log, so they are no entries, but bytes in a row: nothing for the garbage
// collector to look at, and next to nothing to write.

// A past is the messages of a stream that were sent with their bodies and are kept, in
// order. Guarded as the stream's sending half.
type past struct {
	head, tail *chunk
	size       int    // bytes of all
	lent       int    // entries whose bodies are in chunks
	unlent     *chunk // covered, but for such entries' sake
	spare      *chunk // to begin with when there is none
}

// A chunk is records, one after the other: the length of a body, a header, a body. A
// header that is as the one before, but for the next number, is left out.
type chunk struct {
	buf     []byte
	from    int    // what is before that is covered
	lead    []byte // the header of the first record that is not, if that is left out,
	before  uint64 //   and the number of the message before
	header  int    // where the last header is
	last    uint64 // number of the newest message in it
	spilled bool   // buf is of the Spill
	next    *chunk
}

// kept is the records that are not covered.
func (c *chunk) kept() []byte { return c.buf[c.from:len(c.buf):len(c.buf)] }

// walk goes over those.
func (c *chunk) walk() walk { return walk{rest: c.kept(), header: c.lead, seq: c.before} }

// keptTo is those of them up to number n.
func (c *chunk) keptTo(n uint64) []byte {
	all := c.kept()
	if c.last <= n {
		return all
	}
	to := 0
	for w := c.walk(); w.next() && w.seq <= n; {
		to = w.end
	}
	return all[:to:to]
}

// parts is keptTo, in such parts that the first header is not left out.
func (c *chunk) parts(n uint64) [][]byte {
	some := c.keptTo(n)
	switch {
	case len(some) == 0:
		return nil
	case c.lead == nil:
		return [][]byte{some}
	}
	w := c.walk()
	w.next()
	record := make([]byte, recordLen)
	putHeader(record, w.header, len(w.body))
	binary.LittleEndian.PutUint64(record[shortLen+seqAt:], w.seq)
	return [][]byte{record, some[shortLen:]}
}

const (
	shortLen  = 8                         // of a record without header and body
	recordLen = shortLen + wire.HeaderLen // without the body
	isShort   = 1 << 63                   // in the length
	seqAt     = 24                        // where a header has its number; what is before says whose message it is

	chunkFirst = 1 << 10  // of a stream's first chunk; those after it are larger,
	chunkMost  = 64 << 10 // up to this, but for a record that is longer
	chunkSpill = 1 << 20  // of chunks in the Spill
)

// add writes a message to the end, and tells how many bytes that took.
func (p *past) add(free *freeChunks, seq uint64, header, body []byte) int {
	c := p.tail
	n := shortLen + len(body)
	if c != nil && seq == c.last+1 && len(c.buf)+n <= cap(c.buf) && alike(header, c.buf[c.header:]) {
		at := len(c.buf)
		b := c.buf[at : at+n]
		binary.LittleEndian.PutUint64(b, uint64(len(body))|isShort)
		copy(b[shortLen:], body)
		c.buf = c.buf[:at+n]
	} else {
		n = recordLen + len(body)
		if c == nil || len(c.buf)+n > cap(c.buf) {
			c = p.grow(free, n)
		}
		at := len(c.buf)
		b := c.buf[at : at+n]
		putHeader(b, header, len(body))
		copy(b[recordLen:], body)
		c.buf, c.header = c.buf[:at+n], at+shortLen
	}
	c.last = seq
	p.size += n
	return n
}

func putHeader(record, header []byte, body int) {
	binary.LittleEndian.PutUint64(record, uint64(body))
	transport.CopyHeader((*[wire.HeaderLen]byte)(record[shortLen:]), (*[wire.HeaderLen]byte)(header))
}

// alike tells whether headers are the same up to seqAt. Word by word: see transport.CopyHeader.
func alike(a, b []byte) bool {
	const _ = -(seqAt ^ 24)
	order := binary.NativeEndian
	return order.Uint64(a) == order.Uint64(b) && order.Uint64(a[8:]) == order.Uint64(b[8:]) && order.Uint64(a[16:]) == order.Uint64(b[16:])
}

// grow adds a chunk with room for n bytes.
func (p *past) grow(free *freeChunks, n int) *chunk {
	if c := p.spare; c != nil && p.tail == nil && n <= cap(c.buf) {
		p.spare = nil
		p.append(c)
		return c
	}
	size := chunkFirst
	if p.tail != nil {
		size = min(4*cap(p.tail.buf), chunkMost)
	}
	c := free.take(max(size, n))
	p.append(c)
	return c
}

func (p *past) append(c *chunk) {
	if p.tail == nil {
		p.head = c
	} else {
		p.tail.next = c
	}
	p.tail = c
}

// forget drops the messages up to number n, and tells how many bytes that were.
func (p *past) forget(free *freeChunks, n uint64) (dropped int) {
	for c := p.head; c != nil; c = p.head {
		if c.last > n {
			dropped += c.forget(n)
			break
		}
		dropped += len(c.kept())
		if p.head = c.next; p.head == nil {
			p.tail = nil
		}
		p.free(free, c)
	}
	p.size -= dropped
	return dropped
}

// forget does that in a chunk of which some stays.
func (c *chunk) forget(n uint64) (dropped int) {
	w := c.walk()
	for w.next() && w.seq <= n {
	}
	dropped = w.end - w.len()
	c.from += dropped
	if c.lead = nil; w.short {
		c.lead, c.before = w.header, w.seq-1
	}
	return dropped
}

// free gives back a chunk that is covered.
func (p *past) free(free *freeChunks, c *chunk) {
	switch {
	case p.lent > 0:
		c.next, p.unlent = p.unlent, c
	case p.head == nil && cap(c.buf) < chunkMost && !c.spilled:
		*c = chunk{buf: c.buf[:0]}
		p.spare = c
	default:
		free.put(c)
	}
}

// giveBack is told that an entry has no body of p's any more.
func (p *past) giveBack(free *freeChunks) {
	if p.lent--; p.lent > 0 {
		return
	}
	for c := p.unlent; c != nil; c = p.unlent {
		p.unlent = c.next
		free.put(c)
	}
}

// first is the number of the oldest message; false if there is none.
func (p *past) first() (uint64, bool) {
	if p.head == nil {
		return 0, false
	}
	w := p.head.walk()
	w.next()
	return w.seq, true
}

// newest is the newest message, of a body of n bytes.
func (p *past) newest(n int) (wire.Header, []byte) {
	c := p.tail
	end := len(c.buf)
	return headerOf(c.buf[c.header:], c.last), c.buf[end-n : end : end]
}

// after is the messages with numbers above n. Their bodies are the log's.
func (p *past) after(n uint64) iter.Seq2[wire.Header, []byte] {
	return func(yield func(wire.Header, []byte) bool) {
		for c := p.head; c != nil; c = c.next {
			if c.last <= n {
				continue
			}
			for w := c.walk(); w.next(); {
				if w.seq > n && !yield(headerOf(w.header, w.seq), w.body) {
					return
				}
			}
		}
	}
}

// records is those up to number n, in parts.
func (p *past) records(n uint64) (parts [][]byte) {
	for c := p.head; c != nil; c = c.next {
		parts = append(parts, c.parts(n)...)
		if c.last > n {
			break
		}
	}
	return parts
}

// upTo is the bytes of those up to number n.
func (p *past) upTo(n uint64) (bytes int) {
	for c := p.head; c != nil; c = c.next {
		bytes += len(c.keptTo(n))
		if c.last > n {
			break
		}
	}
	return bytes
}

// adopt takes records over.
func (p *past) adopt(records []byte) {
	c := &chunk{buf: records[:len(records):len(records)]}
	for w := (walk{rest: records}); w.next(); {
		c.last = w.seq
	}
	p.append(c) // full: nothing is added to it
	p.size += len(records)
}

// A walk goes over records.
type walk struct {
	rest []byte // what comes next
	end  int    // of the record, in all

	short  bool   // it has no header
	header []byte // but for the number, and the Ack
	seq    uint64
	body   []byte
}

// next goes on to a record. It is false at the end, and where there is damage: then there
// is a rest.
func (w *walk) next() bool {
	if len(w.rest) < shortLen {
		return false
	}
	length := binary.LittleEndian.Uint64(w.rest)
	from, n := shortLen, int(length&^isShort)
	if w.short = length&isShort != 0; !w.short {
		from = recordLen
	}
	if n > len(w.rest)-from || w.short && w.header == nil {
		return false
	}
	if w.seq++; !w.short {
		w.header = w.rest[shortLen:recordLen]
		w.seq = binary.LittleEndian.Uint64(w.header[seqAt:])
	}
	w.body, w.rest = w.rest[from:from+n:from+n], w.rest[from+n:]
	w.end += from + n
	return true
}

// len is that of the record.
func (w *walk) len() int {
	if w.short {
		return shortLen + len(w.body)
	}
	return recordLen + len(w.body)
}

// firstOf is the number of the first of some records.
func firstOf(records []byte) uint64 { return binary.LittleEndian.Uint64(records[shortLen+seqAt:]) }

// headerOf is a header of the log, with that number.
func headerOf(b []byte, seq uint64) (h wire.Header) {
	if err := h.Parse(b); err != nil {
		panic("engine: the log is damaged: " + err.Error()) // who adopts a capsule has looked
	}
	h.Seq, h.Ack = seq, 0 // it is old
	return h
}

// freeChunks is chunks to use again, up to some bytes.
type freeChunks struct {
	list        []*chunk
	bytes, most int
	slabs       *slabs // nil: chunks are made one by one
	spill       Spill  // nil: there is none
	spills      bool   // new chunks are of the Spill, as long as it has some
}

func (f *freeChunks) take(n int) *chunk {
	if f.spills && f.spill != nil {
		if b := f.spill.Take(max(n, chunkSpill)); b != nil {
			return &chunk{buf: b[:0], spilled: true}
		}
	}
	if k := len(f.list) - 1; n <= chunkMost && k >= 0 {
		c := f.list[k]
		f.list = f.list[:k]
		f.bytes -= chunkMost
		return c
	}
	if n == chunkMost && f.slabs != nil {
		return &chunk{buf: f.slabs.take(n)}
	}
	return &chunk{buf: make([]byte, 0, n)}
}

func (f *freeChunks) put(c *chunk) {
	if c.spilled {
		f.spill.Give(c.buf)
		return
	}
	if cap(c.buf) == chunkMost && f.bytes+chunkMost <= f.most {
		*c = chunk{buf: c.buf[:0]}
		f.list = append(f.list, c)
		f.bytes += chunkMost
	}
}
