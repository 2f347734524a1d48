package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// Status says what a receive or probe found.
type Status struct {
	Source topology.Rank // in the world
	Tag    int32
	Bytes  int // length of the message as sent, also when it was truncated
}

// A Kind is what a request does.
type Kind uint8

const (
	KindRecv Kind = iota + 1
	KindSend
	kindProbe  // wants to know of a message
	kindMprobe // wants to have it
	KindTask   // is worked on by the library: a non-blocking collective
	kindTurn   // wants to send, and it is another's turn
)

func (k Kind) String() string {
	return [...]string{"", "receive", "send", "probe", "mprobe", "task", "turn"}[k]
}

// An op is a request under way. It is used again after its Request was waited
// for; state tells the uses apart.
type op struct {
	state uint32                 // odd when what follows is final. Each use begins 4 after the one before
	wake  atomic.Pointer[waiter] // whom to wake when done; may be of a later use: wakes are hints

	box  *Box // of the rank that asked; set once
	self waiter

	kind    Kind
	context uint32
	check   uint16
	peer    topology.Rank // of whom or to whom; may be AnySource
	tag     int32         // may be AnyTag
	buf     []byte        // what is sent, or where it is received
	order   uint64        // among the posted of its box
	choice  uint32        // of a receive or a task, where choices are recorded: its number in
	series  Series        //   this
	only    uint64        // if not 0: it gets the message with that number and no other; of a send: never, if it ends when it is asked back

	status Status
	err    error
	msg    *arrival // of a finished kindMprobe; of a local KindSend that waits for its receiver

	prev, next *op // in the queue it is in
	queue      *opList

	seq uint64 // of a receive: the number of its message

	// A receive whose body is on its way in parts.
	got, want uint64
	awaits    bool // the body must be offered again before it can be asked for

	// A send.
	entry *entry

	// A task.
	run func() // if it is deferred
	ctx context.Context
}

func (o *op) init(b *Box) { o.box, o.self.ch = b, make(chan struct{}, 1) }

func (o *op) now() uint32 { return atomic.LoadUint32(&o.state) }
func (o *op) done() bool  { return o.now()&1 != 0 }

// matches tells whether a message is for the receive or probe o.
func (o *op) matches(context uint32, source topology.Rank, tag int32, seq uint64) bool {
	return (o.only == 0 || o.only == seq) && o.context == context && (o.peer == source || o.peer == AnySource) && (o.tag == tag || o.tag == AnyTag)
}

// finish makes o's result final and wakes who waits for it. After that o may
// be in use for something else.
func (o *op) finish() {
	atomic.StoreUint32(&o.state, o.state|1) // nobody else changes it before it is done
	if w := o.wake.Load(); w != nil {
		w.signal()
	}
}

// finishLocked is finish where the box's mu is held: as who goes to sleep holds
// it too, the store need not have left the core before the look at wake.
func (o *op) finishLocked() {
	release.Store32(&o.state, o.state|1)
	if w := o.wake.Load(); w != nil {
		w.signal()
	}
}

// arrived sets o's status for a message of n bytes; o.buf has its start.
func (o *op) arrived(h *wire.Header, n int) {
	o.status = Status{Source: h.Source, Tag: h.Tag, Bytes: n}
	o.seq = h.Seq
	if n > len(o.buf) || h.Check != o.check {
		o.arrivedWrong(h, n)
	}
}

// arrivedWrong makes the error of a message that is not what o expected.
//
//go:noinline
func (o *op) arrivedWrong(h *wire.Header, n int) {
	if n > len(o.buf) {
		o.err = fmt.Errorf("%w: %d bytes in %d", ErrTruncate, n, len(o.buf))
	}
	if h.Check != o.check {
		o.err = &CheckError{Want: o.check, Got: h.Check}
	}
}

// A CheckError: two ranks met in different collectives, or in one with
// different roots.
type CheckError struct {
	Want, Got uint16
}

func (e *CheckError) Error() string { return "the ranks are not in the same collective" }

// A waiter is a goroutine that sleeps until one of its ops is done.
type waiter struct{ ch chan struct{} }

//go:noinline
func (w *waiter) signal() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// An opList is a queue of ops; each op is in at most one.
type opList struct{ head, tail *op }

func (l *opList) push(o *op) {
	o.prev, o.next, o.queue = l.tail, nil, l
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
}

func (l *opList) remove(o *op) {
	if o.prev == nil {
		l.head = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		l.tail = o.prev
	} else {
		o.next.prev = o.prev
	}
	o.prev, o.next, o.queue = nil, nil, nil
}

// insert puts o back where its order says, after it was taken out too early.
func (l *opList) insert(o *op) {
	at := l.tail
	for at != nil && at.order > o.order {
		at = at.prev
	}
	o.prev, o.queue = at, l
	if at == nil {
		o.next, l.head = l.head, o
	} else {
		o.next, at.next = at.next, o
	}
	if o.next == nil {
		l.tail = o
	} else {
		o.next.prev = o
	}
}
