package engine

import (
	"slices"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// Ranks come and go. Who sends to a rank that is elsewhere now hands what it has in
// its log to the link to the new process; the receiver refuses what it has had.
//
// A process may hear from another of a map before its agent has told it. What is
// about ranks that are not where it thinks waits until it has (early).

// A Placement says where a rank is.
type Placement struct {
	Rank    topology.Rank
	Process int
	Lost    bool // where it was before is no more: all that the log has is sent again
}

// Place is told the map of an epoch: where the ranks are that are not where they
// were. For one that comes to this process there is Adopt. A move that takes longer
// than what was begun after it has its map told later: so maps come in any order, but
// each of them comes, and there is one for each epoch.
func (e *Engine) Place(epoch topology.Epoch, moved ...Placement) {
	e.enter()
	defer e.leave()
	e.raise(epoch)
	e.placeAll(moved)
	e.learn(epoch)
}

func (e *Engine) placeAll(moved []Placement) {
	for _, m := range moved {
		from, to := e.peers[m.Rank].link.Load(), e.link(m.Process)
		if from != nil && to != nil && from != to { // neither one that has left this process, nor one that has come
			e.rehome(m.Rank, from, to, m.Lost)
		}
	}
}

// raise has what is sent from here on say that it is by a map of that epoch, if that
// is the newest. Polling is held.
func (e *Engine) raise(epoch topology.Epoch) {
	e.epoch.Store(max(e.epoch.Load(), uint32(epoch)))
}

// learn notes that a map of that epoch is known. Polling is held.
func (e *Engine) learn(epoch topology.Epoch) {
	e.raise(epoch)
	e.learned++
	if n := uint32(epoch); n > e.whole.Load() && !slices.Contains(e.beyond, n) {
		e.beyond = append(e.beyond, n)
		slices.Sort(e.beyond)
	}
	for len(e.beyond) > 0 && e.beyond[0] == e.whole.Load()+1 {
		e.whole.Store(e.beyond[0])
		e.beyond = slices.Delete(e.beyond, 0, 1)
	}
	for _, l := range *e.active.Load() {
		l.arrivedEarly()
	}
}

// Epoch is that of the newest map which the engine has heard of.
func (e *Engine) Epoch() topology.Epoch { return topology.Epoch(e.epoch.Load()) }

// misses notes that something waits here for a map, until one has come. Polling is held.
func (e *Engine) misses() {
	if now := e.learned + 1; e.missed != now {
		e.missed = now
		e.cfg.Behind(e.cfg.Process)
	}
}

// lags notes that the peer sends to where a rank is no more, or cannot connect before it
// has learned of that. Polling is held.
func (l *link) lags() {
	if newest := l.e.epoch.Load(); newest > l.lagged { // by which a rank may have left, though the agent has not told it yet
		l.lagged = newest
		l.e.cfg.Behind(l.process)
	}
}

// was notes that the rank has been where l goes; nil: here. Polling is held.
func (p *peer) was(l *link) {
	if !slices.Contains(p.past, l) {
		p.past = append(p.past, l)
	}
}

// lockLink is the link to r, locked; nil if r is here.
func (e *Engine) lockLink(r topology.Rank) *link {
	p := &e.peers[r]
	for {
		l := p.link.Load()
		if l == nil {
			return nil
		}
		l.mu.Lock()
		if p.link.Load() == l {
			return l
		}
		l.mu.Unlock()
	}
}

// rehome makes to the link to r, and hands it what from has of it. Polling is held,
// which is why it may lock two links.
func (e *Engine) rehome(r topology.Rank, from, to *link, lost bool) {
	boxes := *e.boxes.Load()
	for _, b := range boxes {
		b.mu.Lock()
		for a := b.unexpected.head; a != nil; a = a.allNext {
			if a.header.Source == r && a.link != nil {
				a.link, a.awaits, a.env.Fetch = to, true, false
			}
		}
		b.mu.Unlock()
	}
	p := &e.peers[r]
	from.mu.Lock()
	half := !from.firmLocked() && from.halfOf(r) // what is kept nowhere arrives yet
	from.mu.Unlock()
	if half {
		from.unplace()
	}
	from.mu.Lock()
	if from.conn != nil && (half || from.busyWith(r) || from.lendsTo(r)) {
		from.detach() // in the middle of a message to or from it; the log has it, here or there
		e.refreshActive(from)
	}
	to.mu.Lock()
	p.link.Store(to)
	p.was(from)
	e.placings++
	for _, b := range boxes {
		if s := b.streams.known(r); s != nil {
			from.before.leaves(s)
			to.before.comes(s)
			from.hand(s, to, lost)
		}
	}
	from.ctl.drop(r)
	if to.replay && to.conn != nil {
		to.tellStableAgain()
	}
	to.attend()
	to.pump()
	to.mu.Unlock()
	from.mu.Unlock()
}

// halfOf tells whether a message of r is half here.
func (l *link) halfOf(r topology.Rank) bool {
	for i := range l.lanes {
		if in := &l.lanes[i]; in.placed && in.header.Source == r {
			return true
		}
	}
	return false
}

// busyWith tells whether a message to r is half sent.
func (l *link) busyWith(r topology.Rank) bool {
	return l.stuck == stuckQueue && l.queue.head.stream.peer == r || slices.ContainsFunc(l.bulk, func(x *entry) bool { return x.stream.peer == r })
}

// lendsTo tells whether the connection has the body of a send to r, which may be done before
// that has left.
func (l *link) lendsTo(r topology.Rank) bool {
	if l.lender == nil || !l.lender.Lent() {
		return false
	}
	for _, b := range *l.e.boxes.Load() {
		if s := b.streams.known(r); s != nil {
			for x := s.head; x != nil; x = x.snext {
				if x.lent {
					return true
				}
			}
		}
	}
	return false
}

// hand gives to what l has of s. The mu of both are held.
func (l *link) hand(s *stream, to *link, lost bool) {
	var others, unsent entryQueue
	for x := l.queue.head; x != nil; {
		next := x.qnext
		switch {
		case x.stream != s:
			others.push(x)
		case x.gone, x.repeats:
			l.freeEntry(x)
		case !x.kept:
			unsent.push(x)
		}
		x = next
	}
	l.queue = others
	for x := s.head; x != nil; x = x.snext {
		x.queued = false
		x.header.Epoch = l.e.Epoch() // who has only heard of that map waits for it
		to.inherit(x, l, lost)
	}
	s.findOpen()
	if s.past.size > 0 {
		l.unlogs(s.past.size)
		to.logs(s, s.past.size)
	}
	s.again = slices.DeleteFunc(s.again, func(o offer) bool { return o.body == nil })
	if lost {
		s.acked = s.sent
		for _, x := range []*entry{s.head, unsent.head} {
			if x != nil {
				s.acked = min(s.acked, x.header.Seq-1)
			}
		}
		if n, some := s.past.first(); some {
			s.acked = min(s.acked, n-1)
		}
	}
	to.repeat(s, s.acked)
	if to.queue.head != nil {
		to.want()
	}
	for x := unsent.head; x != nil; {
		next := x.qnext
		x.header.Epoch = l.e.Epoch()
		to.enqueue(x)
		x = next
	}
	l.bulk = slices.DeleteFunc(l.bulk, func(x *entry) bool { return x.stream == s })
	l.endRecords(func(x *entry) bool { return x.stream == s })
	l.parts = slices.DeleteFunc(l.parts, func(o *op) bool {
		mine := o.box == s.box && o.status.Source == s.peer
		if mine {
			o.awaits = true
			to.parts = append(to.parts, o)
		}
		return mine
	})
	if s.dirty {
		s.dirty = false
		l.dirty = slices.DeleteFunc(l.dirty, func(d *stream) bool { return d == s })
	}
}

// inherit takes x, which is kept, over from from. lost: who had it is no more.
func (l *link) inherit(x *entry, from *link, lost bool) {
	if l != from.e.limbo && l.puller != x.puller { // otherwise it may be fetched yet
		x.withdraw()
	}
	from.kept--
	if !x.waits() {
		from.unlogs(x.cost())
	}
	x.streaming = false
	x.done = x.done && !lost
	l.kept++
	if !x.waits() {
		l.logs(x.stream, x.cost())
	}
}

// drop takes out the messages about rank r.
func (q *ctlQueue) drop(r topology.Rank) {
	n := q.n
	first := q.first
	q.first, q.n = 0, 0
	ring := q.ring
	q.ring = make([]ctlMessage, len(ring))
	for i := range n {
		m := &ring[(first+i)%len(ring)]
		if m.header.Kind == wire.Ack || m.header.Kind == wire.Stable || m.header.Source != r && m.header.Dest != r {
			q.ring[q.n] = *m
			q.n++
		}
	}
}

// An early message is by a map that is not known here yet.
type early struct {
	dest    topology.Rank // -1: it is a Depart
	departs topology.Rank // -1: it is none
	header  [wire.HeaderLen]byte
	body    []byte
	learned uint32 // Engine.learned when it began to arrive
}

// earlyMost is how many bytes of early messages a link may have before nothing more
// is taken from it, until the map has come. They come in the moment between two
// processes' learning of a map, which is long only where an agent is starved.
const earlyMost = 4 << 20

// overEarly tells whether the peer is too far ahead for more of it to be taken.
func (l *link) overEarly() bool { return l.earlyBytes > earlyMost }

func (l *link) placeEarly(in *incoming, n int) []byte {
	in.odd = true
	in.early = &early{dest: in.header.Dest, departs: -1, body: make([]byte, n), learned: l.e.learned}
	in.header.Put(in.early.header[:])
	return in.early.body
}

// arrivedEarly takes the early messages as if they had arrived now. Those that are
// still early wait on.
func (l *link) arrivedEarly() {
	if len(l.early) == 0 {
		return
	}
	all, half := l.early, l.lanes[0]
	l.early, l.earlyBytes, l.lanes[0] = nil, 0, incoming{}
	for _, m := range all {
		copy(l.Place(m.header[:], len(m.body)), m.body)
		l.Arrived(m.header[:], m.body)
	}
	l.lanes[0] = half
	l.e.shut()
	l.attend()
}
