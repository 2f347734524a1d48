package engine

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// An AbandonedError: a rank takes no more part in the messages of a context and
// a tag. Waits for one of them end with it.
type AbandonedError struct {
	By    topology.Rank
	Cause string
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("abandoned by rank %d: %s", e.By, e.Cause)
}

// A callID is what the messages of one call of a collective have in common.
type callID struct {
	context uint32
	tag     int32
}

// abandoned is the calls that a box has heard are abandoned, by runs: who gives up one call of a
// context gives up the next, too, and for the same cause.
type abandoned struct {
	runs  []run // the oldest first
	alarm *atomic.Bool
}

// A run is calls of a context, from a tag to another.
type run struct {
	context     uint32
	first, last int32
	check       uint16 // of the first, as all
	passed      bool   // see PassAbandoned
	why         *AbandonedError
}

// keptAbandoned is how many runs a box remembers. Who enters a call of an older
// one waits for as long as its context lets it.
const keptAbandoned = 256

// why is nil if the call was not abandoned.
func (a *abandoned) why(id callID) *AbandonedError {
	for _, r := range a.runs {
		if r.context == id.context && r.first <= id.tag && id.tag <= r.last {
			return r.why
		}
	}
	return nil
}

// note is false if the call was abandoned before.
func (a *abandoned) note(id callID, check uint16, why *AbandonedError) bool {
	if a.why(id) != nil {
		return false
	}
	if a.alarm != nil {
		a.alarm.Store(true)
	}
	for i := range a.runs {
		if r := &a.runs[i]; r.context == id.context && r.last == id.tag-1 && *r.why == *why {
			r.last = id.tag
			return true
		}
	}
	if len(a.runs) == keptAbandoned {
		a.runs = slices.Delete(a.runs, 0, 1)
	}
	a.runs = append(a.runs, run{context: id.context, first: id.tag, last: id.tag, check: check, why: why})
	return true
}

// Alarm has flag set when the box hears of an abandoned call, or has.
func (b *Box) Alarm(flag *atomic.Bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned.alarm = flag
	if len(b.abandoned.runs) > 0 {
		flag.Store(true)
	}
}

// Abandoned is why the messages of a context and a tag were abandoned; nil if
// they were not.
func (b *Box) Abandoned(context uint32, tag int32) *AbandonedError {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.abandoned.why(callID{context, tag})
}

// Abandon says that the box's rank takes no more part in the messages of m's
// context and tag, and tells peers. If somebody has said so before, they know; but who was
// first is chance, so where a rank may have to do again what it did it tells them in any case:
// the numbers of its messages hang on that.
// The cause is cut to what a control message holds.
func (b *Box) Abandon(m Match, cause string, peers iter.Seq[topology.Rank]) {
	cause = strings.ToValidUTF8(cause[:min(len(cause), maxControl)], "")
	id, why := callID{m.Context, m.Tag}, &AbandonedError{b.rank, cause}
	if !b.abandon(id, m.Check, why) && !b.e.cfg.Replay {
		return
	}
	b.passAbandoned(m, why, peers)
}

func (b *Box) passAbandoned(m Match, why *AbandonedError, peers iter.Seq[topology.Rank]) {
	id := callID{m.Context, m.Tag}
	for m.Peer = range peers {
		if b.e.err() != nil {
			return
		}
		b.notify(m, []byte(why.Cause), func(to *Box) { to.abandonLocked(id, m.Check, why) })
	}
}

// PassOn tells peers what the box's rank has heard of a call, where who told it may fail before all have heard.
func (b *Box) PassOn(m Match, peers iter.Seq[topology.Rank]) {
	why := b.Abandoned(m.Context, m.Tag)
	if b.e.cfg.Lost == nil || why == nil || why.By == b.rank {
		return
	}
	b.passAbandoned(m, &AbandonedError{b.rank, why.Cause}, peers)
}

// PassAbandoned tells others, once, what the box's rank has heard from ranks that have failed: they may have failed before all
// had heard, and others wait for who has. peers is those of a context; nil: it is of no communicator yet, or any more, or they were told
// by PassOn. peers is called with locks held.
func (b *Box) PassAbandoned(peers func(context uint32) iter.Seq[topology.Rank]) {
	failed := b.e.Failed()
	b.passAbandonedOf(func(r *run) bool { return slices.Contains(failed, r.why.By) }, peers)
}

// Leave tells others what the box's rank has heard about the contexts of a communicator with these members, which it leaves: when
// who told it fails nobody here knows any more who is to be told. peers is as for PassAbandoned.
func (b *Box) Leave(base uint32, members iter.Seq[topology.Rank], peers func(context uint32) iter.Seq[topology.Rank]) {
	if b.e.cfg.Lost == nil { // no rank fails alone
		return
	}
	if by, is := b.RevokedBy(base); is && by != b.rank {
		b.PassRevoke(base, members)
	}
	b.passAbandonedOf(func(r *run) bool { return baseOf(r.context) == base && r.why.By != b.rank }, peers)
}

