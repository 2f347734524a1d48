package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// Lengths up to which a message is sent eagerly, with its header.
const (
	eagerPulled = 4 << 10   // at least, where larger bodies can be pulled, moved once: see tooLong
	eagerSent   = 256 << 10 // where they are sent after an Accept, and this one is written once; Config.Recorded where it is recorded, too
)

// A link is the way to one other process: a connection, or none yet or for the
// moment; what waits to be sent; and the log of what is sent and not stable.
type link struct {
	e       *Engine
	process int

	attention release.Bool // there may be something to do for pump; set while mu is held
	unheld    atomic.Int64 // bytes of unexpected messages that came through it
	pressDue  atomic.Bool  // unheld crossed a bound: tell the peer

	mu         lock.Mutex // guards what follows, up to the receiving half
	conn       transport.Conn
	puller     transport.Puller // conn, if it is one
	stable     bool             // conn.Stable()
	keeps      bool             // messages are kept until acknowledged,
	replay     bool             //   or until a snapshot covers them
	eager      int              // up to where every body goes with its header: see tooLong
	sent       uint64           // bytes handed to the link
	generation uint32           // of conn, or of the last one
	dialing    bool             // this process dials the other
	wanted     bool             // Connect was called and has not answered
	broken     error            // a Send met it; the next poll takes the link down

	queue   entryQueue // not sent yet
	bulk    []*entry   // accepted: their bodies are sent as Data, one after the other
	records []*entry   // records that were sent again, as Offers, and are not answered
	ctl     ctlQueue
	stuck   stuckLane // whose head was answered ErrFull
	kept    int       // entries that are kept
	logged  int       // cost of those, and of what streams have in their past
	saveAt  int       // when it is that much, a snapshot is asked for
	pressed bool      // the peer wants no eager messages
	press   bool      // we told it so
	free    *entry    // linked by qnext
	chunks  freeChunks
	witness Ledger // nil: what is sent waits for none
	pulling []pull // to be started by who polls

	scratch     [wire.HeaderLen]byte // what is being sent; a field so that Send does not allocate it
	bulkScratch [wire.HeaderLen]byte
	envScratch  [wire.EnvelopeLen]byte
	parts       []*op            // receives whose bodies come as Data
	lender      transport.Lender // conn, if it lends

	// What messages do not need.
	tried               uint32    // generation with which this process dials, or dialed last
	fenced              bool      // the other is refused
	held                bool      // pump was left with something that waits for the witness
	heldSince           time.Time // when that began
	why                 error     // the last connection was lost
	resent              uint64    // messages that were queued again, since a connection broke or was left
	before              counts    // of streams that are no more, or were elsewhere
	drained, pings      uint64    // how often pump was left with nothing; Pings sent
	peerPace, peerPaces uint64    // what the last Ping said, and how many did

	// The receiving half, guarded by Engine.polling.
	lanes      [2]incoming
	last       *stream   // of the last message: most are of the same one,
	lastBy     uint32    //   as of then, in Engine.placings
	dirty      []*stream // whose acks the peer has not been told
	owedBytes  int       // cost of what it has not been told
	got        uint64    // bytes that arrived
	ackSoon    bool      // the peer waits to be told
	owesSum    bool      // the sum of the last message is not taken yet
	starting   []pull
	early      []*early // messages by a map that is not known here yet
	earlyBytes int
	lagged     uint32        // the newest map heard of here when Behind was told of the peer
	departs    []wire.Header // Departs of ranks that the peer wants to let go, when what is half sent to them has been
	retracts   []wire.Header // of messages to ranks that do again what they did before
	barred     bool          // the peer's memory may not be read any more
	pulls      []*op         // under way, by id
	freePulls  []uint32
	bad        error          // what the peer did that cannot be
	heard      release.Uint64 // grows with what arrives over a connection that is not stable; read by others
}

type stuckLane uint8

const (
	stuckNone stuckLane = iota
	stuckCtl
	stuckQueue
)

func newLink(e *Engine, process int) *link {
	return &link{e: e, process: process, keeps: e.cfg.Keep, replay: e.cfg.Replay, saveAt: e.cfg.SaveBytes, eager: eagerPulled,
		chunks: freeChunks{most: e.cfg.LogBytes, slabs: &e.slabs, spill: e.cfg.Spill}}
}

