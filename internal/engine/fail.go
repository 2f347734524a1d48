package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/topology"
)

// A rank is failed when its process was declared so: here nobody waits for it any
// more, and nothing of it is accepted.
//
// After Bland, Bouteiller, Herault, Bosilca and Dongarra, "Post-failure recovery of MPI
// communication capability: Design and rationale" (IJHPCA 27, 2013).

// What requests end with where failures are reported, for errors.Is.
var (
	ErrProcFailed        = errors.New("the process of the peer has failed")
	ErrProcFailedPending = errors.New("a rank that may be the source has failed, and that was not acknowledged")
	ErrRevoked           = errors.New("communicator was revoked")
)

// ErrAnyFailed is ErrProcFailedPending of a call that has no request to wait for again.
var ErrAnyFailed = fmt.Errorf("%w: %w", ErrProcFailed, ErrProcFailedPending)

// A Witness is told what goes wrong with the peers of a rank.
type Witness interface {
	// Failed is told that Engine.Failed has grown. It must not wait for messages.
	Failed()
	// Unacknowledged tells whether a receive from any source, on a context, may wait
	// for a rank that has failed, and of which the program has not said that it knows.
	Unacknowledged(context uint32) bool
	// Revoked is told that the four contexts from base on are. It is called with locks
	// held, and must not call back.
	Revoked(base uint32)
}

// Witness has w told. Before the first message.
func (b *Box) Witness(w Witness) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.witness = w
}

// Failed is the ranks that have failed, in the order in which this process was told.
func (e *Engine) Failed() []topology.Rank {
	if all := e.failures.Load(); all != nil {
		return *all
	}
	return nil
}

// lastPolls bounds how much of what a process sent before it died is still taken.
const lastPolls = 1000

// DeclareFailed says that a process is dead, with its ranks: what was sent by it and is
// here is taken, nothing more is, and whatever waits for it ends with ErrProcFailed.
// Twice is harmless.
func (e *Engine) DeclareFailed(process int) {
	l := e.link(process)
	if l == nil {
		return // a dead process tells nobody
	}
	e.enter()
	for polls := 0; polls < lastPolls && e.pollAll(); polls++ {
	}
	failed := slices.Clone(e.Failed())
	known := len(failed)
	for r := range e.peers {
		p := &e.peers[r]
		if p.link.Load() == l && !p.failed.Swap(true) && r < e.size {
			failed = append(failed, topology.Rank(r))
		}
	}
	e.fence(l)
	if len(failed) > known {
		e.failures.Store(&failed)
	}
	boxes := *e.boxes.Load()
	for _, b := range boxes {
		b.endFailed(l)
	}
	l.mu.Lock()
	l.bury(boxes)
	l.mu.Unlock()
	e.leave()
	if len(failed) == known {
		return
	}
	for _, b := range boxes {
		b.mu.Lock()
		w := b.witness
		b.mu.Unlock()
		if w != nil {
			w.Failed()
		}
	}
}

// DeclareRankFailed is DeclareFailed of the process of a rank.
func (e *Engine) DeclareRankFailed(r topology.Rank) {
	if p := &e.peers[r]; !p.failed.Load() {
		if l := p.link.Load(); l != nil {
			e.DeclareFailed(l.process)
		}
	}
}

// endFailed ends what b's rank waits for from ranks that have failed, of which one was
// in the process of l.
func (b *Box) endFailed(l *link) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble.Store(true)
	b.endRefusedLocked()
	for _, all := range []*opList{&b.posted.any, &b.probes} {
		for o := all.head; o != nil; o = o.next { // it may have to be acknowledged
			if w := o.wake.Load(); w != nil {
				w.signal()
			}
		}
	}
	for a := b.unexpected.head; a != nil; {
		next := a.allNext
		if a.link == l { // its body will never come
			b.removeLocked(a)
			b.freeArrivalLocked(a)
		}
		a = next
	}
}

// endRefusedLocked ends the receives and probes that nobody will ever match.
func (b *Box) endRefusedLocked() {
	for _, l := range append(b.posted.lists(), &b.probes) {
		b.endRefusedOf(l)
	}
}

func (b *Box) endRefusedOf(all *opList) {
	for o := all.head; o != nil; {
		next := o.next
		b.endIfRefusedLocked(o)
		o = next
	}
}

// endIfRefusedLocked ends o, if nobody will ever match it. True if it did.
func (b *Box) endIfRefusedLocked(o *op) bool {
	err := b.refusesLocked(o.context, o.peer)
	if err == nil {
		return false
	}
	if o.queue != nil {
		o.queue.remove(o)
	}
	o.err = err
	o.finishLocked()
	return true
}

