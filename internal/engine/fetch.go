package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// A pull is a body to be fetched by who polls.
type pull struct {
	op     *op
	ticket [wire.TicketLen]byte
}

// fetch has the body that was offered with h and env, in that generation of the link,
// brought to the receive o. awaits: it must be offered again first.
func (l *link) fetch(o *op, h *wire.Header, env *wire.Envelope, generation uint32, awaits bool) {
	l.fetched(o, h, env)
	again := *env
	if now := l.e.lockLink(h.Source); now != l || env.Fetch && generation != l.generation {
		l, awaits, again.Fetch = now, true, false
	}
	defer l.mu.Unlock()
	if l.e.peers[h.Source].failed.Load() {
		o.err = ErrProcFailed
		o.finish()
		return
	}
	l.bring(o, again, awaits)
}

// bring has the body brought that was offered to the receive o with env, or if it awaits
// another offer, with that, which may be here. mu is held.
func (l *link) bring(o *op, env wire.Envelope, awaits bool) {
	if s := o.box.streams.at(o.status.Source); awaits && len(s.again) > 0 {
		i := slices.IndexFunc(s.again, func(a offer) bool { return a.seq == o.seq })
		switch {
		case i < 0:
		case s.again[i].body != nil:
			copy(o.buf, s.again[i].body)
			s.answered(o.seq)
			o.finish()
			return
		case s.again[i].since == l.generation:
			env, awaits = s.again[i].env, false
		}
	}
	switch {
	case o.want == 0:
		l.answer(o)
		o.finish()
	case env.Fetch && l.puller != nil:
		l.pulling = append(l.pulling, pull{o, env.Ticket})
		l.attend()
	default:
		l.parts = append(l.parts, o)
		o.awaits = awaits
		if l.conn != nil && !awaits { // otherwise attach does it, or who offers it again
			l.accept(o)
			l.pump()
		}
	}
}

// fetched readies the receive o for the body that was offered with h and env.
func (l *link) fetched(o *op, h *wire.Header, env *wire.Envelope) {
	o.arrived(h, int(env.Length))
	o.seq = h.Seq
	o.awaits = false
	o.got, o.want = 0, min(uint64(len(o.buf)), env.Length)
}

// accept asks for the rest of o's body.
func (l *link) accept(o *op) {
	var body [wire.SpanLen]byte
	wire.Span{Offset: o.got, End: o.want}.Put(body[:])
	l.control(wire.Header{Kind: wire.Accept, Source: o.status.Source, Dest: o.box.rank, Seq: o.seq}, body[:])
}

// answer tells the sender of an Offer that the receive o has its body.
func (l *link) answer(o *op) {
	o.box.streams.at(o.status.Source).answered(o.seq)
	l.control(wire.Header{Kind: wire.Done, Source: o.status.Source, Dest: o.box.rank, Seq: o.seq}, nil)
	l.pump()
}

// startPulls begins to fetch what fetch asked for. Polling is held.
func (l *link) startPulls() {
	l.mu.Lock()
	l.pulling, l.starting = l.starting[:0], l.pulling
	l.mu.Unlock()
	for _, p := range l.starting {
		l.startPull(p.op, p.ticket)
	}
	clear(l.starting)
}

func (l *link) startPull(o *op, ticket transport.Ticket) {
	var id uint32
	if n := len(l.freePulls); n > 0 {
		id, l.freePulls = l.freePulls[n-1], l.freePulls[:n-1]
		l.pulls[id] = o
	} else {
		id = uint32(len(l.pulls))
		l.pulls = append(l.pulls, o)
	}
	l.e.pulling++
	if err := l.puller.Pull(ticket, o.buf[:o.want], uint64(id)); err != nil {
		l.pullFailed(id, err)
	}
}

// pullFailed: where the log has the message, it is fetched from whom it is offered
// by next; the peer may have died. Where its memory may not be read any more it sends the body.
func (l *link) pullFailed(id uint32, err error) {
	o := l.pulls[id]
	if errors.Is(err, transport.ErrBarred) {
		l.barred = true
		l.endPull(id)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.bring(o, wire.Envelope{}, false)
		return
	}
	if !l.replay && l.e.cfg.Lost == nil && !errors.Is(err, transport.ErrBroken) {
		l.refuse(fmt.Errorf("pull %d bytes of rank %d: %w", o.want, o.status.Source, err))
		return
	}
	l.endPull(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaitOffer(o)
	l.broken = fmt.Errorf("pull %d bytes of rank %d: %w", o.want, o.status.Source, err)
	l.attend()
}

func (l *link) endPull(id uint32) {
	l.pulls[id] = nil
	l.e.pulling--
	l.freePulls = append(l.freePulls, id)
}

// Pulled implements transport.Receiver.
func (l *link) Pulled(id uint64, err error) {
	l.e.shut()
	if id >= uint64(len(l.pulls)) || l.pulls[id] == nil {
		panic("engine: a pull ended that was not started")
	}
	o := l.pulls[id]
	if err != nil {
		l.pullFailed(uint32(id), err)
		return
	}
	l.endPull(uint32(id))
	l.got += o.want
	l.mu.Lock()
	l.answer(o)
	l.mu.Unlock()
	o.finish()
}
