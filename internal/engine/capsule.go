package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// A Capsule is what a rank's end of its streams is at a safe point: with it the rank
// goes on in another process as if nothing had happened.
type Capsule struct {
	Rank    topology.Rank
	Epoch   topology.Epoch // of the map by which it was taken
	Streams []StreamState  // by peer, ascending
	Unread  []Unread       // messages that have come and that no receive has taken, in their order
}

// A StreamState is a rank's end of its messages to and from one peer.
type StreamState struct {
	Peer   topology.Rank
	Sent   uint64   // number of the last message to the peer
	Got    uint64   // number of the last from it
	Offers []uint64 // numbers of those from it of which the body has not come, ascending
	Log    []Logged // messages to it that are not stable, in order
}

// A Logged message is kept until it is stable.
type Logged struct {
	Header wire.Header
	Body   []byte
}

// An Unread message has come before its receive.
type Unread struct {
	Header wire.Header
	Length int    // of its body
	Body   []byte // nil if it has not come, and has to be offered again
}

// Errors of capsules.
var (
	ErrPending = errors.New("the rank is not at a safe point")
	ErrCapsule = errors.New("malformed capsule")
)

// Capture is the capsule of b's rank now. The rank must not be in a call, nor have a
// request under way: ErrPending. The bodies are the engine's: they may be used until
// the rank sends or receives, or are copied with Append.
func (b *Box) Capture() (*Capsule, error) {
	e := b.e
	e.enter()
	defer e.leave()
	return b.capture()
}

