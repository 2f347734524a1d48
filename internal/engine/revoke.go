package engine

import (
	"errors"
	"iter"
	"maps"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// The contexts of a communicator are four, from a multiple of four on. When it is
// revoked the first three are; messages of the last go on, for who agrees on what is to
// be done. There an Abandon says that the others are revoked.
const (
	contextsOf  = 4
	lastContext = 3
)

func baseOf(context uint32) uint32 { return context &^ (contextsOf - 1) }

// Revoke ends all that b's rank waits for on the contexts of a communicator, now and
// later, with ErrRevoked, and tells peers, where the same happens.
func (b *Box) Revoke(base uint32, peers iter.Seq[topology.Rank]) {
	if b.revoke(base, b.rank) || b.e.cfg.Replay { // see Abandon
		b.PassRevoke(base, peers)
	}
}

// PassRevoke tells peers that the contexts are revoked, for who has heard it from a
// rank that failed before all had.
func (b *Box) PassRevoke(base uint32, peers iter.Seq[topology.Rank]) {
	for r := range peers {
		if b.e.err() != nil {
			return
		}
		var here *Box
		b.notify(Match{Context: base + lastContext, Peer: r}, nil, func(to *Box) {
			if to.revokeLocked(base, b.rank) {
				here = to
			}
		})
		if here != nil {
			here.revokeSends()
		}
	}
}

// RevokedBy is the rank from which b's has heard that the contexts are revoked; false
// if they are not.
func (b *Box) RevokedBy(base uint32) (topology.Rank, bool) {
	by, is := b.revocations()[base]
	return by, is
}

// revocations is from whom it was heard of each, by base. It is not changed.
func (b *Box) revocations() map[uint32]topology.Rank {
	if all := b.revoked.Load(); all != nil {
		return *all
	}
	return nil
}

// refusesContext tells whether a context is revoked.
func (b *Box) refusesContext(context uint32) bool {
	_, is := b.revocations()[baseOf(context)]
	return is && context%contextsOf != lastContext
}

// revoke notes it. False if it was known.
func (b *Box) revoke(base uint32, by topology.Rank) bool {
	b.mu.Lock()
	is := b.revokeLocked(base, by)
	b.mu.Unlock()
	if is {
		b.revokeSends()
	}
	return is
}

// revokeLocked is revoke without revokeSends, which is to follow.
func (b *Box) revokeLocked(base uint32, by topology.Rank) bool {
	if _, known := b.revocations()[base]; known {
		return false
	}
	all := maps.Clone(b.revocations())
	if all == nil {
		all = make(map[uint32]topology.Rank)
	}
	all[base] = by
	b.revoked.Store(&all)
	b.trouble.Store(true)
	if b.witness != nil {
		b.witness.Revoked(base)
	}
	b.endRefusedLocked()
	b.purgeLocked()
	return true
}

// revokeSends takes back the sends of b's rank on contexts that are revoked, where that
// is possible, and ends those to it that are left to it alone.
func (b *Box) revokeSends() {
	b.dropTaken()
	for l := range b.e.known() {
		l.mu.Lock()
		for x := l.queue.head; x != nil; x = x.qnext {
			l.revokeEntry(b, x)
		}
		l.mu.Unlock()
	}
	b.streams.all(func(s *stream) {
		if l := b.e.lockLink(s.peer); l != nil {
			for x := s.head; x != nil; x = x.snext {
				l.revokeEntry(b, x)
			}
			l.mu.Unlock()
		}
	})
	for _, to := range *b.e.boxes.Load() {
		to.mu.Lock()
		for a := to.unexpected.head; a != nil; {
			next := a.allNext
			if o := a.sender; o != nil && o.box == b && b.refusesContext(a.header.Context) {
				to.removeLocked(a)
				to.freeArrivalLocked(a)
				o.err = ErrRevoked
				o.finish()
			}
			a = next
		}
		to.mu.Unlock()
	}
}

// revokeEntry takes x back, if it is a send of b's rank that is revoked. mu is held.
func (l *link) revokeEntry(b *Box, x *entry) {
	if o := x.op; o != nil && o.box == b && x.header.Kind != wire.Abandon && b.refusesContext(x.header.Context) {
		l.takeBack(x)
	}
}

// begun is the request r of a send that has just begun: if its context was revoked
// meanwhile it is taken back.
func (b *Box) begun(r Request, m Match) Request {
	if b.trouble.Load() && r.op != nil && b.refusesContext(m.Context) {
		r.Cancel()
	}
	return r
}

// whyCancelled is err, unless it says that a request on a revoked context was taken back.
func (b *Box) whyCancelled(context uint32, err error) error {
	if b.trouble.Load() && errors.Is(err, ErrCancelled) && b.refusesContext(context) {
		return ErrRevoked
	}
	return err
}
