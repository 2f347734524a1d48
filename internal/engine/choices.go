package engine

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// What a rank does hangs on its messages, and on choices that are not its own: which
// message a receive from any source gets, whether a test finds its request done, or a
// cancellation comes in time. A rank that goes on from a snapshot must be given the same
// choices again, or what it sends would not be what others have had from it already. So
// each choice is recorded before the rank can act on it: a determinant.
//
// After Elnozahy, Alvisi, Wang and Johnson, "A Survey of Rollback-Recovery Protocols
// in Message-Passing Systems" (ACM Computing Surveys 34, 2002), the section on
// log-based rollback recovery.

// A ChoiceKind says what was chosen.
type ChoiceKind uint8

const (
	ChoseMessage   ChoiceKind = iota + 1 // a receive from any source got message Seq of Source
	ChoseOutcome                         // a decision had the outcome Seq; of a probe, message Seq of Source; of what waits, perhaps OutOfTime
	ChoseNothing                         // all decisions up to this one that are not recorded had the outcome 0
	ChoseCancel                          // the receive Index of those that want Source, a wish, was asked back: in time if Seq is 1, too late if it is 0
	ChoseRetract                         // message Seq to Source was asked back, of which Index is the Answer
	ChoseReturn                          // message Seq of Source was given back
	ChoseTask                            // message Seq to Source was sent by the task Index
	ChoseProgram                         // message Seq to Source was sent by the program, while tasks were under way
	ChoseCancelAny                       // ChoseCancel of a receive from any source
)

// A Series is things of a rank that are numbered in their order. Each series has numbers of its own: in which
// order the goroutines of a rank go on in different ones makes no difference.
type Series uint8

const (
	OfAny       Series = iota // receives from any source
	OfTasks                   // non-blocking collectives
	OfDecisions               // tests, probes and the like
	OfNamed                   // receives that name their source: several series, see begun
)

// Counts is how many there were of each series, but for OfNamed.
type Counts [OfNamed]uint32

// Series is the one in which Index is a number; false if it is in none.
func (k ChoiceKind) Series() (Series, bool) {
	switch k {
	case ChoseMessage, ChoseCancelAny:
		return OfAny, true
	case ChoseTask:
		return OfTasks, true
	case ChoseOutcome, ChoseNothing:
		return OfDecisions, true
	}
	return 0, false
}

// An Answer is what has come of asking a message back.
type Answer uint32

const (
	AskedTooLate Answer = iota
	AskedInTime
	Asked // that is not known yet
)

// A Choice is one determinant. For what is asked back see docs/decisions/0031-asked-back.md.
type Choice struct {
	Kind   ChoiceKind
	Index  uint32        // in the Kind's series, since the last snapshot; from 1
	Source topology.Rank // where it is one of a message
	Seq    uint64
}

// begun is how many receives a rank has begun, since its first life began, of those that name their source. What wants
// other messages is numbered apart: in which order the goroutines of a rank begin such receives makes no difference. Where
// there is no place left near that of a wish, it shares a number: then these must come in one order.
type begun [4096]struct {
	wish wish
	n    uint32 // 0: the place is free
}

// A wish tells what a receive wants: its source, its context and its tag.
type wish uint32

func (o *op) wish() wish {
	x := uint64(o.context)<<32 | uint64(uint32(o.tag))
	x += uint64(o.peer) * 0xff51afd7ed558ccd
	return wish(x * 0xc4ceb9fe1a85ec53 >> 33) // it is positive as a Rank
}

// of is where the receives that want w are counted. Who takes it counts one.
func (n *begun) of(w wish) *uint32 {
	at := int(w >> (31 - 12))
	for i := range begunNear {
		x := &n[(at+i)%len(n)]
		if x.n == 0 {
			x.wish = w
		}
		if x.wish == w {
			return &x.n
		}
	}
	return &n[at%len(n)].n
}

// begunNear is in how many places in a row a wish may be.
const begunNear = 16

// ahead tells whether the receive of that number, which wants w, has yet to begin.
func (n *begun) ahead(w wish, number uint32) bool { return int32(number-*n.of(w)) > 0 }

