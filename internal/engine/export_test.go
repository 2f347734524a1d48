package engine

import (
	"bytes"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// Dozing tells whether nothing of e runs until something happens.
func (e *Engine) Dozing() bool { return e.dozing.Load() }

// WishOf is the Source of a ChoseCancel of a receive with m.
func WishOf(m Match) topology.Rank {
	return topology.Rank((&op{context: m.Context, peer: m.Peer, tag: m.Tag}).wish())
}

// Recorded is the numbers of the messages in Past.
func (s *StreamState) Recorded() (all []uint64) {
	for w := (walk{rest: bytes.Join(s.Past, nil)}); w.next(); {
		all = append(all, w.seq)
	}
	return all
}

// Accepted has a body of rank from, of a life before, be about to be sent to rank to of
// another process, which wants it.
func (e *Engine) Accepted(from, to topology.Rank, body []byte) {
	e.enter()
	defer e.leave()
	s := e.Box(from).streams.at(to)
	l := e.lockLink(to)
	defer l.mu.Unlock()
	s.sent++
	x := l.newEntry(s)
	x.header = wire.Header{Kind: wire.Offer, Source: from, Dest: to, Epoch: e.Epoch(), Seq: s.sent}
	x.body, x.end, x.streaming = body, uint64(len(body)), true
	l.keep(x)
	l.bulk = append(l.bulk, x)
}

// Lent tells whether the connection to a process has something yet that it was lent.
func (e *Engine) Lent(process int) bool {
	l := e.link(process)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lender != nil && l.lender.Lent()
}
