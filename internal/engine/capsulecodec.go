package engine

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// Append writes c to the end of b.
func (c *Capsule) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = slices.Grow(b, c.size())
	b = append(b, capsuleVersion)
	b = le.AppendUint32(b, uint32(c.Rank))
	b = le.AppendUint32(b, uint32(c.Epoch))
	b = le.AppendUint32(b, uint32(len(c.Streams)))
	b = le.AppendUint32(b, uint32(len(c.Unread)))
	b = le.AppendUint32(b, uint32(len(c.Abandoned)))
	b = le.AppendUint32(b, uint32(len(c.Revoked)))
	b = le.AppendUint32(b, uint32(len(c.Begun)))
	for i := range c.Streams {
		s := &c.Streams[i]
		b = le.AppendUint32(b, uint32(s.Peer))
		b = le.AppendUint64(b, s.Sent)
		b = le.AppendUint64(b, s.Got)
		b = le.AppendUint32(b, uint32(len(s.Offers)))
		b = le.AppendUint32(b, uint32(len(s.Back)))
		b = le.AppendUint32(b, uint32(len(s.Log)))
		b = le.AppendUint64(b, uint64(s.past()))
		for _, seqs := range [][]uint64{s.Offers, s.Back} {
			for _, seq := range seqs {
				b = le.AppendUint64(b, seq)
			}
		}
		for k := range s.Log {
			b = appendMessage(b, &s.Log[k].Header, s.Log[k].Body, len(s.Log[k].Body))
		}
		for _, records := range s.Past {
			b = append(b, records...)
		}
	}
	for i := range c.Unread {
		b = appendMessage(b, &c.Unread[i].Header, c.Unread[i].Body, c.Unread[i].Length)
	}
	for i := range c.Abandoned {
		a := &c.Abandoned[i]
		b = le.AppendUint32(b, a.Context)
		b = le.AppendUint32(b, uint32(a.First))
		b = le.AppendUint32(b, uint32(a.Last))
		b = le.AppendUint32(b, uint32(a.By))
		b = le.AppendUint32(b, uint32(len(a.Cause)))
		b = append(b, a.Cause...)
	}
	for _, r := range c.Revoked {
		b = le.AppendUint32(b, r.Base)
		b = le.AppendUint32(b, uint32(r.By))
	}
	for _, x := range c.Begun {
		b = le.AppendUint32(b, x.At)
		b = le.AppendUint32(b, x.Wish)
		b = le.AppendUint32(b, x.N)
	}
	return b
}

const capsuleVersion = 6

// past is how many bytes of records there are.
func (s *StreamState) past() (n int) {
	for _, records := range s.Past {
		n += len(records)
	}
	return n
}

const (
	streamLen    = 40 // of a stream, without what it has of each message
	abandonedLen = 20 // of abandoned calls, without the cause
	revokedLen   = 8
	begunLen     = 12
)

// size is how many bytes Append writes, or a few more.
func (c *Capsule) size() int {
	const ofMessage = wire.HeaderLen + 9
	n := 1 + 7*4 + streamLen*len(c.Streams) + abandonedLen*len(c.Abandoned) + revokedLen*len(c.Revoked) + begunLen*len(c.Begun)
	for i := range c.Streams {
		s := &c.Streams[i]
		n += 8*(len(s.Offers)+len(s.Back)) + ofMessage*len(s.Log) + s.past()
		for k := range s.Log {
			n += len(s.Log[k].Body)
		}
	}
	for i := range c.Unread {
		n += ofMessage + len(c.Unread[i].Body)
	}
	for i := range c.Abandoned {
		n += len(c.Abandoned[i].Cause)
	}
	return n
}

