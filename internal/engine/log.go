package engine

import (
	"fmt"

	"github.com/mpiv/mpiv/wire"
)

// The log of a link: what was sent and is not stable. Short messages are records (past.go),
// others entries.

// Up to which length an eager message is copied into the log. Of a longer one the log has
// what a non-blocking send was given: the request is not done before the message is
// stable, or its sender has waited so long that it goes to sleep.
const (
	copyMost = 16 << 10
	copyLend = 4 << 10 // where the connection needs no copy either
)

// copyMost is which of them holds.
func (l *link) copyMost() int {
	if l.lender != nil {
		return copyLend
	}
	return copyMost
}

// recordsLocked tells whether an eager message with n bytes is kept as a record, and there
// is room for it.
func (l *link) recordsLocked(n int) bool { return l.replay || n <= l.copyMost() && l.fits(logCost(n)) }

// record writes what has just been sent, with the header in scratch, to the past of s.
func (l *link) record(s *stream, seq uint64, body []byte) {
	l.logs(s, s.past.add(&l.chunks, seq, l.scratch[:], body))
}

// repetition is an entry for a message that is in the past of s.
func (l *link) repetition(s *stream, h wire.Header, body []byte) *entry {
	x := l.newEntry(s)
	x.header, x.body, x.repeats = h, body, true
	s.past.lent++
	return x
}

// repeat queues what s keeps above number n, in order. None of it may be queued.
func (l *link) repeat(s *stream, n uint64) {
	x := s.head
	for h, body := range s.past.after(n) {
		for ; x != nil && x.header.Seq < h.Seq; x = x.snext {
			l.again(x)
		}
		h.Epoch = l.e.Epoch()
		x := l.repetition(s, h, body)
		x.needs = l.needs()
		l.queue.push(x)
		l.resent++
	}
	for ; x != nil; x = x.snext {
		l.again(x)
	}
}

// again queues x, which is kept, unless the peer has it.
func (l *link) again(x *entry) {
	if x.done || x.header.Kind != wire.Offer && x.header.Seq <= x.stream.acked {
		return
	}
	x.needs = l.needs() // where it was sent before may have been near
	l.resent++
	x.queued = true
	l.queue.push(x)
}

// fits tells whether the log has room for that much more.
func (l *link) fits(cost int) bool { return l.logged+cost <= l.e.cfg.LogBytes }

// full tells whether nothing may be sent before a snapshot covers some of the log.
func (l *link) full() bool { return l.chunks.spills && l.chunks.spill != nil && l.chunks.spill.Full() }

// heldBack is how many messages of s are not sent because of that.
func (l *link) heldBack(s *stream) (n uint64) {
	if !l.full() {
		return 0
	}
	for x := l.queue.head; x != nil; x = x.qnext {
		if x.stream == s && x.unsent() {
			n++
		}
	}
	return n
}

// own gives x a copy of body.
func (l *link) own(x *entry, body []byte) {
	if len(body) > len(x.small) && l.chunks.spills && l.chunks.spill != nil {
		if b := l.chunks.spill.Take(len(body)); b != nil {
			x.body, x.spilled = b[:len(body)], true
		}
	}
	switch {
	case x.spilled:
	case len(body) <= len(x.small):
		x.body = x.small[:len(body)]
	default:
		x.body = l.e.bufs.get(len(body))
	}
	copy(x.body, body)
}

// keep puts x into the log.
func (l *link) keep(x *entry) {
	x.kept = true
	x.stream.keep(x)
	l.kept++
	if x.header.Kind != wire.Offer {
		l.logs(x.stream, x.cost())
	}
}

// logs counts what the log holds of s.
func (l *link) logs(s *stream, cost int) {
	l.logged += cost
	l.chunks.spills = l.replay && l.logged > l.e.cfg.LogBytes
	if l.replay && l.logged > l.saveAt {
		ask := wire.Header{Kind: wire.Save, Source: s.box.rank, Dest: s.peer}
		var bytes int
		bytes, l.saveAt = l.e.askToSave(l.logged)
		ask.Seq = uint64(bytes)
		l.control(ask, nil)
	}
}

// askToSave is what is said of a log of n bytes to the rank that is asked for a snapshot, as Config.Save has it,
// and at how many bytes it is asked again.
func (e *Engine) askToSave(n int) (bytes, next int) {
	if bound := e.cfg.LogBytes; n > bound {
		return 0, n + bound/4
	}
	return n, min(n+e.cfg.SaveBytes, e.cfg.LogBytes)
}

// askAfter is at how many bytes of a log a snapshot is asked for that has shrunk to n.
func (e *Engine) askAfter(n int) int { return max(n, min(n+e.cfg.SaveBytes, e.cfg.LogBytes)) }

// unlogs takes that back.
func (l *link) unlogs(cost int) {
	l.logged -= cost
	l.chunks.spills = l.replay && l.logged > l.e.cfg.LogBytes
	l.saveAt = l.e.askAfter(l.logged)
}

// unkeep takes x out of the log.
func (l *link) unkeep(x *entry) {
	x.kept = false
	x.stream.drop(x)
	l.kept--
	if !x.waits() {
		l.unlogs(x.cost())
	}
	if x.queued {
		x.gone = true // pump frees it
		return
	}
	l.freeEntry(x)
}

// acknowledged: all messages of s up to n are stable.
func (l *link) acknowledged(s *stream, n uint64) {
	if n <= s.acked {
		return
	}
	if n > s.sent && !l.replay { // a rank that goes on from a snapshot has not sent all of it again yet
		l.refuse(fmt.Errorf("acknowledged message %d of rank %d to rank %d, of %d sent", n, s.box.rank, s.peer, s.sent))
		return
	}
	s.acked = n
	if !l.replays(s) {
		l.forget(s, n)
	}
}

// replays tells whether messages of s are kept until a snapshot covers them. There is none
// of a process: who takes a rank has it, or is lost with it.
func (l *link) replays(s *stream) bool { return l.replay && int(s.peer) < l.e.size }

// forget takes what is stable, all of s up to n, out of the log.
func (l *link) forget(s *stream, n uint64) {
	if s.past.size > 0 {
		l.unlogs(s.past.forget(&l.chunks, n))
	}
	x := s.head
	if s.looked != nil {
		x = s.looked.snext
	}
	for x != nil && x.header.Seq <= n {
		next := x.snext
		if x.waits() {
			s.looked = x
		} else {
			l.unkeep(x)
		}
		x = next
	}
	if l.queue.head != nil {
		l.attend()
	}
}

// forgetSettled takes what was sent again, all of s up to n, out of the log: the peer has saved it
// long ago, and may have to wait for what comes after it before it saves once more.
func (l *link) forgetSettled(s *stream, n uint64) {
	if n > 0 && n <= s.settled {
		l.forget(s, n)
	}
}

// copyLent copies what the log has of s only as the buffers of sends, so that these are done.
// Not while the connection, too, has some of it yet.
func (l *link) copyLent(s *stream) {
	if l.lender != nil && l.lender.Lent() {
		return
	}
	for x := s.head; x != nil; x = x.snext {
		if x.lent {
			o := x.op
			l.own(x, x.body)
			x.lent, x.op, o.entry = false, nil, nil
			o.finish()
		}
	}
}