// refusesLocked is why there are no more messages between b's rank and a peer on a
// context; nil if there may be.
func (b *Box) refusesLocked(context uint32, peer topology.Rank) error {
	switch {
	case b.refusesContext(context):
		return ErrRevoked
	case peer >= 0 && b.e.peers[peer].failed.Load():
		return ErrProcFailed
	}
	return nil
}

// Refuses is why a probe that m matches, and finds nothing, will never find something,
// or may not; nil if it may.
func (b *Box) Refuses(m Match) error {
	if !b.trouble.Load() {
		return nil
	}
	b.mu.Lock()
	err, w := b.refusesLocked(m.Context, m.Peer), b.witness
	b.mu.Unlock()
	if err == nil && m.Peer == AnySource && w != nil && w.Unacknowledged(m.Context) {
		err = ErrAnyFailed
	}
	return err
}

// AwaitsAny tells whether a receive or a probe from any source is under way on a context.
func (b *Box) AwaitsAny(context uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range []*opList{&b.posted.any, &b.probes} {
		for o := l.head; o != nil; o = o.next {
			if o.context == context && o.peer == AnySource {
				return true
			}
		}
	}
	return false
}

// raised tells whether o waits for any source, and one that has failed was not
// acknowledged.
func (o *op) raised() bool {
	b := o.box
	if !b.trouble.Load() {
		return false
	}
	b.mu.Lock()
	waits := o.kind != KindSend && o.kind != KindTask && o.kind != kindTurn && o.peer == AnySource && o.queue != nil
	context, w := o.context, b.witness
	b.mu.Unlock()
	return waits && w != nil && w.Unacknowledged(context)
}

// raised tells whether one of g's ops is.
func (g *goal) raised() bool {
	if g.one != nil {
		return g.one.raised()
	}
	return slices.ContainsFunc(g.any, func(r Request) bool { return r.op != nil && !r.finished() && r.op.raised() })
}

// unlessRaised is what comes of a receive that began in this call, when Wait answers s and err:
// if that is ErrProcFailedPending, the receive is taken back.
func (r Request) unlessRaised(c *Call, s Status, err error) (Status, error) {
	if err == nil || !errors.Is(err, ErrProcFailedPending) {
		return s, err
	}
	r.Cancel()
	if s, err = r.Wait(untilDone, c); err != nil && errors.Is(err, ErrCancelled) {
		err = ErrAnyFailed
	}
	return s, err
}

// bury ends what is under way to and from the link's process, which has failed, and
// empties its log. It is fenced. Polling and mu are held.
func (l *link) bury(boxes []*Box) {
	for _, o := range l.parts {
		o.err = ErrProcFailed
		o.finish()
	}
	l.parts = nil
	for x := l.queue.head; x != nil; {
		next := x.qnext
		x.queued = false
		l.endEntry(x)
		if !x.kept {
			l.freeEntry(x)
		}
		x = next
	}
	l.queue = entryQueue{}
	for _, b := range boxes {
		b.streams.all(func(s *stream) {
			if l.e.peers[s.peer].link.Load() == l {
				for s.head != nil {
					l.endEntry(s.head)
					l.unkeep(s.head)
				}
				s.past.forget(&l.chunks, s.sent)
				s.offers, s.again, s.acked = numbers{}, nil, s.sent
			}
		})
	}
	l.logged = 0
	l.bulk = nil
	l.departs = nil
	l.ctl.clear()
}

// endEntry ends the send of x, whose body is the program's again.
func (l *link) endEntry(x *entry) {
	x.withdraw()
	x.streaming = false
	o := x.op
	if o == nil {
		return
	}
	x.op, x.body, x.lent = nil, nil, false
	o.entry = nil
	o.err = ErrProcFailed
	o.finish()
}

// gaveUp is told that the connection to a process is lost for good. Polling is held.
func (e *Engine) gaveUp(process int, err error) {
	if e.cfg.Lost != nil {
		e.cfg.Lost(process, err)
		return
	}
	lost := &LostError{Process: process, Err: err, Waits: map[topology.Rank][]WaitInfo{}}
	for _, b := range *e.boxes.Load() {
		lost.Waits[b.rank] = b.Waits()
	}
	e.fail(lost, false)
}

// Unreachable says that a process cannot be connected to. It ends the job, unless
// failures are reported.
func (e *Engine) Unreachable(process int, err error) {
	if e.cfg.Lost != nil {
		e.cfg.Lost(process, err)
		return
	}
	e.Fail(fmt.Errorf("process %d cannot be reached: %w", process, err))
}
