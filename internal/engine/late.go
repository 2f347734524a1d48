package engine

import (
	"slices"

	"github.com/mpiv/mpiv/wire"
)

// A rank that goes on from a snapshot may send as an eager message what it had
// offered in its former life: whether it does hangs on how full its path is. Its
// receiver then has the message that it was waiting to fetch.

// awaiting is the index in parts of the receive of b that has matched the message of
// h and waits for it to be offered again; -1 if there is none. mu is held.
func (l *link) awaiting(b *Box, h *wire.Header) int {
	return slices.IndexFunc(l.parts, func(o *op) bool {
		return o.awaits && o.seq == h.Seq && o.status.Source == h.Source && o.box == b
	})
}

// placeLate is where the body of a repeated message goes: where it is compared with
// what it was, and handed to who waits for it if it was offered before and not fetched.
func (l *link) placeLate(in *incoming, n int) []byte {
	if l.replay {
		in.odd, in.late = true, make([]byte, n)
	}
	return in.late
}

// arrivedLate gives the body to who waits for it, if somebody does.
func (l *link) arrivedLate(in *incoming) {
	h, s := &in.header, in.stream
	b := s.box
	l.e.shut()
	l.mu.Lock()
	offered := s.offers.has(h.Seq)
	l.mu.Unlock()
	if !offered {
		return
	}
	b.mu.Lock()
	if a := b.unexpected.numbered(h.Source, h.Seq); a != nil {
		a.link, a.awaits = nil, false
		b.unexpected.bytes -= a.cost()
		b.hold(a, len(in.late))
		copy(a.body, in.late)
		b.unexpected.bytes += a.cost()
		b.mu.Unlock()
		l.mu.Lock()
		s.answered(h.Seq)
		l.mu.Unlock()
		return
	}
	b.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.awaiting(b, h)
	if i < 0 { // the receive has been matched, and is about to look
		s.offeredAgain(offer{seq: h.Seq, body: in.late})
		return
	}
	o := l.parts[i]
	l.parts = slices.Delete(l.parts, i, i+1)
	copy(o.buf, in.late)
	s.answered(h.Seq)
	o.finish()
}