// sendNow sends body for b's rank if that can be done at once. flush: the caller
// will not soon send more.
func (l *link) sendNow(b *Box, m Match, body []byte, flush bool) bool {
	s := b.streams.at(m.Peer)
	l.mu.Lock()
	if len(body) > l.eager && l.tooLong(len(body)) || l.queue.head != nil || l.stuck != stuckNone || l.ctl.n > 0 || l.conn == nil || l.pressed || l.e.peers[m.Peer].link.Load() != l {
		l.mu.Unlock()
		return false
	}
	sent := false
	if l.firmLocked() {
		wire.PutEager(l.scratch[:], m.Check, m.Context, b.rank, m.Peer, m.Tag, topology.Epoch(l.e.epoch.Load()), s.sent+1)
		err := l.conn.Send(transport.Message{Header: l.scratch[:], Body: body, Last: flush})
		switch sent = err == nil; {
		case sent:
			s.sent++
			l.sent += uint64(len(body))
		case !errors.Is(err, transport.ErrFull):
			l.broken = err
		case !l.stable:
			l.queueBegun(s, b, m, body)
			sent = true
		}
	} else {
		sent = l.sendKept(s, b, m, body, flush)
	}
	if sent && !l.stable {
		l.flush(flush)
	}
	l.mu.Unlock()
	return sent
}

// queueBegun queues a message that the connection took no more than a part of: it must be the
// next in its lane. So it has a body of its own, and is sent as far as its sender cares.
func (l *link) queueBegun(s *stream, b *Box, m Match, body []byte) {
	l.queueOwn(s, b, m, body, wire.Eager)
	l.met(transport.ErrFull, stuckQueue)
}

// queueOwn queues the next message of s, with a body of its own, for which nobody waits.
func (l *link) queueOwn(s *stream, b *Box, m Match, body []byte, kind wire.Kind) {
	x := l.newEntry(s)
	l.number(&x.header, s, b, m, kind)
	s.sent++
	l.sent += uint64(len(body))
	l.own(x, body)
	l.enqueue(x)
}

// sendKept is sendNow where what is sent is kept.
func (l *link) sendKept(s *stream, b *Box, m Match, body []byte, flush bool) (sent bool) {
	l.forgetSettled(s, s.sent)
	switch {
	case l.full():
	case b.mayAskBack(m.Peer, s.sent+1): // it is to be an offer
	case l.recordsLocked(len(body)):
		l.sendRecorded(s, b, m, body, flush)
		return true
	case !flush && len(body) > l.copyMost():
	case l.fits(logCost(len(body))):
		x := l.newEntry(s)
		l.number(&x.header, s, b, m, wire.Eager)
		s.sent++
		l.sent += uint64(len(body))
		x.body = body // until it has left: the copy is made while it is on its way
		l.keep(x)
		err := l.transmit(x, flush)
		l.own(x, body)
		if err != nil {
			l.enqueue(x)
			l.met(err, stuckQueue)
		}
		return true
	}
	return false
}

// sendRecorded sends body and records it, now or as soon as the connection takes it.
func (l *link) sendRecorded(s *stream, b *Box, m Match, body []byte, last bool) {
	seq := s.sent + 1
	wire.PutEager(l.scratch[:], m.Check, m.Context, b.rank, m.Peer, m.Tag, topology.Epoch(l.e.epoch.Load()), seq)
	ack := uint64(0)
	if !l.stable {
		ack = s.acks.Get()
		wire.PutAck(l.scratch[:], ack)
	}
	held := !l.may(l.needs())
	var err error
	if !held {
		err = l.conn.Send(transport.Message{Header: l.scratch[:], Body: body, Last: last})
	}
	s.sent = seq
	l.sent += uint64(len(body))
	l.record(s, seq, body)
	if held || err != nil {
		h, body := s.past.newest(len(body))
		h.Ack = ack // it is tried again as it is
		l.enqueue(l.repetition(s, h, body))
	}
	if err != nil {
		l.met(err, stuckQueue)
	}
}

