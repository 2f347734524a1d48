package engine

import (
	"context"
	"sync/atomic"

	"github.com/mpiv/mpiv/topology"
)

// What a rank does hangs on its messages, and on choices that are not its own: which
// message a receive from any source gets, whether a test finds its request done. A
// rank that goes on from a snapshot must be given the same choices again, or what it
// sends would not be what others have had from it already. So each choice is recorded
// before the rank can act on it: a determinant.
//
// After Elnozahy, Alvisi, Wang and Johnson, "A Survey of Rollback-Recovery Protocols
// in Message-Passing Systems" (ACM Computing Surveys 34, 2002), the section on
// log-based rollback recovery.

// A ChoiceKind says what was chosen.
type ChoiceKind uint8

const (
	ChoseMessage ChoiceKind = iota + 1 // a receive from any source got message Seq of Source
	ChoseOutcome                       // a decision had the outcome Seq; of a probe, message Seq of Source
	ChoseNothing                       // all decisions up to this one that are not recorded had the outcome 0
)

// A Choice is one determinant.
type Choice struct {
	Kind   ChoiceKind
	Index  uint32        // of the receive from any source, or of the decision, since the last snapshot; from 1
	Source topology.Rank // where it is one of a message
	Seq    uint64
}

// choices is those of a rank.
type choices struct {
	on     atomic.Bool // they are recorded
	polls  atomic.Uint32
	told   atomic.Uint32 // decisions of which the record knows
	posts  uint32        // guarded by the box's mu, as what follows
	record func(Choice)

	// Of an earlier life, to be made again.
	messages map[uint32]Choice
	outcomes map[uint32]Choice
	last     uint32 // decision that is known
	lastPost uint32 // receive that is known
}

// Record has record called with each new choice of the box's rank, before it shows. It is
// called with a lock held: it must neither wait nor call back. again is the choices
// since the snapshot from which the rank goes on, in their order, of which posts
// and polls tell how many the state that it has been given is beyond them.
func (b *Box) Record(record func(Choice), again []Choice, posts, polls uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.choices
	c.record = record
	c.messages, c.outcomes = make(map[uint32]Choice), make(map[uint32]Choice)
	for _, x := range again {
		switch x.Kind {
		case ChoseMessage:
			c.messages[x.Index] = x
			c.lastPost = max(c.lastPost, x.Index)
		case ChoseOutcome:
			c.outcomes[x.Index] = x
			c.last = max(c.last, x.Index)
		case ChoseNothing:
			c.last = max(c.last, x.Index)
		}
	}
	c.posts = posts
	c.polls.Store(polls)
	c.told.Store(polls)
	c.on.Store(true)
}

// EndRecord has choices recorded no more: the rank makes none here.
func (b *Box) EndRecord() { b.choices.on.Store(false) }

// Saved begins to count choices anew: a snapshot was taken.
func (b *Box) Saved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.choices
	clear(c.messages)
	clear(c.outcomes)
	c.posts, c.last, c.lastPost = 0, 0, 0
	c.polls.Store(0)
	c.told.Store(0)
}

// Replaying tells whether the rank has yet to make choices again that are known from
// an earlier life. Until then no snapshot may be taken of it.
func (b *Box) Replaying() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.choices.posts < b.choices.lastPost || b.choices.polls.Load() < b.choices.last
}

// Chosen is how many receives from any source and decisions there were since the last
// snapshot. All that the rank has learned from them is recorded when it returns.
func (b *Box) Chosen() (posts, polls uint32) {
	b.tell()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.choices.posts, b.choices.polls.Load()
}

// Chooses tells whether the choices of the rank are recorded.
func (b *Box) Chooses() bool { return b.choices.on.Load() }

// anyLocked numbers the receive o from any source. If it is known which message it
// got, it gets that.
func (b *Box) anyLocked(o *op) {
	c := &b.choices
	c.posts++
	o.choice = c.posts
	if x, ok := c.messages[o.choice]; ok {
		o.peer, o.only = x.Source, x.Seq
	}
}

// gotLocked records that o got a message, unless that is known from an earlier life.
func (b *Box) gotLocked(o *op, source topology.Rank, seq uint64) {
	if _, known := b.choices.messages[o.choice]; known {
		return
	}
	b.choices.record(Choice{Kind: ChoseMessage, Index: o.choice, Source: source, Seq: seq})
}

// Decide begins the n-th decision: something that could come out one way or another, as a
// test does. known: it was made before, and came out so. Otherwise the caller finds
// out, and says Decided unless that is 0.
func (b *Box) Decide() (n uint32, before Choice, known bool) {
	c := &b.choices
	n = c.polls.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, found := c.outcomes[n]
	return n, before, found || n <= c.last
}

// Decided records the outcome of the n-th decision. Others may have begun since.
func (b *Box) Decided(n uint32, source topology.Rank, outcome uint64) {
	c := &b.choices
	b.mu.Lock()
	defer b.mu.Unlock()
	c.told.Store(max(n, c.told.Load()))
	c.record(Choice{Kind: ChoseOutcome, Index: n, Source: source, Seq: outcome})
}

// tell records, before the rank sends, what it has learned from decisions that had
// the outcome 0.
func (b *Box) tell() {
	if n := b.choices.polls.Load(); n != b.choices.told.Load() {
		b.tellOf(n)
	}
}

// tellOf is tell of the decisions up to n.
func (b *Box) tellOf(n uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.choices
	if c.told.Store(max(n, c.told.Load())); n > c.last {
		c.record(Choice{Kind: ChoseNothing, Index: n})
	}
}

// again waits for the message that a probe found in an earlier life.
func (b *Box) again(m Match, x Choice, kind Kind) (Status, *Message, error) {
	m.Peer = x.Source
	return b.waitOnly(context.Background(), callAgain, m, kind, x.Seq, 0)
}

var callAgain = &Call{Op: "Probe"}
