package engine

import (
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/wire"
)

// What arrives that is no message of a rank: what peers say of those.

func (l *link) arrivedControl(h *wire.Header, body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard.Set(l.heard.Get() + 1)
	switch h.Kind {
	case wire.Done, wire.Accept:
		s := l.streamOf(h.Dest, h.Source, h.Epoch) // they speak of our message
		if s == nil {
			return
		}
		if h.Kind == wire.Done {
			l.finished(s, h.Seq, h.Flags)
			return
		}
		span, err := wire.ParseSpan(body)
		if err != nil {
			l.refuse(err)
			return
		}
		l.accepted(s, h.Seq, span)
		l.pump()
	case wire.Ack, wire.Stable:
		for len(body) > 0 {
			a, rest, err := wire.ParseStreamAck(body)
			if err != nil {
				l.refuse(err)
				return
			}
			if s := l.streamOf(a.Dest, a.Source, h.Epoch); s != nil {
				if h.Kind == wire.Stable {
					l.covered(s, a.Seq)
				} else {
					l.acknowledged(s, a.Seq)
				}
			}
			body = rest
		}
	case wire.Retract:
		l.retracted(h)
	case wire.Press:
		l.pressed = h.Flags&wire.Pressed != 0
	case wire.Ping:
		if h.Ack > 0 {
			l.peerPace = h.Ack
			l.peerPaces++
		}
		if l.ctl.size() == 0 { // what is there to send is as good, and who only asks gets no queue
			l.control(wire.Header{Kind: wire.Pong, Seq: h.Seq}, nil)
			l.pump()
		}
	case wire.Pong:
	case wire.Save:
		if b := l.e.Box(h.Dest); b != nil && int(h.Dest) < l.e.size {
			l.e.cfg.Save(h.Dest, h.Source, int(min(h.Seq, 1<<40)))
		}
	case wire.Depart, wire.Departed, wire.Stay:
		l.arrivedDeparture(h)
	default:
		l.refuse(fmt.Errorf("unexpected %v", h.Kind))
	}
}

// retracted: the sender of an Offer wants it back. It gets it if no receive
// has it; otherwise a Done comes when that has ended.
func (l *link) retracted(h *wire.Header) {
	s := l.streamOf(h.Source, h.Dest, h.Epoch)
	if s == nil {
		return
	}
	if h.Flags&wire.Retracted != 0 { // the peer has had the answer, if there was one
		if h.Seq > s.got {
			return
		}
		s.returned = slices.DeleteFunc(s.returned, func(seq uint64) bool { return seq == h.Seq })
		return
	}
	l.mu.Unlock() // a Box's lock comes first
	b := s.box
	b.mu.Lock()
	if b.repeatsLocked() { // its earlier life may have received it
		b.mu.Unlock()
		l.mu.Lock()
		l.askLater(s, h)
		return
	}
	a := b.unexpected.numbered(h.Source, h.Seq)
	if a != nil && a.link == nil {
		a = nil // its body is here, which the peer did not know; it has been told
	}
	if a != nil {
		b.removeLocked(a)
		b.returnsLocked(h.Source, h.Seq)
		b.freeArrivalLocked(a)
	}
	b.mu.Unlock()
	l.mu.Lock()
	if a != nil {
		s.answered(h.Seq)
		l.returns(s, h.Seq)
		l.pump()
	}
}

// askLater has a Retract count as if it came later.
func (l *link) askLater(s *stream, h *wire.Header) {
	same := func(r wire.Header) bool { return r.Seq == h.Seq && r.Source == h.Source && r.Dest == h.Dest }
	if s.offers.has(h.Seq) && !slices.ContainsFunc(l.retracts, same) { // otherwise it has its answer
		l.retracts = append(l.retracts, *h)
	}
	l.attend()
}

// catchUp does what arrivedDeparture and retracted could not do yet. Polling is held.
func (l *link) catchUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	departs, retracts := l.departs, l.retracts
	l.departs, l.retracts = nil, nil
	for i := range departs {
		l.arrivedDeparture(&departs[i])
	}
	for i := range retracts {
		l.retracted(&retracts[i])
	}
}
