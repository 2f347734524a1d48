package engine

import (
	"github.com/mpiv/mpiv/wire"
)

// What a link owes its peer for what has arrived: word that it is here, and how it must send.

// received notes that the next message of s, of n bytes, is here.
func (l *link) received(s *stream, seq uint64, n int) {
	s.got = seq
	l.got += uint64(n)
	if l.keeps && !l.stable {
		l.receivedKept(s, n)
	}
}

// receivedKept notes that the peer keeps it until it is told. Where the peer replays it is told by
// Acks alone: what flows back anyway would acknowledge what was only offered, too.
//
//go:noinline
func (l *link) receivedKept(s *stream, n int) {
	l.heard.Set(l.heard.Get() + 1)
	if !l.replays(s) {
		s.acks.Set(s.got)
	}
	l.owe(s, n)
}

// repeated has the peer told again what of s is here: it has sent a message of n
// bytes twice.
func (l *link) repeated(s *stream, n int) {
	s.dirty = false
	l.owe(s, n)
}

// owe notes that the peer is to be told that a message of n bytes of s is here.
func (l *link) owe(s *stream, n int) {
	l.owedBytes += logCost(n)
	if !s.dirty {
		s.dirty = true
		l.dirty = append(l.dirty, s)
	}
}

// sendAcks tells the peer what has arrived. Polling and mu are held.
func (l *link) sendAcks() {
	for len(l.dirty) > 0 {
		var body [maxAcks * wire.StreamAckLen]byte
		n := min(len(l.dirty), maxAcks)
		for i, s := range l.dirty[:n] {
			wire.StreamAck{Source: s.peer, Dest: s.box.rank, Seq: s.toAck(l.replays(s))}.Put(body[i*wire.StreamAckLen:])
			s.dirty = false
		}
		l.dirty = l.dirty[:copy(l.dirty, l.dirty[n:])]
		l.control(wire.Header{Kind: wire.Ack}, body[:n*wire.StreamAckLen])
	}
	l.owedBytes, l.ackSoon = 0, false
	l.pump()
}

// unexpectedBytes counts the bytes that wait here for a receive. Too many, and
// the peer must offer; few again, and it may send.
func (l *link) unexpectedBytes(n int) {
	held := l.unheld.Add(int64(n))
	bound := int64(l.e.cfg.Unexpected)
	if n > 0 && held > bound && held-int64(n) <= bound || n < 0 && held < bound/2 && held-int64(n) >= bound/2 {
		l.pressDue.Store(true)
		l.attend()
	}
}

// tellPress tells the peer how it must send. mu is held.
func (l *link) tellPress() {
	l.pressDue.Store(false)
	press := l.unheld.Load() > int64(l.e.cfg.Unexpected)/2
	if press == l.press {
		return
	}
	l.press = press
	h := wire.Header{Kind: wire.Press}
	if press {
		h.Flags = wire.Pressed
	}
	l.control(h, nil)
}
