package engine

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// A Box is the end of one rank of this process: what it waits for, what has
// come for it, and its streams.
type Box struct {
	e    *Engine
	rank topology.Rank

	streams streamTable // has its own synchronisation

	mu         lock.Mutex // guards what follows
	posted     posted
	unexpected unexpected
	probes     opList     // that wait for an arrival
	deferred   opList     // tasks that nobody has asked for
	taken      []*Message // by probes, and not received
	ops        *op        // free, linked by next
	live       int        // ops in use, without lone
	arrivals   *arrival
	narrivals  int
	waits      []*wait                    // calls that sleep
	names      map[uint32]string          // of contexts
	members    map[uint32][]topology.Rank // of contexts, where that is known
	abandoned  abandoned
	witness    Witness // nil: nobody
	choices    choices
	turns      turns // has its own lock
	chunks     freeChunks
	gone       bool        // the rank has left the process
	leaving    atomic.Bool // it is about to. Written while polling is held

	lone    op                                       // of a call that waits for one message, and has no Request that others could know:
	busy    release.Bool                             //   it is in use. Taken while mu is held, and given back without
	trouble atomic.Bool                              // a rank has failed, or a communicator was revoked; set while mu is held
	revoked atomic.Pointer[map[uint32]topology.Rank] // from whom it was heard, by base; replaced as a whole while mu is held
}

// How many free arrivals a box keeps for later: so many, or its part of more. A stream may run that far ahead of
// its receives again and again.
const (
	keptArrivals      = 32
	keptArrivalsInAll = 512
)

func newBox(e *Engine, r topology.Rank) *Box {
	b := &Box{e: e, rank: r, chunks: freeChunks{most: e.cfg.LogBytes, slabs: &e.slabs, spill: e.cfg.Spill}}
	b.streams.init(b, len(e.peers))
	b.lone.init(b)
	return b
}

// Rank is the rank whose box it is.
func (b *Box) Rank() topology.Rank { return b.rank }

// Engine is the engine of its process.
func (b *Box) Engine() *Engine { return b.e }

// A Match says which messages a receive, a probe or a send is about.
type Match struct {
	Context uint32
	Peer    topology.Rank // destination of a send; source of a receive, or AnySource
	Tag     int32         // of a receive also AnyTag
	Check   uint16        // of collectives; 0 otherwise
}

// A Mode is MPI's mode of a send.
type Mode uint8

const (
	Standard    Mode = iota // done when the buffer can be used again
	Synchronous             // done when the receive has started
)

const opSlab = 8 // ops are made so many at once

// newOpLocked is an op to use.
func (b *Box) newOpLocked(kind Kind, m Match, buf []byte) *op {
	o := b.ops
	if o == nil {
		slab := make([]op, opSlab)
		for i := range slab {
			slab[i].init(b)
			if i > 0 {
				slab[i-1].next = &slab[i]
			}
		}
		o = &slab[0]
	}
	b.ops = o.next
	b.live++
	o.next = nil
	o.begin(kind, m, buf)
	return o
}

// loneLocked is newOpLocked for a call that waits for o alone.
func (b *Box) loneLocked(kind Kind, m Match, buf []byte) *op {
	if b.busy.Get() {
		return b.newOpLocked(kind, m, buf)
	}
	b.busy.Set(true)
	b.lone.begin(kind, m, buf)
	return &b.lone
}

// usedLocked is how many ops are in use.
func (b *Box) usedLocked() int {
	if b.busy.Get() {
		return b.live + 1
	}
	return b.live
}

// begin readies o for a use, which its state tells from earlier ones.
func (o *op) begin(kind Kind, m Match, buf []byte) {
	release.Store32(&o.state, (o.state|1)+3)
	o.kind, o.context, o.check, o.peer, o.tag, o.buf = kind, m.Context, m.Check, m.Peer, m.Tag, buf
	o.err, o.msg = nil, nil
	o.choice, o.only = 0, 0
	o.status = Status{}
	if o.wake.Load() != nil {
		o.wake.Store(nil)
	}
}

// expire ends the use of o: its result has been read, and copies of its
// request are stale.
func (o *op) expire() {
	release.Store32(&o.state, (o.state|1)+1)
	o.buf, o.entry, o.msg = nil, nil, nil
}

