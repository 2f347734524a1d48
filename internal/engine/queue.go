package engine

import (
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// Matching. MPI's rules: of the receives that a message matches, the one posted
// first; of the messages that a receive matches, of one source the one sent
// first. Both queues are split by (context, source), so that a rank with many
// peers finds its match at once.

const bins = 16 // a power of two

func bin(context uint32, source topology.Rank) int {
	return int((context*31 + uint32(source)) & (bins - 1))
}

// posted is the receives that wait for a message.
type posted struct {
	exact [bins]opList
	any   opList // with AnySource
	order uint64
}

func (p *posted) list(o *op) *opList {
	if o.peer == AnySource {
		return &p.any
	}
	return &p.exact[bin(o.context, o.peer)]
}

// lists is all of p.
func (p *posted) lists() []*opList {
	all := make([]*opList, 0, 1+bins)
	all = append(all, &p.any)
	for i := range p.exact {
		all = append(all, &p.exact[i])
	}
	return all
}

func (p *posted) add(o *op) {
	p.order++
	o.order = p.order
	p.list(o).push(o)
}

// match takes out the receive that gets a message; nil if none waits for it.
func (p *posted) match(context uint32, source topology.Rank, tag int32, seq uint64) *op {
	exact := p.exact[bin(context, source)].head
	for exact != nil && !exact.matches(context, source, tag, seq) {
		exact = exact.next
	}
	any := p.any.head
	for any != nil && !any.matches(context, source, tag, seq) {
		any = any.next
	}
	if exact == nil || any != nil && any.order < exact.order {
		exact = any
	}
	if exact != nil {
		exact.queue.remove(exact)
		if exact.choice != 0 && exact.peer == AnySource {
			exact.box.gotLocked(exact, source, seq)
		}
	}
	return exact
}

// An arrival is a message that came before its receive. Its body is here, at
// its local sender, or still on the other side of a link.
type arrival struct {
	header wire.Header
	length int // of the message

	body   []byte        // small ones: in small; large ones: from Engine.bufs
	sender *op           // local, waits until body is taken from its buffer
	link   *link         // offered through it, with
	env    wire.Envelope //   this
	awaits bool          //   and has to be offered again
	since  uint32        //   in that generation of the link
	via    *link         // body came through it, and counts against it
	queued bool          // it is in unexpected
	small  [128]byte

	binPrev, binNext *arrival
	allPrev, allNext *arrival
}

// cost is what a counts against the bound of unexpected bytes: its body, and
// itself, so that a flood of empty messages is bounded too.
func (a *arrival) cost() int { return len(a.body) + 128 }

// unexpected is the arrivals that no receive has taken, in their order.
type unexpected struct {
	bins  [bins]struct{ head, tail *arrival }
	head  *arrival
	tail  *arrival
	bytes int // cost of all
}

func (u *unexpected) add(a *arrival) {
	a.allPrev, a.allNext = u.tail, nil
	if u.tail == nil {
		u.head = a
	} else {
		u.tail.allNext = a
	}
	u.tail = a
	b := &u.bins[bin(a.header.Context, a.header.Source)]
	a.binPrev, a.binNext = b.tail, nil
	if b.tail == nil {
		b.head = a
	} else {
		b.tail.binNext = a
	}
	b.tail = a
	u.bytes += a.cost()
}

func (u *unexpected) remove(a *arrival) {
	if a.allPrev == nil {
		u.head = a.allNext
	} else {
		a.allPrev.allNext = a.allNext
	}
	if a.allNext == nil {
		u.tail = a.allPrev
	} else {
		a.allNext.allPrev = a.allPrev
	}
	b := &u.bins[bin(a.header.Context, a.header.Source)]
	if a.binPrev == nil {
		b.head = a.binNext
	} else {
		a.binPrev.binNext = a.binNext
	}
	if a.binNext == nil {
		b.tail = a.binPrev
	} else {
		a.binNext.binPrev = a.binPrev
	}
	a.allPrev, a.allNext, a.binPrev, a.binNext = nil, nil, nil, nil
	u.bytes -= a.cost()
}

// find is the first arrival that a receive or probe o matches; nil if none.
func (u *unexpected) find(o *op) *arrival {
	if o.peer == AnySource {
		for a := u.head; a != nil; a = a.allNext {
			if o.matches(a.header.Context, a.header.Source, a.header.Tag, a.header.Seq) {
				return a
			}
		}
		return nil
	}
	for a := u.bins[bin(o.context, o.peer)].head; a != nil; a = a.binNext {
		if o.matches(a.header.Context, a.header.Source, a.header.Tag, a.header.Seq) {
			return a
		}
	}
	return nil
}

// numbered is the arrival with that number in its stream; nil if it was taken.
func (u *unexpected) numbered(source topology.Rank, seq uint64) *arrival {
	for a := u.head; a != nil; a = a.allNext {
		if a.header.Source == source && a.header.Seq == seq {
			return a
		}
	}
	return nil
}
