package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// incoming is a message between Place and Arrived, in one lane of a link.
type incoming struct {
	header  wire.Header
	length  int
	stream  *stream
	op      *op      // its receive, or
	arrival *arrival // the room it has until there is one
	placed  bool
	odd     bool   // it is one of these:
	early   *early //   about a map that is not known here yet
	stale   bool   //   about a rank that was elsewhere before
	back    bool   //   given back in an earlier life
	late    []byte //   offered once, and comes as an eager message now, with this body
	body    [maxControl]byte
}

// begins readies in for a message of n bytes.
func (in *incoming) begins(n int) {
	in.op, in.arrival, in.stream, in.length, in.placed = nil, nil, nil, n, true
	if in.odd {
		in.odd, in.early, in.stale, in.back, in.late = false, nil, false, false, nil
	}
}

// stales has in's message count for nothing.
func (in *incoming) stales() { in.odd, in.stale = true, true }

// maxControl is the longest body of a control message.
const maxControl = 1 << 10

var errTwoAtOnce = errors.New("a message begins before the one before it in its lane has ended")

// Place implements transport.Receiver: it matches the message, so that its body
// is written where the program wants it.
func (l *link) Place(header []byte, n int) []byte {
	in := &l.lanes[0]
	if wire.Kind(header[0]) == wire.Data {
		in = &l.lanes[1]
	}
	h := &in.header
	if in.placed || l.bad != nil { // the lane's message would never end, or nothing counts any more
		l.refuse(errTwoAtOnce)
		return nil
	}
	in.begins(n)
	if err := h.Parse(header); err != nil {
		l.refuse(err)
		return nil
	}
	if h.Epoch == 0 {
		l.refuse(fmt.Errorf("%v of no map", h.Kind))
		return nil
	}
	if h.Kind != wire.Eager {
		l.e.shut()
	}
	switch h.Kind {
	case wire.Eager, wire.Offer, wire.Abandon:
		return l.placeNumbered(in, n)
	case wire.Data:
		return l.placeData(in, n)
	}
	if n > maxControl {
		l.refuse(fmt.Errorf("%v of %d bytes", h.Kind, n))
		return nil
	}
	if h.Kind == wire.Retract { // its Offer may wait for a map, and it is sent once
		if _, at := l.stream(h.Source, h.Dest, h.Epoch); at == ahead {
			return l.placeEarly(in, n)
		}
	}
	return in.body[:n]
}

func (l *link) placeNumbered(in *incoming, n int) []byte {
	h := &in.header
	s, at := l.stream(h.Source, h.Dest, h.Epoch)
	switch at {
	case here:
	case ahead:
		return l.placeEarly(in, n)
	case before:
		in.stales()
		return nil
	default:
		return nil
	}
	if !l.hears(s, h.Ack) {
		return nil
	}
	in.stream = s
	if h.Seq > s.got+1 {
		l.refuse(fmt.Errorf("%v %d of rank %d to rank %d comes after %d", h.Kind, h.Seq, h.Source, h.Dest, s.got))
		return nil
	}
	if h.Kind != wire.Eager {
		if n > maxControl || h.Kind == wire.Offer && n != wire.EnvelopeLen {
			l.refuse(fmt.Errorf("%v of %d bytes", h.Kind, n))
			return nil
		}
		return in.body[:n]
	}
	if h.Seq <= s.got { // a repetition
		return l.placeLate(in, n)
	}
	if slices.Contains(s.returned, h.Seq) {
		in.odd, in.back = true, true
		return nil
	}
	b := s.box
	l.e.open(b)
	if o := b.posted.match(h.Context, h.Source, h.Tag, h.Seq); o != nil {
		in.op = o
		return o.buf[:min(n, len(o.buf))]
	}
	a := b.newArrivalLocked(h, n)
	b.hold(a, n)
	in.arrival = a
	return a.body
}