// freeLocked makes o free for another use.
func (b *Box) freeLocked(o *op) {
	o.expire()
	o.next, b.ops = b.ops, o
	b.live--
}

func (b *Box) free(o *op) {
	b.mu.Lock()
	b.freeLocked(o)
	b.mu.Unlock()
}

func (b *Box) newArrivalLocked(h *wire.Header, length int) *arrival {
	a := b.arrivals
	if a == nil {
		a = new(arrival)
	} else {
		b.arrivals = a.binNext
		b.narrivals--
		a.binNext = nil
	}
	a.header, a.length = *h, length
	return a
}

// hold gives a room for n bytes of body.
func (b *Box) hold(a *arrival, n int) {
	if n <= len(a.small) {
		a.body = a.small[:n]
	} else {
		a.body = b.e.bufs.get(n)
	}
}

func (b *Box) freeArrivalLocked(a *arrival) {
	if len(a.body) > len(a.small) {
		b.e.bufs.put(a.body)
	}
	a.body, a.sender, a.link, a.via, a.awaits = nil, nil, nil, nil, false
	if b.narrivals < keptArrivals || b.narrivals < keptArrivalsInAll/max(1, len(*b.e.boxes.Load())) {
		a.binNext, b.arrivals = b.arrivals, a
		b.narrivals++
	}
}

// insertLocked queues an arrival that no posted receive matched, and answers
// who probes for it: a Mprobe takes it away at once.
func (b *Box) insertLocked(a *arrival) {
	for o := b.probes.head; o != nil; {
		next := o.next
		if o.matches(a.header.Context, a.header.Source, a.header.Tag, a.header.Seq) {
			b.probes.remove(o)
			o.found(a)
			o.finishLocked()
			if o.kind == kindMprobe {
				return
			}
		}
		o = next
	}
	b.unexpected.add(a)
	a.queued = true
}

// found makes a the result of the probe o.
func (o *op) found(a *arrival) {
	o.status = Status{Source: a.header.Source, Tag: a.header.Tag, Bytes: a.length}
	o.seq = a.header.Seq
	if o.kind == kindMprobe {
		o.msg = a
	}
}

func (b *Box) removeLocked(a *arrival) {
	b.unexpected.remove(a)
	a.queued = false
}

// Irecv starts to receive a message that m matches into into, which belongs to
// the engine until the request is done.
func (b *Box) Irecv(m Match, into []byte) Request {
	b.mu.Lock()
	return b.beginLocked(b.newOpLocked(KindRecv, m, into))
}

// beginLocked begins the receive o. It unlocks b.mu.
func (b *Box) beginLocked(o *op) Request {
	r := Request{op: o, use: o.now()}
	if b.choices.on.Load() && o.numbered() {
		b.numberLocked(o)
	}
	b.receiveLocked(o)
	return r
}

