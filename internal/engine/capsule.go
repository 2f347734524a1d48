package engine

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
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

	Abandoned []AbandonedCalls // that the rank has heard of
	Revoked   []Revocation     // ascending
	Begun     []BegunOf        // where choices are recorded; ascending
}

// A BegunOf is an element of begun that is not 0.
type BegunOf struct{ At, Wish, N uint32 }

// AbandonedCalls are those of a context, from one tag to another, that a rank takes no more part in.
type AbandonedCalls struct {
	Context     uint32
	First, Last int32
	AbandonedError
}

// A Revocation is of the contexts of a communicator.
type Revocation struct {
	Base uint32
	By   topology.Rank
}

// A StreamState is a rank's end of its messages to and from one peer.
type StreamState struct {
	Peer   topology.Rank
	Sent   uint64   // number of the last message to the peer
	Got    uint64   // number of the last from it
	Offers []uint64 // numbers of those from it of which the body has not come, ascending
	Back   []uint64 // and of those that were given back, of which it does not know yet
	Log    []Logged // messages to it that are not stable, in order,
	Past   [][]byte //   and those that were sent with their bodies: records of the log
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

// Capture is the capsule of b's rank now, written, and what it covers. The rank must not
// be in a call, nor have a request under way: ErrPending.
func (b *Box) Capture() (written []byte, covers Covers, err error) {
	e := b.e
	e.enter()
	defer e.leave() // what is written may else be used for other messages meanwhile
	if err := b.Idle(); err != nil {
		return nil, nil, err
	}
	c := b.capture(true)
	return c.Append(nil), c.Covers(), nil
}

// capture is the capsule of a rank that is idle, with its log or without. The bodies are the
// engine's. Polling is held.
func (b *Box) capture(log bool) *Capsule {
	e := b.e
	c := &Capsule{Rank: b.rank, Epoch: e.Epoch()}
	b.streams.all(func(s *stream) {
		if int(s.peer) < e.size {
			c.Streams = append(c.Streams, b.captureStream(s))
			if log {
				b.captureLog(s, &c.Streams[len(c.Streams)-1])
			}
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range c.Streams { // what ranks of this process send comes at any time
		if st := &c.Streams[i]; e.Box(st.Peer) != nil {
			st.Got = b.streams.at(st.Peer).got
		}
	}
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
	for _, r := range b.abandoned.runs {
		c.Abandoned = append(c.Abandoned, AbandonedCalls{r.context, r.first, r.last, *r.why})
	}
	revoked := b.revocations()
	for _, base := range slices.Sorted(maps.Keys(revoked)) {
		c.Revoked = append(c.Revoked, Revocation{base, revoked[base]})
	}
	if begun := b.choices.begun; begun != nil {
		for at, x := range begun {
			if x.n != 0 {
				c.Begun = append(c.Begun, BegunOf{uint32(at), uint32(x.wish), x.n})
			}
		}
	}
	return c
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
	defer b.lockSending(s)()
	state := StreamState{Peer: s.peer, Sent: s.sent, Offers: slices.Clone(s.offers.all()), Back: slices.Clone(s.returned)}
	if b.e.Box(s.peer) == nil {
		state.Got = s.got
	}
	slices.Sort(state.Offers)
	slices.Sort(state.Back)
	return state
}

// Adopt has the rank of c go on in this process, by a map of that epoch, from where
// c was taken. The capsule is the engine's from now on. No other rank may be here.
// moved is what else changes by that map. Where the rank's choices are recorded r says how: others
// may take back what they have sent as soon as it is here. Otherwise r is nil.
func (e *Engine) Adopt(c *Capsule, epoch topology.Epoch, r *Recording, moved ...Placement) (*Box, error) {
	e.enter()
	defer e.leave()
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
		if int(u.Header.Source) >= e.size {
			return nil, fmt.Errorf("adopt rank %d: a message of rank %d, and the world has %d", c.Rank, u.Header.Source, e.size)
		}
		a := b.newArrivalLocked(&u.Header, u.Length)
		if u.Body == nil {
			a.link, a.awaits, a.env.Length = e.peers[u.Header.Source].link.Load(), true, uint64(u.Length)
		} else {
			b.hold(a, len(u.Body))
			copy(a.body, u.Body)
		}
		b.insertLocked(a)
	}
	for i := range c.Abandoned {
		a := &c.Abandoned[i]
		b.abandoned.runs = append(b.abandoned.runs, run{context: a.Context, first: a.First, last: a.Last, why: &a.AbandonedError})
	}
	for _, r := range c.Revoked {
		b.revoke(r.Base, r.By)
	}
	if len(c.Begun) > 0 {
		b.choices.begun = new(begun)
		for _, x := range c.Begun {
			at := &b.choices.begun[x.At]
			at.wish, at.n = wish(x.Wish), x.N
		}
	}
	if r != nil {
		b.record(*r)
	}
	e.boxes.Store(&[]*Box{b})
	p := &e.peers[c.Rank]
	p.was(p.link.Load())
	p.box.Store(b)
	p.link.Store(nil)
	e.placings++
	e.raise(epoch)
	for i := range c.Streams {
		b.resume(&c.Streams[i])
	}
	e.placeAll(moved)
	for i := range c.Unread {
		if u := &c.Unread[i]; u.Body == nil { // who offered it has to know where to offer it again
			if l := e.peers[u.Header.Source].link.Load(); l != nil && l != e.limbo {
				l.lags()
			}
		}
	}
	if r != nil {
		b.giveBackAgain(*r)
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
	s.sent, s.got, s.offers, s.returned = st.Sent, st.Got, numbers{list: st.Offers}, st.Back
	s.acks.Set(s.toAck(b.e.cfg.Replay))
	s.acked = st.Sent
	if len(st.Log) > 0 {
		s.acked = st.Log[0].Header.Seq - 1
	}
	if records := joined(st.Past); len(records) > 0 {
		s.acked = min(s.acked, firstOf(records)-1)
		s.past.adopt(records)
	}
	return nil
}

// joined is parts in a row: the part, if it is one. It may be long, and a copy of it take longer than all else.
func joined(parts [][]byte) []byte {
	if len(parts) == 1 {
		return parts[0]
	}
	return bytes.Join(parts, nil)
}

// resume queues what the log of a stream that was adopted has.
func (b *Box) resume(st *StreamState) {
	s := b.streams.at(st.Peer)
	if st.Peer == b.rank { // to itself: it has come, or is unread
		return
	}
	l := b.e.lockLink(st.Peer)
	defer l.mu.Unlock()
	l.before.comes(s)
	for i := range st.Log {
		m := &st.Log[i]
		x := l.newEntry(s)
		x.header, x.body = m.Header, m.Body
		x.header.Epoch = b.e.Epoch()
		x.env = wire.Envelope{Length: uint64(len(m.Body))}
		l.keep(x)
	}
	l.logs(s, s.past.size)
	if l.repeat(s, s.acked); l.replay || l.queue.head != nil {
		l.want()
	}
	l.pump()
}