// sendLater queues what cannot or may not go at once. It is in no hurry. False if
// the rank is not there any more.
func (l *link) sendLater(b *Box, m Match, body []byte, mode Mode) (Request, bool) {
	s := b.streams.at(m.Peer)
	b.mu.Lock()
	o := b.newOpLocked(KindSend, m, body)
	b.mu.Unlock()
	r := Request{op: o, use: o.now()}
	l.mu.Lock()
	if l.e.peers[m.Peer].link.Load() != l {
		l.mu.Unlock()
		b.free(o)
		return Request{}, false
	}
	if l.e.peers[m.Peer].failed.Load() {
		l.mu.Unlock()
		o.err = ErrProcFailed
		o.finish()
		return r, true
	}
	kind := wire.Eager
	if mode == Synchronous || len(body) > l.eager && l.tooLong(len(body)) || l.pressed || b.mayAskBack(m.Peer, s.sent+1) {
		kind = wire.Offer
	}
	x := l.newEntry(s)
	l.number(&x.header, s, b, m, kind)
	s.sent++
	l.sent += uint64(len(body))
	x.body, x.op, o.entry = body, o, x
	if answer, asked := b.asked(m.Peer, x.header.Seq); asked && answer == AskedInTime {
		l.disown(x)
	}
	x.env = wire.Envelope{Length: uint64(len(body))}
	l.enqueue(x)
	lent := kind == wire.Eager && len(body) > l.copyMost() // then others may follow, to leave with it
	if l.pumpAnd(!lent); lent && l.conn != nil && !l.stable {
		l.flush(false)
	}
	l.mu.Unlock()
	return r, true
}

// notify queues what says that b's rank has abandoned what m matches. False if the rank is not
// there any more.
func (l *link) notify(b *Box, m Match, cause []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := &l.e.peers[m.Peer]
	if to.link.Load() != l {
		return false
	}
	if to.failed.Load() {
		return true
	}
	l.queueOwn(b.streams.at(m.Peer), b, m, cause, wire.Abandon)
	l.pump()
	return true
}

// tooLong tells whether a body of n bytes, more than l.eager, should not go with its header.
func (l *link) tooLong(n int) bool { return l.puller == nil || l.puller.PrefersPull(n) }

// number makes h the header of the next message of s.
func (l *link) number(h *wire.Header, s *stream, b *Box, m Match, kind wire.Kind) {
	*h = wire.Header{Kind: kind, Check: m.Check, Context: m.Context, Source: b.rank, Dest: m.Peer, Tag: m.Tag,
		Epoch: topology.Epoch(l.e.epoch.Load()), Seq: s.sent + 1}
}

func (l *link) enqueue(x *entry) {
	x.queued = true
	x.needs = max(x.needs, l.needs())
	l.queue.push(x)
	l.want()
}

// want has a connection made if there is none, and the queue looked at.
func (l *link) want() {
	if l.conn == nil && !l.wanted && !l.fenced && l.broken == nil {
		l.wanted = true
		l.e.cfg.Connect(l.process)
	}
	l.attend()
}

// attend has the next poll call pump.
func (l *link) attend() {
	l.attention.Set(true)
	l.e.rouse()
}

// transmit hands x to the connection. last: see transport.Message.
func (l *link) transmit(x *entry, last bool) error {
	m := transport.Message{Header: l.scratch[:], Body: x.body, Last: last}
	if l.stuck != stuckQueue && l.keeps && !l.stable {
		x.header.Ack = x.stream.acks.Get()
	}
	x.header.Put(l.scratch[:])
	if x.header.Kind == wire.Offer {
		if l.puller != nil && x.puller == nil {
			if x.env.Ticket, x.env.Fetch = l.puller.Offer(x.body); x.env.Fetch {
				x.puller = l.puller
			}
		}
		if l.replay && x.env.Sum == 0 {
			x.env.Sum = sumOf(&x.header, x.body)
		}
		x.env.Put(l.envScratch[:])
		m.Body = l.envScratch[:]
	}
	if x.lent && l.lender != nil {
		return l.lender.SendLasting(m)
	}
	return l.conn.Send(m)
}