// receiveLocked matches o with an arrival or posts it. It unlocks b.mu.
func (b *Box) receiveLocked(o *op) {
	if len(b.abandoned.runs) > 0 && b.endIfAbandonedLocked(o) {
		b.mu.Unlock()
		return
	}
	a := b.unexpected.find(o)
	if a == nil {
		if !b.trouble.Load() || !b.endIfRefusedLocked(o) {
			b.posted.add(o)
		}
		b.mu.Unlock()
		return
	}
	b.removeLocked(a)
	if o.choice != 0 && o.peer == AnySource {
		b.gotLocked(o, a.header.Source, a.header.Seq)
	}
	if a.body != nil && len(a.body) <= len(a.small) {
		b.takeLocked(o, a)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	b.take(o, a)
}

// take gives the arrival a, which is in no queue, to the receive o.
func (b *Box) take(o *op, a *arrival) {
	switch {
	case a.sender != nil:
		s := a.sender
		copy(o.buf, s.buf)
		o.arrived(&a.header, a.length)
		o.finish()
		s.finish()
	case a.link != nil:
		a.link.fetch(o, &a.header, &a.env, a.since, a.awaits)
	default:
		copy(o.buf, a.body)
		b.mu.Lock()
		b.takenLocked(o, a)
		b.mu.Unlock()
		return
	}
	b.mu.Lock()
	b.freeArrivalLocked(a)
	b.mu.Unlock()
}

// takeLocked is take for a body that is here and short.
func (b *Box) takeLocked(o *op, a *arrival) {
	copy(o.buf, a.body)
	b.takenLocked(o, a)
}

// takenLocked ends take, when o's buffer has a's body.
func (b *Box) takenLocked(o *op, a *arrival) {
	o.arrived(&a.header, a.length)
	o.finishLocked()
	if a.via != nil {
		a.via.unexpectedBytes(-a.cost())
	}
	b.freeArrivalLocked(a)
}

// Recv is Irecv and Wait in one.
func (b *Box) Recv(ctx context.Context, c *Call, m Match, into []byte) (Status, error) {
	b.mu.Lock()
	o := b.loneLocked(KindRecv, m, into)
	r := b.beginLocked(o)
	err := b.e.await(ctx, c, b, goal{one: o})
	if err == nil && o.err == nil && o == &b.lone {
		s := o.status
		o.buf = nil
		b.busy.Set(false)
		return s, nil
	}
	s, err := r.after(c, err)
	if m.Peer == AnySource {
		return r.unlessRaised(c, s, err)
	}
	return s, err
}

// Isend starts to send body, which belongs to the engine until the request is
// done. It may be done at once; then the Request is the zero one.
func (b *Box) Isend(m Match, body []byte, mode Mode) Request {
	b.tell()
	if b.turns.shared() {
		return b.sendInTurn(m, body, mode)
	}
	if l := b.e.peers[m.Peer].link.Load(); l != nil && mode == Standard && l.sendNow(b, m, body, false) {
		return Request{}
	}
	return b.sendLater(m, body, mode)
}

// TrySend sends body if that can be done at once.
func (b *Box) TrySend(m Match, body []byte) bool {
	b.tell()
	if b.turns.shared() {
		return false
	}
	p := &b.e.peers[m.Peer]
	if l := p.link.Load(); l != nil {
		return l.sendNow(b, m, body, true)
	}
	to := p.box.Load()
	return to != nil && to.deliver(b, m, body, Standard, nil)
}

// Send is Isend and Wait in one.
func (b *Box) Send(ctx context.Context, c *Call, m Match, body []byte, mode Mode) error {
	if mode == Standard && b.TrySend(m, body) {
		return nil
	}
	b.tell()
	var r Request
	if b.turns.shared() {
		r = b.sendInTurn(m, body, mode)
	} else {
		r = b.sendLater(m, body, mode)
	}
	_, err := r.Wait(ctx, c)
	return err
}

// sendLater starts to send what cannot, or need not, be sent at once.
func (b *Box) sendLater(m Match, body []byte, mode Mode) Request {
	p := &b.e.peers[m.Peer]
	for {
		if l := p.link.Load(); l != nil {
			if r, ok := l.sendLater(b, m, body, mode); ok {
				return b.begun(r, m)
			}
		} else if to := p.box.Load(); to != nil {
			if r, ok := b.sendHere(to, m, body, mode); ok {
				return b.begun(r, m)
			}
		}
	}
}

// sendHere is Isend to to, a rank of this process; false if it has left.
func (b *Box) sendHere(to *Box, m Match, body []byte, mode Mode) (Request, bool) {
	if mode == Standard && to.deliver(b, m, body, mode, nil) {
		return Request{}, true
	}
	b.mu.Lock()
	o := b.newOpLocked(KindSend, m, body)
	b.mu.Unlock()
	r := Request{op: o, use: o.now()}
	switch {
	case to.deliver(b, m, body, mode, o):
		o.finish()
	case o.msg == nil: // it was not taken
		b.free(o)
		return Request{}, false
	}
	return r, true
}

// localEager is up to what length a message between two ranks of a process is
// copied when no receive is posted, rather than left with its sender.
const localEager = 4 << 10

// deliver brings a message of from, a rank of the same process, to b. True if
// that is done; otherwise o, where there is one, is finished when a receive has
// the message.
func (b *Box) deliver(from *Box, m Match, body []byte, mode Mode, o *op) bool {
	h := wire.Header{Kind: wire.Eager, Check: m.Check, Context: m.Context, Source: from.rank, Dest: b.rank, Tag: m.Tag}
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return false
	}
	if r := b.posted.match(m.Context, from.rank, m.Tag, from.streams.at(b.rank).sent+1); r != nil {
		b.countLocked(from, &h, body)
		b.mu.Unlock()
		copy(r.buf, body)
		r.arrived(&h, len(body))
		r.finish()
		return true
	}
	eager := mode == Standard && len(body) <= localEager && b.unexpected.bytes+len(body) <= b.e.cfg.Unexpected
	if !eager && o == nil {
		b.mu.Unlock()
		return false
	}
	b.countLocked(from, &h, body)
	a := b.newArrivalLocked(&h, len(body))
	if eager {
		b.hold(a, len(body))
		copy(a.body, body)
	} else {
		a.sender, o.msg = o, a
	}
	b.insertLocked(a)
	b.mu.Unlock()
	return eager
}