// hears notes that the peer has all of s up to n; false if that cannot be.
func (l *link) hears(s *stream, n uint64) bool {
	if n > s.acked { // s.acked only grows, and only here and in Ack: by who polls
		l.e.shut()
		l.mu.Lock()
		l.acknowledged(s, n)
		l.mu.Unlock()
	}
	return l.bad == nil
}

// open locks b.mu for the eager messages of this poll that are for b: most come
// in a row. shut unlocks it, at the end of the poll and before anything else is
// done.
func (e *Engine) open(b *Box) {
	if e.opened != b {
		e.reopen(b)
	}
}

//go:noinline
func (e *Engine) reopen(b *Box) {
	e.shut()
	b.mu.Lock()
	e.opened = b
}

func (e *Engine) shut() {
	if e.opened != nil {
		e.opened.mu.Unlock()
		e.opened = nil
	}
}

func (l *link) placeData(in *incoming, n int) []byte {
	h := &in.header
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.parts {
		if o.seq == h.Seq && o.status.Source == h.Source && o.box.rank == h.Dest {
			if h.Offset() != o.got || uint64(n) > o.want-o.got {
				l.refuse(fmt.Errorf("%d bytes at %d of a body of which %d to %d are due", n, h.Offset(), o.got, o.want))
				return nil
			}
			in.op = o
			return o.buf[o.got : o.got+uint64(n)]
		}
	}
	if _, at := l.stream(h.Source, h.Dest, h.Epoch); at == here {
		l.refuse(fmt.Errorf("data of message %d of rank %d to rank %d, which was not accepted", h.Seq, h.Source, h.Dest))
	}
	in.stales()
	return nil
}

// Where two ranks are that a message is about.
type whereabouts uint8

const (
	nowhere whereabouts = iota // not where the message says, and never were: the link is refused
	here                       // the one with the peer, the other in this process
	before                     // they were, and one has left
	ahead                      // they may be, in a map that is not known here yet; there may be one before the newest
)

// stream is the stream of a rank of the peer and one of ours, by a map of that
// epoch or later; nil unless both are where the peer says. Polling is held.
func (l *link) stream(theirs, ours topology.Rank, epoch topology.Epoch) (*stream, whereabouts) {
	if s := l.last; s != nil && s.peer == theirs && s.box.rank == ours && l.lastBy == l.e.placings {
		return s, here
	}
	return l.find(theirs, ours, epoch)
}

// find is stream of what is not the one before.
func (l *link) find(theirs, ours topology.Rank, epoch topology.Epoch) (*stream, whereabouts) {
	e := l.e
	if int(theirs) < len(e.peers) && int(ours) < len(e.peers) {
		from, to := &e.peers[theirs], &e.peers[ours]
		b := to.box.Load()
		switch {
		case from.link.Load() == l && b != nil && !b.gone:
			s := b.streams.at(theirs)
			if s.awaitsReturned() {
				return s, here
			}
			l.last, l.lastBy = s, e.placings
			return s, here
		case uint32(epoch) > e.whole.Load():
			e.misses()
			return nil, ahead
		case slices.Contains(to.past, nil):
			l.lags()
			return nil, before
		case slices.Contains(from.past, l):
			return nil, before
		}
	}
	l.refuse(fmt.Errorf("message of rank %d to rank %d", theirs, ours))
	return nil, nowhere
}

// streamOf is the stream that a message without a number is about; nil if there is
// nothing to do about it, or the link was refused.
func (l *link) streamOf(theirs, ours topology.Rank, epoch topology.Epoch) *stream {
	s, _ := l.stream(theirs, ours, epoch)
	return s
}

// refuse notes that the peer sent what it must not.
func (l *link) refuse(err error) {
	if l.bad == nil {
		l.bad = err
	}
}

