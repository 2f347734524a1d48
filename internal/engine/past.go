package engine

import (
	"encoding/binary"
	"iter"

	"github.com/mpiv/mpiv/wire"
)

// At level "crashes" a message is kept until a snapshot of its receiver covers it, long
// after it was sent. Such are most of a log, so they are no entries, but bytes in a row:
// nothing for the garbage collector to look at, and next to nothing to write.

// A past is the messages of a stream that were sent with their bodies and that no
// snapshot covers, in order. Guarded as the stream's sending half.
type past struct {
	head, tail *chunk
	size       int    // bytes of all
	lent       int    // entries whose bodies are in chunks
	unlent     *chunk // covered, but for such entries' sake
}

// A chunk is records, one after the other: the length of a body, a header, a body.
type chunk struct {
	buf     []byte
	from    int    // what is before that is covered
	last    uint64 // number of the newest message in it
	spilled bool   // buf is of the Spill
	next    *chunk
}

// kept is the records that are not covered.
func (c *chunk) kept() []byte { return c.buf[c.from:len(c.buf):len(c.buf)] }

// keptTo is those of them up to number n.
func (c *chunk) keptTo(n uint64) []byte {
	all := c.kept()
	if c.last <= n {
		return all
	}
	to := 0
	for to < len(all) && seqOf(all[to:]) <= n {
		to += lengthOf(all[to:])
	}
	return all[:to:to]
}

const (
	recordLen  = 4 + wire.HeaderLen // without the body
	chunkFirst = 1 << 10            // of a stream's first chunk; those after it are larger,
	chunkMost  = 64 << 10           // up to this, but for a record that is longer
	chunkSpill = 1 << 20            // of chunks in the Spill
)

// add writes a message to the end.
func (p *past) add(free *freeChunks, seq uint64, header, body []byte) {
	n := recordLen + len(body)
	c := p.tail
	if c == nil || len(c.buf)+n > cap(c.buf) {
		c = p.grow(free, n)
	}
	at := len(c.buf)
	b := c.buf[at : at+n]
	binary.LittleEndian.PutUint32(b, uint32(len(body)))
	*(*[wire.HeaderLen]byte)(b[4:]) = [wire.HeaderLen]byte(header)
	copy(b[recordLen:], body)
	c.buf = c.buf[:at+n]
	c.last = seq
	p.size += n
}

// grow adds a chunk with room for n bytes.
func (p *past) grow(free *freeChunks, n int) *chunk {
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
			was := c.from
			for rest := c.kept(); seqOf(rest) <= n; rest = rest[lengthOf(rest):] {
				c.from += lengthOf(rest)
			}
			dropped += c.from - was
			break
		}
		dropped += len(c.kept())
		if p.head = c.next; p.head == nil {
			p.tail = nil
		}
		if p.lent == 0 {
			free.put(c)
		} else {
			c.next, p.unlent = p.unlent, c
		}
	}
	p.size -= dropped
	return dropped
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
	return seqOf(p.head.kept()), true
}

// newest is the newest record, of a body of n bytes.
func (p *past) newest(n int) []byte { return p.tail.buf[len(p.tail.buf)-recordLen-n:] }

// after is the messages with numbers above n. Their bodies are the log's.
func (p *past) after(n uint64) iter.Seq2[wire.Header, []byte] {
	return func(yield func(wire.Header, []byte) bool) {
		for c := p.head; c != nil; c = c.next {
			if c.last <= n {
				continue
			}
			for rest := c.kept(); len(rest) > 0; rest = rest[lengthOf(rest):] {
				if seqOf(rest) <= n {
					continue
				}
				h, body := record(rest)
				if !yield(h, body) {
					return
				}
			}
		}
	}
}

// records is those up to number n.
func (p *past) records(n uint64) (parts [][]byte) {
	for c := p.head; c != nil; c = c.next {
		part := c.keptTo(n)
		if len(part) > 0 {
			parts = append(parts, part)
		}
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

// adopt takes records over, of which the newest is number last.
func (p *past) adopt(records []byte, last uint64) {
	p.append(&chunk{buf: records, last: last})
	p.size += len(records)
}

// seqOf, lengthOf and record read the first record of b.
func seqOf(b []byte) uint64 { return binary.LittleEndian.Uint64(b[4+24:]) }

func lengthOf(b []byte) int { return recordLen + int(binary.LittleEndian.Uint32(b)) }

func record(b []byte) (h wire.Header, body []byte) {
	if err := h.Parse(b[4:]); err != nil {
		panic("engine: the log is damaged: " + err.Error()) // who adopts a capsule has looked
	}
	h.Ack = 0 // it is old
	n := lengthOf(b)
	return h, b[recordLen:n:n]
}

// freeChunks is chunks to use again, up to some bytes.
type freeChunks struct {
	list        []*chunk
	bytes, most int
	spill       Spill // nil: there is none
	spills      bool  // new chunks are of the Spill, as long as it has some
}

func (f *freeChunks) take(n int) *chunk {
	if f.spills && f.spill != nil {
		if b := f.spill.Take(max(n, chunkSpill)); b != nil {
			return &chunk{buf: b[:0], spilled: true}
		}
	}
	if k := len(f.list) - 1; n == chunkMost && k >= 0 {
		c := f.list[k]
		f.list = f.list[:k]
		f.bytes -= chunkMost
		return c
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
