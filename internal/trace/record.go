// Package trace is what the calls of ranks did, and when: records to bytes and back,
// and to the trace-event format that Perfetto and chrome://tracing read. It writes to
// what it is handed, and reads no clock but that of a Recorder.
package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// A Kind is what a Record is of.
type Kind uint8

const (
	Call Kind = iota // a call of the program
	Left             // a rank's state leaves its process
	Came             // a rank goes on in a process: from the first that is known of it to the end of Restore
)

// A Direction is whether a call began a message or received one.
type Direction uint8

const (
	None Direction = iota
	Out
	In
)

// A Record is a call, or a part of a move.
type Record struct {
	Kind  Kind
	Op    string // "Send"; at most 255 bytes
	Rank  int32
	Lane  uint8 // calls of a rank that overlap have lanes of their own
	Start int64 // Unix time in ns, by the clock of the host
	Took  int64 // ns

	Dir     Direction // None: what follows up to Seq is 0
	Peer    int32     // in the world
	Tag     int32
	Context uint32
	Bytes   int64
	Seq     uint64 // of the messages from one rank to another, counted from 1 while the job lives

	Epoch uint32 // of Left and Came: the map by which the rank goes on
}

// A Chunk is records of one process.
type Chunk struct {
	Dropped uint64 // records that were not kept, so far
	Records []Record
}

const (
	version = 1
	opMost  = 255
)

// head begins a chunk. Times in it count from base.
func head(dropped uint64, base int64) []byte {
	b := append(make([]byte, 0, 4<<10), version)
	b = binary.AppendUvarint(b, dropped)
	return binary.AppendVarint(b, base)
}

// Append is the bytes of c after b.
func (c *Chunk) Append(b []byte) []byte {
	base := int64(0)
	if len(c.Records) > 0 {
		base = c.Records[0].Start
	}
	b = append(b, head(c.Dropped, base)...)
	for i := range c.Records {
		b = c.Records[i].append(b, base)
	}
	return b
}

func (r *Record) append(b []byte, base int64) []byte {
	b = append(b, byte(r.Kind)|byte(r.Dir)<<2, r.Lane, byte(len(r.Op)))
	b = append(b, r.Op...)
	b = binary.AppendUvarint(b, uint64(uint32(r.Rank)))
	b = binary.AppendVarint(b, r.Start-base)
	b = binary.AppendUvarint(b, uint64(r.Took))
	if r.Dir != None {
		b = binary.AppendVarint(b, int64(r.Peer))
		b = binary.AppendVarint(b, int64(r.Tag))
		b = binary.AppendUvarint(b, uint64(r.Context))
		b = binary.AppendUvarint(b, uint64(r.Bytes))
		b = binary.AppendUvarint(b, r.Seq)
	}
	if r.Kind != Call {
		b = binary.AppendUvarint(b, uint64(r.Epoch))
	}
	return b
}

// ErrChunk: bytes that are no Chunk.
var ErrChunk = errors.New("a malformed chunk of trace records")

// Parse reads what Append wrote, and refuses all else.
func Parse(b []byte) (*Chunk, error) {
	d := decoder{b: b}
	if v := d.byte(); v != version && d.err == nil {
		return nil, fmt.Errorf("%w: of version %d, this one reads %d", ErrChunk, v, version)
	}
	c := &Chunk{Dropped: d.uvarint()}
	base := d.varint()
	for d.err == nil && len(d.b) > 0 {
		r := d.record(base)
		if d.err == nil {
			c.Records = append(c.Records, r)
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	if again := c.Append(make([]byte, 0, len(b))); !bytes.Equal(again, b) {
		return nil, fmt.Errorf("%w: it is not written as it should be", ErrChunk)
	}
	return c, nil
}

// A decoder takes values from the front of b, until one is not there.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) record(base int64) (r Record) {
	flags := d.byte()
	r.Kind, r.Dir, r.Lane = Kind(flags&3), Direction(flags>>2), d.byte()
	if r.Kind > Came || r.Dir > In || r.Lane >= Lanes {
		d.err = ErrChunk
	}
	r.Op = string(d.bytes(int(d.byte())))
	r.Rank = int32(d.uvarint())
	r.Start = base + d.varint()
	r.Took = int64(d.uvarint())
	if r.Dir != None {
		r.Peer, r.Tag = int32(d.varint()), int32(d.varint())
		r.Context, r.Bytes, r.Seq = uint32(d.uvarint()), int64(d.uvarint()), d.uvarint()
	}
	if r.Kind != Call {
		r.Epoch = uint32(d.uvarint())
	}
	if r.Rank < 0 || r.Took < 0 || r.Bytes < 0 {
		d.err = ErrChunk
	}
	return r
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (d *decoder) bytes(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.err = ErrChunk
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	return took(d, v, n)
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	return took(d, v, n)
}

// took is v, which n bytes of d were; n is not positive if there was none.
func took[V uint64 | int64](d *decoder, v V, n int) V {
	if d.err != nil || n <= 0 {
		d.err = ErrChunk
		return 0
	}
	d.b = d.b[n:]
	return v
}