// choices is those of a rank.
type choices struct {
	on     atomic.Bool // they are recorded
	polls  atomic.Uint32
	told   atomic.Uint32 // decisions of which the record knows
	done   Counts        // but for decisions; guarded by the box's mu, as what follows
	begun  *begun        // nil: none is counted
	record func(Choice)

	// Of an earlier life, to be made again.
	messages map[uint32]Choice
	outcomes map[uint32]Choice
	cancels  map[post]bool // also those of this life: whether it was in time
	asked    atomic.Pointer[map[message]Answer]
	given    []*arrival // messages that were given back, for probes that found them before
	last     Counts     // that are known
	ahead    int        // receives that name their source, are known to have been asked back, and have yet to begin
	met      time.Time  // when the last of them began
	vain     bool       // a receive has waited in vain for the message that an earlier life seemed to have had
}

// A post is a receive.
type post struct {
	series Series
	wish   wish // of those that name their source; else 0
	number uint32
}

func (o *op) post() post {
	if o.series == OfNamed {
		return post{OfNamed, o.wish(), o.choice}
	}
	return post{series: o.series, number: o.choice}
}

// A message is one to a peer.
type message struct {
	peer topology.Rank
	seq  uint64
}

// A Recording is how the choices of a rank are recorded.
type Recording struct {
	// Record is called with each new choice, before it shows. It is called with a lock held:
	// it must neither wait nor call back.
	Record func(Choice)
	// Again is the choices since the snapshot from which the rank goes on, in their order, of
	// which Done tells how many the state that it has been given is beyond them.
	Again []Choice
	Done  Counts
}

// Record begins to record the choices of the box's rank, which begins here: see Adopt for one that
// comes.
func (b *Box) Record(r Recording) {
	b.e.enter()
	defer b.e.leave()
	b.record(r)
	b.giveBackAgain(r)
}

// giveBackAgain gives back what an earlier life has given back. Polling is held.
func (b *Box) giveBackAgain(r Recording) {
	for _, x := range r.Again {
		if x.Kind == ChoseReturn {
			b.giveBack(x.Source, x.Seq)
		}
	}
}

func (b *Box) record(r Recording) {
	turns := make(map[message]uint32)
	defer func() { b.turns.set(turns) }()
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.choices
	c.record = r.Record
	c.messages, c.outcomes, c.cancels = make(map[uint32]Choice), make(map[uint32]Choice), make(map[post]bool)
	asked := make(map[message]Answer)
	if c.begun == nil {
		c.begun = new(begun)
	}
	c.ahead, c.met, c.vain = 0, time.Now(), false
	for _, x := range r.Again {
		series, numbered := x.Kind.Series()
		if numbered {
			c.last[series] = max(c.last[series], x.Index)
		}
		switch x.Kind {
		case ChoseMessage:
			c.messages[x.Index] = x
		case ChoseOutcome:
			c.outcomes[x.Index] = x
		case ChoseCancelAny:
			c.cancels[post{series: OfAny, number: x.Index}] = x.Seq != 0
		case ChoseCancel:
			c.cancels[post{OfNamed, wish(x.Source), x.Index}] = x.Seq != 0
		case ChoseRetract:
			asked[message{x.Source, x.Seq}] = Answer(x.Index)
		case ChoseTask:
			turns[message{x.Source, x.Seq}] = x.Index
		case ChoseProgram:
			turns[message{x.Source, x.Seq}] = 0
		}
	}
	for p := range c.cancels {
		if p.series == OfNamed && c.begun.ahead(p.wish, p.number) {
			c.ahead++
		}
	}
	if c.asked.Store(nil); len(asked) > 0 {
		c.asked.Store(&asked)
	}
	c.done = r.Done
	c.polls.Store(r.Done[OfDecisions])
	c.told.Store(r.Done[OfDecisions])
	c.on.Store(true)
}

// EndRecord has choices recorded no more: the rank makes none here.
func (b *Box) EndRecord() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.choices.on.Store(false)
	b.choices.record = func(Choice) {}
}