func appendMessage(b []byte, h *wire.Header, body []byte, length int) []byte {
	var header [wire.HeaderLen]byte
	h.Put(header[:])
	b = append(b, header[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(length))
	if body == nil {
		return append(b, 0)
	}
	return append(append(b, 1), body...)
}

// ParseCapsule reads what Append wrote. Bodies alias b.
func ParseCapsule(b []byte) (*Capsule, error) {
	p := capsuleParser{b: b}
	if p.bytes(1)[0] != capsuleVersion {
		return nil, fmt.Errorf("%w: another version", ErrCapsule)
	}
	c := &Capsule{Rank: p.rank(), Epoch: topology.Epoch(p.uint32())}
	streams, unread, abandoned, revoked, begins := p.count(streamLen), p.count(wire.HeaderLen+9), p.count(abandonedLen), p.count(revokedLen), p.count(begunLen)
	last := topology.Rank(-1)
	for range streams {
		s := StreamState{Peer: p.rank(), Sent: p.uint64(), Got: p.uint64()}
		if s.Peer <= last {
			p.bad = true
		}
		last = s.Peer
		offers, back, log, past := p.count(8), p.count(8), p.count(wire.HeaderLen+9), p.uint64()
		for range offers {
			s.Offers = append(s.Offers, p.uint64())
		}
		for range back {
			s.Back = append(s.Back, p.uint64())
		}
		for range log {
			h, body, n := p.message()
			if body == nil || n != len(body) || h.Source != c.Rank || h.Dest != s.Peer || h.Seq == 0 || h.Seq > s.Sent || h.Ack != 0 {
				p.bad = true
			}
			s.Log = append(s.Log, Logged{h, body})
		}
		if s.Past = p.records(past, c.Rank, &s); p.bad {
			return nil, ErrCapsule
		}
		for i := range s.Offers {
			if seq := s.Offers[i]; seq == 0 || seq > s.Got || i > 0 && seq <= s.Offers[i-1] {
				p.bad = true
			}
		}
		for i, seq := range s.Back {
			if seq == 0 || i > 0 && seq <= s.Back[i-1] {
				p.bad = true
			}
		}
		for i := 1; i < len(s.Log); i++ {
			if s.Log[i].Header.Seq <= s.Log[i-1].Header.Seq {
				p.bad = true
			}
		}
		if p.bad {
			return nil, ErrCapsule
		}
		c.Streams = append(c.Streams, s)
	}
	for range unread {
		h, body, n := p.message()
		if h.Source < 0 || h.Dest != c.Rank || body != nil && n != len(body) {
			p.bad = true
		}
		if p.bad {
			return nil, ErrCapsule
		}
		c.Unread = append(c.Unread, Unread{h, n, body})
	}
	for range abandoned {
		a := AbandonedCalls{Context: p.uint32(), First: int32(p.uint32()), Last: int32(p.uint32())}
		a.By = p.rank()
		if a.Cause = string(p.bytes(p.count(1))); a.First > a.Last {
			p.bad = true
		}
		if p.bad {
			return nil, ErrCapsule
		}
		c.Abandoned = append(c.Abandoned, a)
	}
	for i := range revoked {
		r := Revocation{p.uint32(), p.rank()}
		if i > 0 && r.Base <= c.Revoked[i-1].Base {
			p.bad = true
		}
		if p.bad {
			return nil, ErrCapsule
		}
		c.Revoked = append(c.Revoked, r)
	}
	for i := range begins {
		x := BegunOf{p.uint32(), p.uint32(), p.uint32()}
		if x.At >= uint32(len(begun{})) || x.N == 0 || i > 0 && x.At <= c.Begun[i-1].At {
			p.bad = true
		}
		if p.bad {
			return nil, ErrCapsule
		}
		c.Begun = append(c.Begun, x)
	}
	if p.bad || len(p.b) != 0 {
		return nil, ErrCapsule
	}
	return c, nil
}

// records is n bytes of a log, from a rank to that of s.
func (p *capsuleParser) records(n uint64, from topology.Rank, s *StreamState) [][]byte {
	if n > uint64(len(p.b)) {
		p.bad = true
	}
	if p.bad || n == 0 {
		return nil
	}
	all := p.bytes(int(n))
	last := uint64(0)
	w := walk{rest: all}
	for w.next() {
		var h wire.Header
		if h.Parse(w.header) != nil || h.Kind != wire.Eager && h.Kind != wire.Abandon || h.Source != from || h.Dest != s.Peer || w.seq <= last || w.seq > s.Sent {
			p.bad = true
			return nil
		}
		last = w.seq
	}
	p.bad = len(w.rest) > 0
	return [][]byte{all}
}

// A capsuleParser reads; once something is bad, all it reads is zero.
type capsuleParser struct {
	b   []byte
	bad bool
}

var zeros [wire.HeaderLen]byte

func (p *capsuleParser) bytes(n int) []byte {
	if p.bad || n > len(p.b) {
		p.bad = true
		if n > len(zeros) {
			return nil
		}
		return zeros[:n]
	}
	b := p.b[:n:n]
	p.b = p.b[n:]
	return b
}

func (p *capsuleParser) uint32() uint32 { return binary.LittleEndian.Uint32(p.bytes(4)) }
func (p *capsuleParser) uint64() uint64 { return binary.LittleEndian.Uint64(p.bytes(8)) }

func (p *capsuleParser) rank() topology.Rank {
	r := topology.Rank(p.uint32())
	if r < 0 {
		p.bad = true
	}
	return r
}

// count is a number of things of at least size bytes each.
func (p *capsuleParser) count(size int) int {
	n := p.uint32()
	if uint64(n)*uint64(size) > uint64(len(p.b)) {
		p.bad = true
		return 0
	}
	return int(n)
}

func (p *capsuleParser) message() (h wire.Header, body []byte, n int) {
	if h.Parse(p.bytes(wire.HeaderLen)) != nil {
		p.bad = true
	}
	length, has := p.uint64(), p.bytes(1)[0]
	if length > 1<<62 || has > 1 {
		p.bad = true
	}
	if p.bad || has == 0 {
		return h, nil, int(length)
	}
	if length > uint64(len(p.b)) {
		p.bad = true
		return h, nil, 0
	}
	return h, p.bytes(int(length)), int(length)
}