// countLocked numbers a message of from, a rank of the same process, and keeps it
// where that is wanted.
func (b *Box) countLocked(from *Box, h *wire.Header, body []byte) {
	s := from.streams.at(b.rank)
	s.sent++
	b.streams.at(from.rank).got++
	h.Seq = s.sent
	if b.e.cfg.Replay {
		var header [wire.HeaderLen]byte
		h.Put(header[:])
		s.past.add(&b.chunks, h.Seq, header[:], body)
		b.chunks.spills = s.past.size > b.e.cfg.LogBytes // and no more than that: who would wait may be the one to save
		if b.e.cfg.Save != nil && s.past.size > max(s.saveAt, b.e.cfg.SaveBytes) {
			var bytes int
			bytes, s.saveAt = b.e.askToSave(s.past.size)
			b.e.cfg.Save(b.rank, from.rank, bytes)
		}
	}
}

// Iprobe tells whether a message that m matches is here to be received.
func (b *Box) Iprobe(m Match) (Status, bool) {
	s, _, ok := b.lookFor(m, kindProbe)
	return s, ok
}

// Improbe is Iprobe that also takes the message out of all matching; receive it
// with [Message.Irecv].
func (b *Box) Improbe(m Match) (*Message, Status, bool) {
	s, msg, ok := b.lookFor(m, kindMprobe)
	return msg, s, ok
}

func (b *Box) lookFor(m Match, kind Kind) (Status, *Message, bool) {
	if b.Chooses() {
		return b.decideProbe(m, kind)
	}
	s, msg, _, ok := b.lookNow(m, kind)
	return s, msg, ok
}

// decideProbe is lookFor that comes out as it did before, or is recorded.
func (b *Box) decideProbe(m Match, kind Kind) (Status, *Message, bool) {
	n, x, known := b.Decide()
	if known {
		if x.Seq == 0 {
			return Status{}, nil, false
		}
		s, msg, err := b.again(m, x, kind)
		return s, msg, err == nil
	}
	s, msg, seq, ok := b.lookNow(m, kind)
	if ok {
		b.Decided(n, s.Source, seq)
	}
	return s, msg, ok
}

// lookNow also answers the number of the message.
func (b *Box) lookNow(m Match, kind Kind) (Status, *Message, uint64, bool) {
	for tries := 0; ; tries++ {
		b.mu.Lock()
		o := b.newOpLocked(kind, m, nil)
		a := b.unexpected.find(o)
		if a != nil {
			o.found(a)
			if kind == kindMprobe {
				b.removeLocked(a)
			}
		}
		b.mu.Unlock()
		s, seq := o.status, o.seq
		b.free(o)
		if a != nil {
			if kind == kindMprobe {
				return s, b.takes(a), seq, true
			}
			return s, nil, seq, true
		}
		if tries > 0 {
			return Status{}, nil, 0, false
		}
		b.Progress()
	}
}

// Probe waits until Iprobe would find a message.
func (b *Box) Probe(ctx context.Context, c *Call, m Match) (Status, error) {
	s, _, err := b.waitFor(ctx, c, m, kindProbe)
	return s, err
}

// Mprobe waits until Improbe would find a message.
func (b *Box) Mprobe(ctx context.Context, c *Call, m Match) (*Message, Status, error) {
	s, msg, err := b.waitFor(ctx, c, m, kindMprobe)
	return msg, s, err
}