// Arrived implements transport.Receiver.
func (l *link) Arrived(header, body []byte) {
	in := &l.lanes[0]
	if wire.Kind(header[0]) == wire.Data {
		in = &l.lanes[1]
	}
	if l.bad != nil {
		return // lost gives back what was placed
	}
	in.placed = false
	if in.odd {
		switch {
		case in.early != nil:
			m := in.early
			l.early = append(l.early, m)
			l.earlyBytes += len(m.body) + wire.HeaderLen
			in.early = nil
			if m.learned != l.e.learned { // the map has come while this was half here
				l.arrivedEarly()
			}
			return
		case in.stale:
			return
		case in.back:
			if l.replay {
				l.remember(in.stream, &in.header, nil)
			}
			l.arrivedReturned(in.stream, &in.header, in.length)
			return
		}
	}
	switch h := &in.header; h.Kind {
	case wire.Eager:
		l.arrivedEager(in)
	case wire.Offer:
		l.arrivedOffer(in)
	case wire.Data:
		l.arrivedData(in, len(body))
	case wire.Abandon:
		l.arrivedAbandon(in, body)
	default:
		l.arrivedControl(h, body)
	}
}

// Receive implements transport.Receiver. A message that is the next in the stream of the one
// before is matched and copied at once; others go the longer way. Who has what was asked for last
// will ask for the next in a moment; but who shares a core lets others run until then.
func (l *link) Receive(header, body []byte) (more bool) {
	in, s := &l.lanes[0], l.last
	if s == nil || in.placed || wire.Kind(header[0]) != wire.Eager || in.header.Parse(header) != nil || l.bad != nil {
		return transport.Receive(l, header, body)
	}
	h := &in.header
	if s.peer != h.Source || s.box.rank != h.Dest || l.lastBy != l.e.placings || h.Epoch == 0 || h.Seq != s.got+1 || !l.hears(s, h.Ack) {
		return transport.Receive(l, header, body)
	}
	b := s.box
	l.e.open(b)
	if o := b.posted.match(h.Context, h.Source, h.Tag, h.Seq); o != nil {
		n := copy(o.buf, body)
		l.receivedEager(s, h, len(body), o.buf[:n])
		o.arrived(h, len(body))
		more := o.order != b.posted.order || l.e.spin.yieldOS
		o.finishLocked()
		return more
	}
	a := b.newArrivalLocked(h, len(body))
	b.hold(a, len(body))
	copy(a.body, body)
	l.receivedEager(s, h, len(body), a.body)
	l.queueLocked(b, a)
	return true
}

// receivedEager notes that the eager message of h, of n bytes, is here, or as much of it as its
// receive has room for.
func (l *link) receivedEager(s *stream, h *wire.Header, n int, here []byte) {
	if h.Flags&wire.AckSoon != 0 {
		l.ackSoon, l.e.ackSoon = true, true
	}
	if l.replay {
		if len(here) < n {
			here = nil
		}
		l.remember(s, h, here)
	}
	l.received(s, h.Seq, n)
}

// queueLocked has a, which came over l, wait for its receive. b.mu is held.
func (l *link) queueLocked(b *Box, a *arrival) {
	a.via = l
	l.unexpectedBytes(a.cost())
	b.insertLocked(a)
}

func (l *link) arrivedEager(in *incoming) {
	h, s := &in.header, in.stream
	if h.Seq <= s.got {
		if h.Flags&wire.AckSoon != 0 {
			l.ackSoon, l.e.ackSoon = true, true
		}
		if in.late != nil {
			l.compare(s, h, sumOf(h, in.late))
			l.arrivedLate(in)
		}
		l.repeated(s, in.length)
		return
	}
	l.receivedEager(s, h, in.length, in.here())
	b, a := s.box, in.arrival
	l.e.open(b)
	if o := in.op; o != nil {
		o.arrived(h, in.length)
		o.finishLocked()
		return
	}
	if o := b.posted.match(h.Context, h.Source, h.Tag, h.Seq); o != nil {
		if len(a.body) <= len(a.small) {
			b.takeLocked(o, a)
			return
		}
		l.e.shut()
		b.take(o, a)
		return
	}
	l.queueLocked(b, a)
}