// passAbandonedOf tells others, once, of the calls that are due.
func (b *Box) passAbandonedOf(due func(r *run) bool, peers func(context uint32) iter.Seq[topology.Rank]) {
	var pass []run
	b.mu.Lock()
	for i := range b.abandoned.runs {
		if r := &b.abandoned.runs[i]; !r.passed && due(r) && peers(r.context) != nil {
			r.passed = true
			pass = append(pass, *r)
		}
	}
	b.mu.Unlock()
	for _, r := range pass {
		all := peers(r.context)
		if all == nil {
			continue
		}
		why := &AbandonedError{b.rank, r.why.Cause}
		for tag := r.first; tag <= r.last; tag++ {
			b.passAbandoned(Match{Context: r.context, Tag: tag, Check: r.check}, why, all)
		}
	}
}

// notify tells the rank that m names what a notice says: by one, or where it is in this process by
// noted, which is called with its mu held. Either way the notice has a number, and is kept as messages are.
func (b *Box) notify(m Match, cause []byte, noted func(to *Box)) {
	if b.turns.shared() {
		b.takeTurn(m)
		defer b.turns.passTurn()
	}
	for p := &b.e.peers[m.Peer]; ; {
		if l := p.link.Load(); l != nil {
			if l.notify(b, m, cause) {
				return
			}
		} else if to := p.box.Load(); to != nil && to.hear(b, m, cause, noted) {
			return
		}
	}
}

// hear has the box take a notice of from, a rank of the same process. False if the box's rank has left.
func (b *Box) hear(from *Box, m Match, cause []byte, noted func(to *Box)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return false
	}
	h := wire.Header{Kind: wire.Abandon, Check: m.Check, Context: m.Context, Source: from.rank, Dest: b.rank, Tag: m.Tag}
	b.countLocked(from, &h, cause)
	noted(b)
	return true
}

// abandon ends the receives and the waits for messages of id, and those of the box's messages
// that nobody will receive now. False if it was done before.
func (b *Box) abandon(id callID, check uint16, why *AbandonedError) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.abandonLocked(id, check, why)
}

func (b *Box) abandonLocked(id callID, check uint16, why *AbandonedError) bool {
	if !b.abandoned.note(id, check, why) {
		return false
	}
	for _, w := range b.waits {
		if o := w.goal.one; o != nil && o.of(id) {
			w.told.Store(why)
			if sleeper := o.wake.Load(); sleeper != nil {
				sleeper.signal()
			}
		}
	}
	for _, l := range b.posted.lists() {
		for o := l.head; o != nil; {
			next := o.next
			b.endIfAbandonedLocked(o)
			o = next
		}
	}
	b.purgeLocked()
	return true
}

// endIfAbandonedLocked ends the receive o, which has no message, if it is of a call that was abandoned. True if it did. What
// has come of that call has been dropped: the message that comes next need not be the one that o is for.
func (b *Box) endIfAbandonedLocked(o *op) bool {
	if o.check == 0 {
		return false
	}
	why := b.abandoned.why(callID{o.context, o.tag})
	if why == nil {
		return false
	}
	if o.queue != nil {
		o.queue.remove(o)
	}
	o.err = why
	o.finishLocked()
	return true
}

// of tells whether o is about a message of id.
func (o *op) of(id callID) bool { return o.context == id.context && o.tag == id.tag }

// purgeLocked drops messages of abandoned calls, of this and of earlier ones.
// Those whose body is still with the sender it takes back itself.
func (b *Box) purgeLocked() {
	for a := b.unexpected.head; a != nil; {
		next := a.allNext
		if a.sender == nil && a.link == nil && b.nobodyReceivesLocked(a) {
			b.removeLocked(a)
			if a.via != nil {
				a.via.unexpectedBytes(-a.cost())
			}
			b.freeArrivalLocked(a)
		}
		a = next
	}
}

// nobodyReceivesLocked: a is of a call that was abandoned, or on a revoked context.
func (b *Box) nobodyReceivesLocked(a *arrival) bool {
	h := &a.header
	return h.Check != 0 && b.abandoned.why(callID{h.Context, h.Tag}) != nil || b.refusesContext(h.Context)
}

// abandonBody is what sums are taken of instead of a cause, whose words may be others in
// another life.
var abandonBody = []byte("abandoned")

// arrivedAbandon: a rank of the peer has abandoned a call.
func (l *link) arrivedAbandon(in *incoming, cause []byte) {
	h, s := &in.header, in.stream
	if h.Seq <= s.got {
		l.compare(s, h, sumOf(h, abandonBody))
		l.repeated(s, in.length)
		return
	}
	if l.replay {
		s.sums.add(h.Seq, sumOf(h, abandonBody))
	}
	l.received(s, h.Seq, in.length)
	if h.Context%contextsOf == lastContext && h.Check == 0 {
		s.box.revoke(baseOf(h.Context), h.Source)
		return
	}
	s.box.abandon(callID{h.Context, h.Tag}, h.Check, &AbandonedError{h.Source, string(cause)})
}

// A takingBack is the context of waits that only their goal may end, so that no
// buffer is given back while it is in use.
type takingBack struct{ context.Context }

var untilDone = takingBack{context.Background()}