func (b *Box) waitFor(ctx context.Context, c *Call, m Match, kind Kind) (Status, *Message, error) {
	if m.Peer != AnySource || !b.Chooses() {
		return b.waitOnly(ctx, c, m, kind, 0, 0)
	}
	n, x, known := b.Decide()
	switch {
	case known && x.Seq == OutOfTime: // what is here now came later
		return b.waitOnly(ctx, c, m, kind, never, 0)
	case known && x.Seq != 0:
		return b.again(m, x, kind)
	}
	return b.waitOnly(ctx, c, m, kind, 0, n)
}

// Outlast waits until ctx ends, as a call did in an earlier life.
func (b *Box) Outlast(ctx context.Context, c *Call) error {
	_, _, err := b.waitOnly(ctx, c, Match{Peer: AnySource}, kindProbe, never, 0)
	return err
}

// waitOnly waits for a message, or for the one with that number. Which it is, is a decision
// to be recorded, unless that is 0.
func (b *Box) waitOnly(ctx context.Context, c *Call, m Match, kind Kind, only uint64, decision uint32) (Status, *Message, error) {
	b.mu.Lock()
	o := b.newOpLocked(kind, m, nil)
	o.only = only
	if a := b.unexpected.find(o); a != nil {
		o.found(a)
		if kind == kindMprobe {
			b.removeLocked(a)
		}
		o.finishLocked()
	} else if a := b.foundLocked(o); a != nil {
		o.found(a)
		o.finishLocked()
	} else if !b.trouble.Load() || !b.endIfRefusedLocked(o) {
		b.probes.push(o)
	}
	b.mu.Unlock()
	err := b.e.await(ctx, c, b, goal{one: o})
	if err != nil && o.cancel() {
		b.free(o)
		if decision != 0 && ctx.Err() != nil {
			b.Decided(decision, 0, OutOfTime)
		}
		if errors.Is(err, ErrProcFailedPending) {
			err = ErrAnyFailed
		}
		return Status{}, nil, err
	}
	if err := o.err; err != nil {
		b.free(o)
		return Status{}, nil, err
	}
	s, seq := o.status, o.seq
	var msg *Message
	if o.msg != nil {
		msg = b.takes(o.msg)
	}
	b.free(o)
	if decision != 0 {
		b.Decided(decision, s.Source, seq)
	}
	return s, msg, nil
}

// A Message was taken by Mprobe and waits to be received, once.
type Message struct {
	box *Box
	a   *arrival
}

// takes is the Message of a.
func (b *Box) takes(a *arrival) *Message {
	m := &Message{b, a}
	b.mu.Lock()
	b.taken = append(b.taken, m)
	revoked := b.refusesContext(a.header.Context)
	b.mu.Unlock()
	if revoked {
		b.dropTaken()
	}
	return m
}

// dropTaken drops what probes have taken on contexts that are revoked: its senders wait for that. It may be called while
// polling, and waits for nothing: of what is received to nowhere nothing has to come.
func (b *Box) dropTaken() {
	b.mu.Lock()
	var drop []*Message
	for _, m := range b.taken {
		if b.refusesContext(m.a.header.Context) {
			drop = append(drop, m)
		}
	}
	b.mu.Unlock()
	for _, m := range drop {
		if r, ok := m.Irecv(nil); ok && r.Finished() { // else it is to be offered again, and ends then
			r.Wait(untilDone, &callDrop)
		}
	}
}

var callDrop = Call{Op: "Revoke"}

// Irecv starts to receive the message. It can be done once, and not where its context was revoked: false after that.
func (m *Message) Irecv(into []byte) (Request, bool) {
	b := m.box
	b.mu.Lock()
	a := m.a
	m.a = nil
	if a == nil {
		b.mu.Unlock()
		return Request{}, false
	}
	i := slices.Index(b.taken, m)
	b.taken = slices.Delete(b.taken, i, i+1)
	o := b.newOpLocked(KindRecv, Match{Context: a.header.Context, Peer: a.header.Source, Tag: a.header.Tag, Check: a.header.Check}, into)
	b.mu.Unlock()
	r := Request{op: o, use: o.now()}
	b.take(o, a)
	return r, true
}