// met notes what a Send of the lane's head answered.
func (l *link) met(err error, lane stuckLane) {
	if errors.Is(err, transport.ErrFull) {
		l.stuck = lane
	} else {
		l.broken = err
	}
	l.attend()
}

// flush sends what a connection that is not stable holds back: now, or soon if
// the caller is likely to send more.
func (l *link) flush(now bool) {
	if now {
		if err := l.conn.Flush(); err != nil {
			l.broken = err
			l.attend()
		}
		return
	}
	l.attend()
	l.e.flushSoon()
}

// pump sends what can be sent now of what waits, in order: control messages
// before others, and neither behind bodies in parts. True if the connection would
// take more.
func (l *link) pump() (goesOn bool) { return l.pumpAnd(true) }

// pumpAnd is pump for a caller who may want to flush later.
func (l *link) pumpAnd(flush bool) (goesOn bool) {
	if l.conn == nil || l.broken != nil {
		return false
	}
	l.held = false
	for l.broken == nil && l.pumpOne() {
	}
	if !l.held {
		l.heldSince = time.Time{}
	}
	goesOn = l.pumpBulk()
	if !l.stable && flush {
		l.flush(true)
	}
	more := l.held || l.broken != nil || l.stuck != stuckNone || l.ctl.size() > 0 || len(l.bulk) > 0 || len(l.pulling) > 0 || len(l.retracts) > 0
	l.attention.Set(more)
	if !more && l.queue.head == nil {
		l.drained++
	}
	return goesOn
}

// pumpOne sends one control message or entry; false if none can go now.
func (l *link) pumpOne() bool {
	if l.stuck != stuckQueue && l.ctl.size() > 0 {
		m := l.ctl.head()
		if l.stuck != stuckCtl && !l.may(m.needs) {
			return false
		}
		m.header.Put(l.scratch[:])
		if err := l.conn.Send(transport.Message{Header: l.scratch[:], Body: m.body[:m.n]}); err != nil {
			l.met(err, stuckCtl)
			return false
		}
		l.stuck = stuckNone
		l.ctl.pop()
		return true
	}
	x := l.queue.head
	if x == nil {
		return false
	}
	if (x.gone || x.repeats && x.header.Seq <= x.stream.acked) && l.stuck != stuckQueue {
		l.queue.pop()
		l.freeEntry(x)
		return true
	}
	if l.stuck != stuckQueue && !l.may(x.needs) {
		return false
	}
	if x.header.Kind == wire.Eager && l.tooLongLocked(len(x.body)) {
		l.offer(x)
	}
	if l.stuck != stuckQueue && !x.gone && x.header.Kind != wire.Offer && l.firmLocked() && x.stream.box.leaving.Load() {
		return false // it would be kept nowhere, follow the Depart, and could come behind what the rank sends from elsewhere
	}
	if x.unsent() && !l.admit(x) {
		return false
	}
	if err := l.transmit(x, false); err != nil {
		l.met(err, stuckQueue)
		return false
	}
	l.stuck = stuckNone
	l.queue.pop()
	x.queued = false
	switch {
	case x.gone:
		l.freeEntry(x)
	case x.retracting:
		l.retract(x)
	case x.repeats && x.header.Kind == wire.Offer:
		l.records = append(l.records, x) // its body is yet to be fetched
	case x.repeats:
		s, n := x.stream, x.header.Seq
		if l.freeEntry(x); l.firmLocked() && s.past.lent == 0 {
			l.acknowledged(s, n) // as below
		}
	case x.kept && x.header.Kind != wire.Offer && l.firmLocked():
		l.acknowledged(x.stream, x.header.Seq) // it was kept for another connection; over this one nobody acknowledges it
	case !x.kept:
		if !l.firmLocked() {
			l.record(x.stream, x.header.Seq, x.body)
		}
		o := x.op
		l.freeEntry(x)
		if o != nil { // otherwise it came with a capsule
			o.finish()
		}
	}
	return true
}

// tooLongLocked tells whether a body of n bytes cannot go with its header: the connection takes less,
// or there is never room for it in the log.
func (l *link) tooLongLocked(n int) bool {
	return n > l.conn.MaxBody() || !l.firmLocked() && !l.replay && logCost(n) > l.e.cfg.LogBytes
}