// here is the body that has arrived, or as much of it as its receive has room for.
func (in *incoming) here() []byte {
	if in.op == nil {
		return in.arrival.body
	}
	return in.op.buf[:min(in.length, len(in.op.buf))]
}

func (l *link) arrivedOffer(in *incoming) {
	h, s := &in.header, in.stream
	var env wire.Envelope
	if err := env.Parse(in.body[:in.length]); err != nil {
		l.refuse(err)
		return
	}
	env.Fetch = env.Fetch && !l.barred
	b := s.box
	if h.Seq <= s.got {
		l.compare(s, h, env.Sum)
		l.offeredAgain(s, h, &env)
		return
	}
	if l.replay {
		s.sums.add(h.Seq, env.Sum)
	}
	if slices.Contains(s.returned, h.Seq) {
		l.arrivedReturned(s, h, int(env.Length))
		return
	}
	l.received(s, h.Seq, 0)
	l.mu.Lock()
	s.offers.add(h.Seq)
	l.mu.Unlock()
	b.mu.Lock()
	if o := b.posted.match(h.Context, h.Source, h.Tag, h.Seq); o != nil {
		b.mu.Unlock()
		if env.Fetch && env.Length > 0 && len(o.buf) > 0 && l.puller != nil {
			l.fetched(o, h, &env)
			l.startPull(o, env.Ticket)
			return
		}
		l.fetch(o, h, &env, l.generation, false)
		return
	}
	a := b.newArrivalLocked(h, int(env.Length))
	a.link, a.env, a.since = l, env, l.generation
	b.insertLocked(a)
	b.mu.Unlock()
}

// arrivedReturned is told of a message that an earlier life of its receiver has given back.
func (l *link) arrivedReturned(s *stream, h *wire.Header, n int) {
	l.received(s, h.Seq, 0)
	b := s.box
	l.e.shut()
	b.mu.Lock()
	b.givenLocked(h, n)
	b.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.returns(s, h.Seq)
	l.pump()
}

// offeredAgain answers an Offer that was here before the connection broke: if
// it was answered with Done, that was lost.
func (l *link) offeredAgain(s *stream, h *wire.Header, env *wire.Envelope) {
	b := s.box
	b.mu.Lock()
	if a := b.unexpected.numbered(h.Source, h.Seq); a != nil && a.link != nil {
		a.link, a.env, a.since, a.awaits = l, *env, l.generation, false
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.offers.has(h.Seq) {
		if i := l.awaiting(b, h); i >= 0 {
			o := l.parts[i]
			o.awaits = false
			if !env.Fetch || l.puller == nil {
				l.accept(o)
				return
			}
			l.parts = slices.Delete(l.parts, i, i+1)
			l.pulling = append(l.pulling, pull{o, env.Ticket})
			l.attend()
		} else {
			s.offeredAgain(offer{seq: h.Seq, env: *env, since: l.generation}) // its receive may be about to look for it, or a probe has it
		}
		return
	}
	if l.ctl.size() >= answersMost {
		l.refuse(fmt.Errorf("it asks again and again for answers that it does not read: %d wait", l.ctl.size()))
		return
	}
	done := wire.Header{Kind: wire.Done, Source: h.Source, Dest: h.Dest, Seq: h.Seq}
	if slices.Contains(s.returned, h.Seq) {
		done.Flags = wire.Retracted
	}
	l.control(done, nil)
}

func (l *link) arrivedData(in *incoming, n int) {
	o := in.op
	l.got += uint64(n)
	l.heard.Set(l.heard.Get() + 1)
	if o.got += uint64(n); o.got < o.want {
		return
	}
	l.mu.Lock()
	for i, p := range l.parts {
		if p == o {
			l.parts = append(l.parts[:i], l.parts[i+1:]...)
			break
		}
	}
	l.answer(o)
	l.mu.Unlock()
	o.finish()
}
