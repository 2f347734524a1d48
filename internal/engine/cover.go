package engine

import (
	"fmt"

	"github.com/mpiv/mpiv/wire"
)

// Covers is the messages to a rank that a capsule of it has: of each stream, all up to
// a number.
type Covers []wire.StreamAck

// Covers is what c covers.
func (c *Capsule) Covers() (all Covers) {
	for i := range c.Streams {
		s := &c.Streams[i]
		n := s.Got
		if len(s.Offers) > 0 { // they have come, but not their bodies
			n = min(n, s.Offers[0]-1)
		}
		if n > 0 {
			all = append(all, wire.StreamAck{Source: s.Peer, Dest: c.Rank, Seq: n})
		}
	}
	return all
}

// Covered is told that a snapshot of b's rank, with a capsule that covers these, will
// outlive the process: who sent them need not keep them any longer.
func (b *Box) Covered(covers Covers) {
	e := b.e
	e.enter()
	defer e.leave()
	lists := make(map[*link][]wire.StreamAck)
	for _, a := range covers {
		s := b.streams.at(a.Source)
		s.covered = max(s.covered, a.Seq)
		if l := e.peers[a.Source].link.Load(); l != nil {
			lists[l] = append(lists[l], a)
		} else if from := e.Box(a.Source); from != nil {
			from.forgetHere(b, a.Seq)
		}
	}
	for l, acks := range lists {
		l.mu.Lock()
		l.tellStable(acks)
		l.pump()
		l.mu.Unlock()
	}
}

// tellStable tells the peer what snapshots cover. mu is held.
func (l *link) tellStable(acks []wire.StreamAck) {
	for len(acks) > 0 {
		var body [maxAcks * wire.StreamAckLen]byte
		n := min(len(acks), maxAcks)
		for i, a := range acks[:n] {
			a.Put(body[i*wire.StreamAckLen:])
		}
		acks = acks[n:]
		l.control(wire.Header{Kind: wire.Stable}, body[:n*wire.StreamAckLen])
	}
}

// tellStableAgain tells that of all ranks, as it may have been lost with a connection, or have been said where a rank
// is no more: whose log is full waits for it. Polling and mu are held.
func (l *link) tellStableAgain() {
	var acks []wire.StreamAck
	for _, b := range *l.e.boxes.Load() {
		b.streams.all(func(s *stream) {
			if s.covered > 0 && l.e.peers[s.peer].link.Load() == l {
				acks = append(acks, wire.StreamAck{Source: s.peer, Dest: b.rank, Seq: s.covered})
			}
		})
	}
	l.tellStable(acks)
}

// forgetHere drops what b's rank keeps for that of to, in the same process, up to n.
func (b *Box) forgetHere(to *Box, n uint64) {
	to.mu.Lock()
	defer to.mu.Unlock()
	s := b.streams.at(to.rank)
	s.past.forget(&to.chunks, n)
	s.saveAt = b.e.askAfter(s.past.size)
}

// covered: a snapshot has all messages of s up to n.
func (l *link) covered(s *stream, n uint64) {
	if !l.replay {
		l.refuse(fmt.Errorf("a snapshot covers message %d of rank %d to rank %d, and nothing is kept", n, s.box.rank, s.peer))
		return
	}
	s.acked, s.settled = max(s.acked, n), max(s.settled, n)
	l.forget(s, n)
}

// Idle is nil if b's rank has nothing under way; otherwise it says what.
func (b *Box) Idle() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.usedLocked()
	if used == 0 {
		return nil
	}
	what := "a request"
	switch {
	case b.posted.any.head != nil:
		what = describe(b.posted.any.head)
	case b.probes.head != nil:
		what = "a probe"
	default:
		for i := range b.posted.exact {
			if o := b.posted.exact[i].head; o != nil {
				what = describe(o)
				break
			}
		}
	}
	return fmt.Errorf("%w: %s is pending or was not waited for (%d in all)", ErrPending, what, used)
}

func describe(o *op) string {
	from := fmt.Sprintf("from rank %d", o.peer)
	if o.peer == AnySource {
		from = "from any rank"
	}
	return fmt.Sprintf("a receive %s with tag %d", from, o.tag)
}