// offer has x offered, though it was to be sent with its body, or was sent so over another
// connection, which took longer ones. A peer that has it answers the offer with Done.
func (l *link) offer(x *entry) {
	if x.kept {
		l.unlogs(x.cost()) // as in keep
	}
	x.header.Kind, x.header.Flags, x.lent = wire.Offer, x.header.Flags&^wire.AckSoon, false
	x.env = wire.Envelope{Length: uint64(len(x.body))}
	if x.kept {
		x.stream.findOpen()
	}
}

// admit readies x to be sent for the first time: it puts it into the log where
// there is one. False if the log is full.
func (l *link) admit(x *entry) bool {
	l.forgetSettled(x.stream, x.header.Seq-1)
	if l.full() {
		return false
	}
	if x.header.Kind == wire.Offer {
		l.keep(x)
		return true
	}
	if l.firmLocked() || l.recordsLocked(len(x.body)) {
		return true
	}
	if !l.fits(x.cost()) {
		return false
	}
	x.lent = x.op != nil
	x.header.Flags |= wire.AckSoon
	l.keep(x)
	return true
}

// bulkAtOnce is how many bytes of bodies in parts are sent before others may have
// the link.
const bulkAtOnce = 1 << 20

// pumpBulk sends bodies in parts, each as large as the connection takes. True if
// the connection would take more.
func (l *link) pumpBulk() (more bool) {
	for sent := uint64(0); len(l.bulk) > 0 && l.broken == nil; {
		if sent >= bulkAtOnce {
			return true
		}
		x := l.bulk[0]
		n := min(x.end-x.off, uint64(l.conn.MaxBody()))
		h := wire.Header{Kind: wire.Data, Source: x.header.Source, Dest: x.header.Dest, Epoch: topology.Epoch(l.e.epoch.Load()), Seq: x.header.Seq, Ack: x.off}
		h.Put(l.bulkScratch[:])
		err := l.conn.Send(transport.Message{Header: l.bulkScratch[:], Body: x.body[x.off : x.off+n], Bulk: true})
		if err != nil {
			if !errors.Is(err, transport.ErrFull) {
				l.broken = err
			}
			return false
		}
		sent += n
		if x.off += n; x.off == x.end {
			l.bulk = slices.Delete(l.bulk, 0, 1)
			x.streaming = false
		}
	}
	return false
}

// control queues a message about a stream and sends it if it can go now.
func (l *link) control(h wire.Header, body []byte) {
	h.Epoch = topology.Epoch(l.e.epoch.Load())
	needs := uint64(0)
	if awaited(&h) {
		needs = l.needs()
	}
	l.ctl.push(h, body, needs)
	l.attend()
}

// disown has the send of x, which is or will be given back, end when it is asked back.
func (l *link) disown(x *entry) {
	o := x.op
	l.own(x, x.body)
	x.op, o.entry, o.only = nil, nil, never
}

// finished: the receiver of an Offer has its body, or gave it back.
func (l *link) finished(s *stream, seq uint64, flags uint8) {
	returned := flags&wire.Retracted != 0
	if i := l.offeredRecord(s, seq); i >= 0 && !l.records[i].streaming {
		l.freeEntry(l.records[i]) // the past has it
		l.records = slices.Delete(l.records, i, i+1)
	}
	x := s.offer(seq)
	if x == nil {
		if returned && seq <= s.sent { // a repetition, after the connection was made again
			l.understood(s, seq)
		}
		return
	}
	if x.streaming { // a part of what it is waiting for may have left
		l.refuse(fmt.Errorf("message %d of rank %d is done before its body was sent", seq, s.box.rank))
		return
	}
	o := x.op
	again := o != nil && returned && !x.retracting // it was asked for in an earlier life, and is about to be
	if _, asked := s.box.asked(s.peer, seq); again && !asked {
		l.refuse(fmt.Errorf("gave back message %d of rank %d, which nobody has asked for", seq, s.box.rank))
		return
	}
	if o != nil && (returned || x.retracting) {
		answer := AskedTooLate
		if returned {
			answer = AskedInTime
		}
		l.mu.Unlock() // a Box's lock comes first
		s.box.learns(s.peer, seq, answer)
		l.mu.Lock()
		if x = s.offer(seq); x == nil || x.op != o {
			return
		}
	}
	x.withdraw()
	if again && !x.retracting {
		l.disown(x)
		o = nil
	}
	if l.replays(s) { // who takes its receiver's place finds out the same
		if o != nil { // the program gets its buffer back
			l.own(x, x.body)
			x.op = nil
		}
		x.done, x.retracting = true, false
		s.closed(x)
		l.logs(s, x.cost())
	} else {
		if o != nil {
			x.op, x.body = nil, nil
		}
		l.unkeep(x)
	}
	if returned {
		if o != nil {
			o.err = ErrCancelled
		}
		l.understood(s, seq)
	}
	if o != nil {
		o.entry = nil
		o.finish()
	}
}