// Saved begins to count choices anew: a snapshot was taken. forget is called while none is
// recorded, as record is.
func (b *Box) Saved(forget func()) {
	b.turns.set(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	forget()
	c := &b.choices
	clear(c.messages)
	clear(c.outcomes)
	clear(c.cancels)
	c.asked.Store(nil)
	c.given = nil
	c.done, c.last, c.ahead = Counts{}, Counts{}, 0
	c.polls.Store(0)
	c.told.Store(0)
}

// Replaying tells whether the rank has yet to make choices again that are known from
// an earlier life. Until then no snapshot may be taken of it.
func (b *Box) Replaying() bool {
	if asked := b.choices.asked.Load(); asked != nil {
		for m := range *asked {
			s := b.streams.at(m.peer)
			unlock := b.lockSending(s)
			sent := s.sent
			if unlock(); sent < m.seq {
				return true
			}
		}
	}
	if b.turns.repeats(b) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.repeatsLocked()
}

// repeatsLocked tells whether a receive, a task or a decision is yet to come that is known.
func (b *Box) repeatsLocked() bool {
	for s, n := range b.choices.countsLocked() {
		if n < b.choices.last[s] {
			return true
		}
	}
	c := &b.choices
	if c.ahead > 0 && time.Since(c.met) > againPatience {
		c.ahead = 0
		maps.DeleteFunc(c.cancels, func(p post, _ bool) bool { return p.series == OfNamed && c.begun.ahead(p.wish, p.number) })
	}
	return c.ahead > 0
}

// againPatience is how long is waited for a rank to do what it did in an earlier life, where the clock may have it do less.
const againPatience = 10 * time.Second

func (c *choices) countsLocked() Counts {
	n := c.done
	n[OfDecisions] = c.polls.Load()
	return n
}

// Chosen is how many there were since the last snapshot. All that the rank has learned from them is
// recorded when it returns.
func (b *Box) Chosen() Counts {
	b.tell()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.choices.countsLocked()
}

// Chooses tells whether the choices of the rank are recorded.
func (b *Box) Chooses() bool { return b.choices.on.Load() }

// numbered tells whether the receive o has a number: those of collectives have none, as
// several of these may be under way at once.
func (o *op) numbered() bool { return o.check == 0 || o.peer == AnySource }

// numberLocked numbers the receive o. If it is known which message it got, or that it was
// asked back in time, it gets that one or none.
func (b *Box) numberLocked(o *op) {
	c := &b.choices
	if o.peer != AnySource {
		b.numberNamedLocked(o)
		return
	}
	o.series = OfAny
	c.done[OfAny]++
	if o.choice = c.done[OfAny]; o.choice > c.last[OfAny] {
		return
	}
	if x, ok := c.messages[o.choice]; ok {
		o.peer, o.only = x.Source, x.Seq
	}
	if c.cancels[o.post()] {
		o.only = never
	}
}

func (b *Box) numberNamedLocked(o *op) {
	c := &b.choices
	o.series = OfNamed
	n := c.begun.of(o.wish())
	if *n++; *n == 0 { // which is no number
		*n = 1
	}
	if o.choice = *n; c.ahead == 0 {
		return
	}
	if inTime, known := c.cancels[o.post()]; known {
		if c.ahead, c.met = c.ahead-1, time.Now(); inTime {
			o.only = never
		}
	}
}

// isCancelled tells whether o is a receive that was cancelled in an earlier life, in time.
func (o *op) isCancelled() bool { return o.kind == KindRecv && o.only == never }

// skipCancelled has the receive o, which was cancelled in an earlier life and is waited for in this one, be the next that
// was not: the rank has done less than it did, as there was less time. It must be the newest of its numbers.
func (b *Box) skipCancelled(o *op) {
	b.mu.Lock()
	c := &b.choices
	at := o.post()
	n := &c.done[OfAny]
	if at.series == OfNamed {
		n = c.begun.of(at.wish)
	}
	if o.queue == nil || o.only != never || *n != at.number {
		b.mu.Unlock()
		return
	}
	for first := true; ; first = false {
		inTime, known := c.cancels[at]
		if known && at.series == OfNamed && !first && c.ahead > 0 {
			c.ahead--
		}
		if !inTime {
			break
		}
		at.number++
	}
	*n, o.choice, o.only = at.number, at.number, 0
	o.queue.remove(o)
	if x, ok := c.messages[o.choice]; ok && at.series == OfAny {
		o.peer, o.only = x.Source, x.Seq
	}
	b.receiveLocked(o)
}

// CheckOrder has the engine fail if a receive or a probe waits in vain for the message that it had in an
// earlier life: another call has it, or has to have it.
func (b *Box) CheckOrder() {
	if !b.Chooses() {
		return
	}
	b.e.polling.Lock()
	defer b.e.leave()
	b.mu.Lock()
	var wrong *op
	for _, l := range append(b.posted.lists(), &b.probes) {
		for o := l.head; o != nil && wrong == nil; o = o.next {
			if o.only != 0 && o.only != never && b.streams.at(o.peer).got >= o.only {
				wrong = o // what is here is matched when it comes, or when o is posted
			}
		}
	}
	var err *NondeterminismError
	if wrong != nil {
		err = &NondeterminismError{Rank: b.rank, To: wrong.peer, Message: wrong.only, Received: true}
	}
	b.mu.Unlock()
	if err != nil {
		b.e.fail(err, false)
	}
}

// never is the number of no message.
const never = 1<<64 - 1

// OutOfTime is the outcome of a decision that waited until its ctx ended. One that had only begun may have none, as
// others tell of all that have begun: it is free.
const OutOfTime = never

// gotLocked records that the receive o from any source got a message.
func (b *Box) gotLocked(o *op, source topology.Rank, seq uint64) {
	b.choices.record(Choice{Kind: ChoseMessage, Index: o.choice, Source: source, Seq: seq})
}

// Decide begins the n-th decision: something that could come out one way or another, as a
// test does. known: it was made before, and came out so. Otherwise the caller finds
// out, and says Decided unless that is 0.
func (b *Box) Decide() (n uint32, before Choice, known bool) {
	c := &b.choices
	if n = c.polls.Add(1); n == 0 {
		b.e.Fail(fmt.Errorf("rank %d has tested, probed and the like %d times since its last snapshot, and more cannot be told apart after a death: have it call SafePoint in between", b.rank, uint64(1)<<32))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	before, found := c.outcomes[n]
	return n, before, found || n <= c.last[OfDecisions]
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
	if c.told.Store(max(n, c.told.Load())); n > c.last[OfDecisions] {
		c.record(Choice{Kind: ChoseNothing, Index: n})
	}
}

// again waits for the message that a probe found in an earlier life.
func (b *Box) again(m Match, x Choice, kind Kind) (Status, *Message, error) {
	m.Peer = x.Source
	return b.waitOnly(context.Background(), callAgain, m, kind, x.Seq, 0)
}

var callAgain = &Call{Op: "Probe"}

// cancelsLocked tells whether the receive o, which is asked back, is given: as it was in an
// earlier life; otherwise if it can, which is recorded.
func (b *Box) cancelsLocked(o *op, can bool) bool {
	c := &b.choices
	if o.choice == 0 || !c.on.Load() {
		return can
	}
	at := o.post()
	if was, known := c.cancels[at]; known {
		return was
	}
	x := Choice{Kind: ChoseCancelAny, Index: o.choice}
	if o.series == OfNamed {
		x.Kind, x.Source = ChoseCancel, topology.Rank(at.wish)
	}
	if can {
		x.Seq = 1
	}
	c.cancels[at] = can
	c.record(x)
	return can
}

// hadMessage tells whether the receive o, which its wait's ctx has ended, got its message in an earlier life: that life
// went further than this one, and did not ask for it. Then the clock was late, and is not to make a difference.
func (b *Box) hadMessage(o *op) bool {
	if o.kind != KindRecv || o.choice == 0 || o.only == never || !b.Chooses() {
		return false
	}
	b.mu.Lock()
	_, known := b.choices.cancels[o.post()]
	vain := b.choices.vain
	b.mu.Unlock()
	return !known && !vain && (o.only != 0 || b.Replaying())
}

// awaitAgain waits for the message of o, and tells whether it has come, or will not.
func (b *Box) awaitAgain(o *op, call *Call) (ended bool, err error) {
	for began := time.Now(); b.hadMessage(o); {
		ctx, stop := context.WithTimeout(context.Background(), againLook)
		err := b.e.await(ctx, call, b, goal{one: o})
		stop()
		if err == nil {
			return true, nil
		} else if err := b.e.err(); err != nil {
			return true, err
		}
		if time.Since(began) > againPatience {
			b.mu.Lock()
			b.choices.vain = true
			b.mu.Unlock()
		}
	}
	return false, nil
}

// againLook is how often it is looked whether a rank still does again what it did.
const againLook = time.Millisecond

// asked is what an earlier life was told when it asked for message n to a rank; false if
// it is not known to have asked.
func (b *Box) asked(to topology.Rank, n uint64) (Answer, bool) {
	all := b.choices.asked.Load()
	if all == nil {
		return 0, false
	}
	a, asked := (*all)[message{to, n}]
	return a, asked
}

// mayAskBack tells whether an earlier life has asked for message n to a rank, and not too late.
func (b *Box) mayAskBack(to topology.Rank, n uint64) bool {
	a, asked := b.asked(to, n)
	return asked && a != AskedTooLate
}

// asks records that message n to another rank is asked back. False if it is known that it was
// too late for that.
func (b *Box) asks(to topology.Rank, n uint64) bool {
	a, asked := b.asked(to, n)
	if !asked {
		b.learns(to, n, Asked)
	}
	return !asked || a != AskedTooLate
}

// learns records what has come of that.
func (b *Box) learns(to topology.Rank, n uint64, a Answer) {
	if to == b.rank || !b.Chooses() { // what a rank sends itself hangs on nobody else
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.choices.record(Choice{Kind: ChoseRetract, Index: uint32(a), Source: to, Seq: n})
}

// returnsLocked records that a message of another rank was given back.
func (b *Box) returnsLocked(from topology.Rank, n uint64) {
	if from != b.rank && b.Chooses() {
		b.choices.record(Choice{Kind: ChoseReturn, Source: from, Seq: n})
	}
}

// giveBack gives back message n of another rank as in an earlier life, in which it may have
// been looked for before. It may not have come yet. Polling is held.
func (b *Box) giveBack(from topology.Rank, n uint64) {
	b.mu.Lock()
	a := b.unexpected.numbered(from, n)
	if a != nil {
		b.removeLocked(a)
		b.givenLocked(&a.header, a.length)
		if a.via != nil {
			a.via.unexpectedBytes(-a.cost())
		}
		b.freeArrivalLocked(a)
	}
	b.mu.Unlock()
	s := b.streams.at(from)
	l := b.e.lockLink(from)
	if l == nil {
		return
	}
	defer l.mu.Unlock()
	if n > s.got { // then it is yet to come
		s.gaveBack(n)
		l.e.placings++ // see link.find
		return
	}
	s.answered(n)
	l.returns(s, n)
	l.pump()
}

// givenLocked shows a message that was given back to who found it with a probe before that.
func (b *Box) givenLocked(h *wire.Header, length int) {
	c := &b.choices
	if last := c.last[OfDecisions]; c.polls.Load() > last || last == 0 {
		return
	}
	a := &arrival{header: *h, length: length}
	c.given = append(c.given, a)
	for o := b.probes.head; o != nil; {
		next := o.next
		if o.kind == kindProbe && o.only == h.Seq && o.matches(h.Context, h.Source, h.Tag, h.Seq) {
			b.probes.remove(o)
			o.found(a)
			o.finishLocked()
		}
		o = next
	}
}

// foundLocked is the message that was given back and that the probe o found before that; nil
// if it has not come yet.
func (b *Box) foundLocked(o *op) *arrival {
	if o.only == 0 || o.kind != kindProbe {
		return nil
	}
	for _, a := range b.choices.given {
		if o.matches(a.header.Context, a.header.Source, a.header.Tag, a.header.Seq) {
			return a
		}
	}
	return nil
}