// capture is Capture while polling is held.
func (b *Box) capture() (*Capsule, error) {
	if err := b.Idle(); err != nil {
		return nil, err
	}
	e := b.e
	c := &Capsule{Rank: b.rank, Epoch: e.Epoch()}
	b.streams.all(func(s *stream) {
		if int(s.peer) < e.size {
			c.Streams = append(c.Streams, b.captureStream(s))
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := b.unexpected.head; a != nil; a = a.allNext {
		u := Unread{Header: a.header, Length: a.length, Body: a.body}
		switch {
		case a.sender != nil && e.cfg.Replay: // the log has it too
			u.Body = a.sender.buf
		case a.sender != nil:
			c.offered(a.header.Source, a.header.Seq)
		case a.sender == nil && a.link == nil && a.body == nil:
			u.Body = []byte{}
		}
		c.Unread = append(c.Unread, u)
	}
	return c, nil
}

// offered notes that the body of a message has not come.
func (c *Capsule) offered(from topology.Rank, seq uint64) {
	for i := range c.Streams {
		if s := &c.Streams[i]; s.Peer == from {
			s.Offers = append(s.Offers, seq)
			slices.Sort(s.Offers)
		}
	}
}

func (b *Box) captureStream(s *stream) StreamState {
	if l := b.e.lockLink(s.peer); l != nil {
		defer l.mu.Unlock()
	} else {
		to := b.e.Box(s.peer)
		to.mu.Lock()
		defer to.mu.Unlock()
	}
	state := StreamState{Peer: s.peer, Sent: s.sent, Got: s.got, Offers: slices.Clone(s.offers)}
	slices.Sort(state.Offers)
	for x := s.head; x != nil; x = x.snext {
		h := x.header
		h.Ack = 0
		state.Log = append(state.Log, Logged{h, x.body})
	}
	return state
}

// Adopt has the rank of c go on in this process, by a map of that epoch, from where
// c was taken. The capsule is the engine's from now on. No other rank may be here.
func (e *Engine) Adopt(c *Capsule, epoch topology.Epoch) (*Box, error) {
	e.enter()
	defer e.leave()
	p := &e.peers[c.Rank]
	switch {
	case int(c.Rank) >= e.size:
		return nil, fmt.Errorf("adopt rank %d: the world has %d", c.Rank, e.size)
	case len(*e.boxes.Load()) > 0:
		return nil, fmt.Errorf("adopt rank %d: rank %d is in this process", c.Rank, (*e.boxes.Load())[0].rank)
	}
	b := newBox(e, c.Rank)
	for i := range c.Streams {
		if err := b.adoptStream(&c.Streams[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Unread {
		u := &c.Unread[i]
		a := b.newArrivalLocked(&u.Header, u.Length)
		if u.Body == nil {
			a.link, a.awaits = e.peers[u.Header.Source].link.Load(), true
		} else {
			b.hold(a, len(u.Body))
			copy(a.body, u.Body)
		}
		b.insertLocked(a)
	}
	e.boxes.Store(&[]*Box{b})
	p.past = append(p.past, p.link.Load())
	p.box.Store(b)
	p.link.Store(nil)
	for i := range c.Streams {
		b.resume(&c.Streams[i])
	}
	e.learn(epoch)
	return b, nil
}

// adoptStream makes a stream what it was.
func (b *Box) adoptStream(st *StreamState) error {
	if int(st.Peer) >= b.e.size {
		return fmt.Errorf("adopt rank %d: the world has no rank %d", b.rank, st.Peer)
	}
	s := b.streams.at(st.Peer)
	s.sent, s.got, s.offers = st.Sent, st.Got, st.Offers
	s.acks.Store(st.Got)
	s.acked = st.Sent
	if len(st.Log) > 0 {
		s.acked = st.Log[0].Header.Seq - 1
	}
	return nil
}

// resume queues what the log of a stream that was adopted has.
func (b *Box) resume(st *StreamState) {
	s := b.streams.at(st.Peer)
	if st.Peer == b.rank { // to itself: it has come, or is unread
		for i := range st.Log {
			s.keep(&entry{header: st.Log[i].Header, body: st.Log[i].Body, stream: s})
		}
		return
	}
	l := b.e.lockLink(st.Peer)
	defer l.mu.Unlock()
	for i := range st.Log {
		m := &st.Log[i]
		x := l.newEntry(s)
		x.header, x.body = m.Header, m.Body
		x.header.Epoch = b.e.Epoch()
		x.env = wire.Envelope{Length: uint64(len(m.Body))}
		if l.firmLocked() && x.header.Kind != wire.Offer {
			l.enqueue(x)
			continue
		}
		l.keep(x)
		l.enqueue(x)
	}
	l.pump()
}

// Append writes c to the end of b.
func (c *Capsule) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, capsuleVersion)
	b = le.AppendUint32(b, uint32(c.Rank))
	b = le.AppendUint32(b, uint32(c.Epoch))
	b = le.AppendUint32(b, uint32(len(c.Streams)))
	b = le.AppendUint32(b, uint32(len(c.Unread)))
	for i := range c.Streams {
		s := &c.Streams[i]
		b = le.AppendUint32(b, uint32(s.Peer))
		b = le.AppendUint64(b, s.Sent)
		b = le.AppendUint64(b, s.Got)
		b = le.AppendUint32(b, uint32(len(s.Offers)))
		b = le.AppendUint32(b, uint32(len(s.Log)))
		for _, seq := range s.Offers {
			b = le.AppendUint64(b, seq)
		}
		for k := range s.Log {
			b = appendMessage(b, &s.Log[k].Header, s.Log[k].Body, len(s.Log[k].Body))
		}
	}
	for i := range c.Unread {
		b = appendMessage(b, &c.Unread[i].Header, c.Unread[i].Body, c.Unread[i].Length)
	}
	return b
}

const capsuleVersion = 1

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
	streams, unread := p.count(28), p.count(wire.HeaderLen+9)
	last := topology.Rank(-1)
	for range streams {
		s := StreamState{Peer: p.rank(), Sent: p.uint64(), Got: p.uint64()}
		if s.Peer <= last {
			p.bad = true
		}
		last = s.Peer
		offers, log := p.count(8), p.count(wire.HeaderLen+9)
		for range offers {
			s.Offers = append(s.Offers, p.uint64())
		}
		for range log {
			h, body, n := p.message()
			if body == nil || n != len(body) || h.Source != c.Rank || h.Dest != s.Peer || h.Seq == 0 || h.Seq > s.Sent || h.Ack != 0 {
				p.bad = true
			}
			s.Log = append(s.Log, Logged{h, body})
		}
		for i := range s.Offers {
			if seq := s.Offers[i]; seq == 0 || seq > s.Got || i > 0 && seq <= s.Offers[i-1] {
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
		if h.Dest != c.Rank || body != nil && n != len(body) {
			p.bad = true
		}
		if p.bad {
			return nil, ErrCapsule
		}
		c.Unread = append(c.Unread, Unread{h, n, body})
	}
	if p.bad || len(p.b) != 0 {
		return nil, ErrCapsule
	}
	return c, nil
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