// understood tells the peer that it is known here what it gave back.
func (l *link) understood(s *stream, seq uint64) {
	if l.ctl.size() >= answersMost {
		l.refuse(fmt.Errorf("it gives back again and again what it has given back: %d answers wait", l.ctl.size()))
		return
	}
	l.control(wire.Header{Kind: wire.Retract, Flags: wire.Retracted, Source: s.box.rank, Dest: s.peer, Seq: seq}, nil)
}

// offeredRecord is where in l.records message seq of s is; -1: nowhere.
func (l *link) offeredRecord(s *stream, seq uint64) int {
	return slices.IndexFunc(l.records, func(x *entry) bool { return x.stream == s && x.header.Seq == seq })
}

// endRecords ends the offers in l.records for which of says so. None of these is in l.bulk.
func (l *link) endRecords(of func(x *entry) bool) {
	l.records = slices.DeleteFunc(l.records, func(x *entry) bool {
		ends := of(x)
		if ends {
			l.freeEntry(x)
		}
		return ends
	})
}

// returns notes that message seq of the peer is given back, and tells it.
func (l *link) returns(s *stream, seq uint64) {
	s.gaveBack(seq)
	l.control(wire.Header{Kind: wire.Done, Flags: wire.Retracted, Source: s.peer, Dest: s.box.rank, Seq: seq}, nil)
}

// withdraw ends the offer of x's body, if it is one.
func (x *entry) withdraw() {
	if x.puller != nil {
		x.puller.Withdraw(x.env.Ticket)
		x.puller, x.env.Fetch = nil, false
	}
}

// accepted: the receiver of an Offer wants a span of its body.
func (l *link) accepted(s *stream, seq uint64, span wire.Span) {
	x := s.offer(seq)
	if i := l.offeredRecord(s, seq); i >= 0 {
		x = l.records[i]
	}
	if x == nil {
		return
	}
	if span.End > uint64(len(x.body)) || span.Offset == span.End {
		l.refuse(fmt.Errorf("accepted bytes %d to %d of a message of %d bytes", span.Offset, span.End, len(x.body)))
		return
	}
	if x.streaming {
		l.refuse(fmt.Errorf("message %d of rank %d is accepted again before its body was sent", seq, s.box.rank))
		return
	}
	x.off, x.end, x.streaming = span.Offset, span.End, true
	l.bulk = append(l.bulk, x)
	l.attend()
}

// retract asks the receiver of the Offer x for it back.
func (l *link) retract(x *entry) {
	l.control(wire.Header{Kind: wire.Retract, Source: x.header.Source, Dest: x.header.Dest, Seq: x.header.Seq}, nil)
}

// flushSoon has what Isend held back sent within a fraction of a millisecond,
// should the program not wait for anything before.
func (e *Engine) flushSoon() { e.flushIn(soon) }

const soon = 50 * time.Microsecond

func (e *Engine) flushIn(d time.Duration) {
	if e.flushDue.Load() || e.flushDue.Swap(true) {
		return
	}
	e.flushTimer.Reset(d)
}

func (e *Engine) flushAll() {
	e.flushDue.Store(false)
	for _, l := range *e.active.Load() {
		l.mu.Lock()
		l.pump()
		l.mu.Unlock()
	}
}
