package mpiv

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/trace"
)

// Status says what a receive or a probe found.
type Status struct {
	Source int // in the Comm; ProcNull for a receive from ProcNull
	Tag    int
	Count  int // elements of the receive's type, also those that were too many; bytes for a probe and for an object
	Bytes  int // length of the message as sent
}

// Send sends data to rank to of c, with a tag of 0 … MaxTag. It returns when
// data may be used again. Up to a length that depends on the way to the rank
// that is at once; a longer message waits for its receive, and so does any while the rank
// holds more than 4 MiB that it has not received.
//
// Messages between two ranks on one Comm that match the same receives are
// received in the order of their sending. MPI-4.0, "Blocking Send Operation".
func Send[T Elem](ctx context.Context, c *Comm, data []T, to, tag int) error {
	if c.takes(to, tag) && dense[T]() && c.box.TrySend(c.match(to, tag), bytesOf(data)) {
		return nil
	}
	return c.send(ctx, &callSend, outgoing(c, data), fits[T](), to, tag, engine.Standard)
}

// Ssend is Send that returns only after the receive has started.
func Ssend[T Elem](ctx context.Context, c *Comm, data []T, to, tag int) error {
	return c.send(ctx, &callSsend, outgoing(c, data), fits[T](), to, tag, engine.Synchronous)
}

// Rsend is Send for a caller who knows that the receive is posted. It makes no
// use of that.
func Rsend[T Elem](ctx context.Context, c *Comm, data []T, to, tag int) error {
	return c.send(ctx, &callRsend, outgoing(c, data), fits[T](), to, tag, engine.Standard)
}

// Recv receives a message from rank from of c, or AnySource, with that tag, or
// AnyTag, into the start of into; what lies beyond the message is untouched. A
// message that is longer fills into and ends in ErrTruncate. Its bytes are taken for elements
// of T, whatever the sender took them for.
func Recv[T Elem](ctx context.Context, c *Comm, into []T, from, tag int) (Status, error) {
	if c.takes(from, tag) && plain[T]() {
		s, err := c.box.Recv(ctx, &callRecv, c.match(from, tag), bytesOf(into))
		if err != nil || sizeOf[T]() > 1 && s.Bytes%sizeOf[T]() != 0 {
			return c.recvWrong(s, err, sizeOf[T](), from, tag)
		}
		return c.status(s, sizeOf[T]()), nil
	}
	return c.recv(ctx, bytesOf(into), fits[T](), sizeOf[T](), from, tag)
}

// RecvAlloc receives a message of any length into a new slice.
func RecvAlloc[T Elem](ctx context.Context, c *Comm, from, tag int) ([]T, Status, error) {
	return recvAlloc[T](ctx, c, &callRecvAlloc, from, tag)
}

func recvAlloc[T Elem](ctx context.Context, c *Comm, call *engine.Call, from, tag int) ([]T, Status, error) {
	if err := fits[T](); err != nil {
		return nil, Status{}, c.fail(call.Op, from, tag, err)
	}
	m, _, err := c.mprobe(ctx, call, from, tag)
	if err != nil {
		return nil, Status{}, err
	}
	size := max(sizeOf[T](), 1)
	data := make([]T, (m.status.Bytes+size-1)/size) // with room for what is no whole number of them
	r := Imrecv(m, data)
	s, err := r.waitAs(ctx, call)
	if err != nil {
		return nil, s, renamed(err, call.Op)
	}
	return data, s, nil
}

// Sendrecv sends and receives at the same time, so that ranks which exchange
// messages in a ring do not wait for each other. The buffers must not overlap. If an
// argument is wrong it does neither.
func Sendrecv[T, U Elem](ctx context.Context, c *Comm, data []T, to, sendTag int, into []U, from, recvTag int) (Status, error) {
	return sendrecv(ctx, c, &callSendrecv, data, to, sendTag, into, from, recvTag)
}

func sendrecv[T, U Elem](ctx context.Context, c *Comm, call *engine.Call, data []T, to, sendTag int, into []U, from, recvTag int) (Status, error) {
	if !c.takes(to, sendTag) || !c.takes(from, recvTag) || !plain[T]() || !plain[U]() {
		_, _, sendErr := c.dest(call.Op, fits[T](), to, sendTag)
		_, _, err := c.source(call.Op, from, recvTag)
		if unfit := fits[U](); err == nil && unfit != nil {
			err = c.fail(call.Op, from, recvTag, unfit)
		}
		if sendErr != nil || err != nil {
			return Status{}, errors.Join(sendErr, err)
		}
	}
	r := Irecv(c, into, from, recvTag)
	if r.odd != nil && r.odd.err != nil { // another request uses the buffer
		return r.early()
	}
	s := Isend(c, data, to, sendTag)
	_, sendErr := s.waitAs(ctx, call)
	if sendErr != nil {
		r.Cancel()
	}
	status, err := r.waitAs(ctx, call)
	if err != nil && errors.Is(err, ErrProcFailedPending) {
		r.Cancel()
		if status, err = r.waitAs(context.Background(), call); errors.Is(err, ErrCancelled) {
			err = c.fail(call.Op, from, recvTag, engine.ErrAnyFailed)
		}
	}
	return status, errors.Join(sendErr, ignoreCancelled(err, sendErr))
}

// ignoreCancelled is err, unless it only says what cause made of it.
func ignoreCancelled(err, cause error) error {
	if cause != nil && errors.Is(err, ErrCancelled) {
		return nil
	}
	return err
}

// SendrecvReplace is Sendrecv with one buffer, whose content is replaced by the
// message received.
func SendrecvReplace[T Elem](ctx context.Context, c *Comm, data []T, to, sendTag, from, recvTag int) (Status, error) {
	out := append([]T(nil), data...)
	return sendrecv(ctx, c, &callSendrecvReplace, out, to, sendTag, data, from, recvTag)
}

// Probe waits for a message that a Recv with these arguments would receive, and
// leaves it to be received.
func Probe(ctx context.Context, c *Comm, from, tag int) (Status, error) {
	m, null, err := c.source("Probe", from, tag)
	if err != nil || null {
		return nullStatus, err
	}
	span := c.state.span()
	s, err := c.box.Probe(ctx, &engine.Call{Op: "Probe"}, m)
	span.End(trace.Record{Op: "Probe"})
	return c.status(s, 1), c.wrap("Probe", from, tag, err)
}

// Iprobe is Probe without waiting: false if there is no such message now.
func Iprobe(c *Comm, from, tag int) (Status, bool, error) {
	m, null, err := c.source("Iprobe", from, tag)
	if err != nil || null {
		return nullStatus, null, err
	}
	s, ok := c.box.Iprobe(m)
	if !ok {
		return Status{}, false, c.wrap("Iprobe", from, tag, c.box.Refuses(m))
	}
	return c.status(s, 1), true, nil
}

// A Message was found by Mprobe or Improbe. No other receive or probe can match
// it; Mrecv or Imrecv receives it.
type Message struct {
	c      *Comm
	m      *engine.Message // nil: from ProcNull
	status engine.Status
}

// Count is the number of elements of elemBytes bytes each in the message.
func (m *Message) Count(elemBytes int) int {
	if elemBytes == 0 {
		return 0
	}
	return m.status.Bytes / elemBytes
}

// Mprobe waits for a message as Probe does and takes it.
func Mprobe(ctx context.Context, c *Comm, from, tag int) (*Message, Status, error) {
	return c.mprobe(ctx, &callMprobe, from, tag)
}

func (c *Comm) mprobe(ctx context.Context, call *engine.Call, from, tag int) (*Message, Status, error) {
	m, null, err := c.source(call.Op, from, tag)
	if err != nil {
		return nil, Status{}, err
	}
	if null {
		return &Message{c: c}, nullStatus, nil
	}
	span := c.state.span()
	msg, s, err := c.box.Mprobe(ctx, call, m)
	span.End(trace.Record{Op: call.Op})
	if err != nil {
		return nil, Status{}, c.fail(call.Op, from, tag, err)
	}
	return c.state.taken.add(&Message{c, msg, s}), c.status(s, 1), nil
}

// Improbe is Mprobe without waiting: nil if there is no such message now.
func Improbe(c *Comm, from, tag int) (*Message, Status, error) {
	m, null, err := c.source("Improbe", from, tag)
	if err != nil {
		return nil, Status{}, err
	}
	if null {
		return &Message{c: c}, nullStatus, nil
	}
	msg, s, ok := c.box.Improbe(m)
	if !ok {
		return nil, Status{}, c.wrap("Improbe", from, tag, c.box.Refuses(m))
	}
	return c.state.taken.add(&Message{c, msg, s}), c.status(s, 1), nil
}

// Mrecv receives m, once. A nil m, as of an Improbe that found nothing, is ErrRequest.
func Mrecv[T Elem](ctx context.Context, m *Message, into []T) (Status, error) {
	r := Imrecv(m, into)
	return r.waitAs(ctx, &engine.Call{Op: "Mrecv"})
}

// Imrecv starts to receive m, once.
func Imrecv[T Elem](m *Message, into []T) Request {
	if m == nil || m.c == nil {
		return failedRequest(nil, &RankError{Op: "Mrecv", Rank: -1, Peer: -1, Tag: -1, Where: callsite.Here(), Err: errNoMessage})
	}
	if err := fits[T](); err != nil {
		return m.c.failed("Mrecv", -1, -1, err)
	}
	if m.m == nil {
		return Request{c: m.c, odd: fromNobody}
	}
	if m.c.state.moved() {
		return m.c.failed("Mrecv", m.c.local(m.status.Source), int(m.status.Tag), ErrMoved)
	}
	mark, err := m.c.mark("Imrecv", bytesOf(into), true, engine.Match{Context: m.c.context, Peer: m.status.Source, Tag: m.status.Tag})
	if err != nil {
		return failedRequest(m.c, err)
	}
	r, ok := m.m.Irecv(bytesOf(into))
	if !ok {
		(&Request{c: m.c, odd: mark}).unmark() // it never began
	}
	if !ok && m.c.revoked.Load() {
		m.c.state.taken.drop(m)
		return m.c.failed("Mrecv", m.c.local(m.status.Source), int(m.status.Tag), ErrRevoked)
	}
	if !ok {
		return m.c.failed("Mrecv", m.c.local(m.status.Source), int(m.status.Tag), errReceived)
	}
	m.c.state.taken.drop(m)
	r.Note = uint32(sizeOf[T]()) + 1
	return Request{m.c, r, mark}
}

// A messageSet is the Messages of a rank that were not received yet.
type messageSet struct {
	mu  sync.Mutex // guards all
	all []*Message
}

func (s *messageSet) add(m *Message) *Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, m)
	return m
}

func (s *messageSet) drop(m *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, m); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
}

// first is the first of n; nil if there is none.
func (s *messageSet) first() (m *Message, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil, 0
	}
	return s.all[0], len(s.all)
}

// left says of the first, if there is one, that it was not received.
func (s *messageSet) left() error {
	m, n := s.first()
	if m == nil {
		return nil
	}
	return fmt.Errorf("%w: a message of %d bytes from rank %d of %s with tag %d was taken by a probe and not received (%d in all); receive it with Mrecv",
		ErrState, m.status.Bytes, m.c.local(m.status.Source), m.c.called(), m.status.Tag, n)
}

var nullStatus = Status{Source: ProcNull, Tag: AnyTag}

// What calls are named where they wait.
var (
	callSend, callSsend, callRsend = engine.Call{Op: "Send"}, engine.Call{Op: "Ssend"}, engine.Call{Op: "Rsend"}
	callRecv, callSendrecv         = engine.Call{Op: "Recv"}, engine.Call{Op: "Sendrecv"}
	callSendrecvReplace            = engine.Call{Op: "SendrecvReplace"}
	callMprobe, callRecvAlloc      = engine.Call{Op: "Mprobe"}, engine.Call{Op: "RecvAlloc"}
	callSendObj, callRecvObj       = engine.Call{Op: "SendObj"}, engine.Call{Op: "RecvObj"}
)

// takes tells that a message to or from a rank, under a tag, needs no closer
// look at its arguments: that most calls pass.
func (c *Comm) takes(peer, tag int) bool {
	return c != nil && uint(peer) < uint(c.size) && uint(tag) <= MaxTag && !c.odd.Load() && c.state.recorder.Load() == nil
}

func (c *Comm) match(peer, tag int) engine.Match {
	return engine.Match{Context: c.context, Peer: c.world(peer), Tag: int32(tag)}
}

func (c *Comm) send(ctx context.Context, call *engine.Call, data []byte, unfit error, to, tag int, mode engine.Mode) error {
	m, null, err := c.dest(call.Op, unfit, to, tag)
	if err != nil || null {
		return err
	}
	if span := c.state.span(); span.Recorded() {
		err = c.sendRecorded(ctx, span, call, m, data, mode)
	} else {
		err = c.box.Send(ctx, call, m, data, mode)
	}
	return c.wrap(call.Op, to, tag, err)
}

func (c *Comm) recv(ctx context.Context, into []byte, unfit error, size, from, tag int) (Status, error) {
	if unfit != nil {
		return Status{}, c.fail(callRecv.Op, from, tag, unfit)
	}
	m, null, err := c.source(callRecv.Op, from, tag)
	if err != nil {
		return Status{}, err
	}
	if null {
		return nullStatus, nil
	}
	var s engine.Status
	if span := c.state.span(); span.Recorded() {
		s, err = c.recvRecorded(ctx, span, m, into)
	} else {
		s, err = c.box.Recv(ctx, &callRecv, m, into)
	}
	if err != nil || size > 1 && s.Bytes%size != 0 {
		return c.recvWrong(s, err, size, from, tag)
	}
	return c.status(s, size), nil
}

// recvWrong is the result of a Recv that failed with err, or got no whole number
// of elements.
func (c *Comm) recvWrong(s engine.Status, err error, size, from, tag int) (Status, error) {
	if err == nil {
		err = notWhole(s, size)
	}
	return c.status(s, size), c.fail(callRecv.Op, from, tag, err)
}

func notWhole(s engine.Status, size int) error {
	return fmt.Errorf("%w: a message of %d bytes is no whole number of elements of %d bytes", ErrCount, s.Bytes, size)
}

// dest checks the arguments of a send; null: it is to nobody.
func (c *Comm) dest(op string, unfit error, to, tag int) (m engine.Match, null bool, err error) {
	if c == nil || uint(to) >= uint(c.size) || uint(tag) > MaxTag || c.odd.Load() && c.ended() != nil || unfit != nil {
		switch {
		case c.ended() != nil:
			err = c.ended()
		case unfit != nil:
			err = unfit
		case uint(tag) > MaxTag:
			err = fmt.Errorf("%w: %d, want 0 to %d", ErrTag, tag, MaxTag)
		case to == ProcNull:
			return m, true, nil
		case to == AnySource:
			err = fmt.Errorf("%w: AnySource is for receives", ErrRank)
		default:
			err = fmt.Errorf("%w: %d, the ranks of %s are 0 to %d", ErrRank, to, c.called(), c.size-1)
		}
		return m, false, c.fail(op, to, tag, err)
	}
	return engine.Match{Context: c.context, Peer: c.world(to), Tag: int32(tag)}, false, nil
}

// ended is why c cannot be used any more; nil if it can.
func (c *Comm) ended() error {
	if err := c.gone(); err != nil {
		return err
	}
	if c.revoked.Load() {
		return ErrRevoked
	}
	return nil
}

// gone is ended for what works yet where c was revoked.
func (c *Comm) gone() error {
	switch {
	case c == nil:
		return ErrComm
	case c.state.moved():
		return ErrMoved
	case c.freed.Load():
		return ErrComm
	}
	return nil
}

// source checks the arguments of a receive or probe; null: it is from nobody.
func (c *Comm) source(op string, from, tag int) (m engine.Match, null bool, err error) {
	if c == nil {
		return m, false, c.fail(op, from, tag, ErrComm)
	}
	m = engine.Match{Context: c.context, Tag: int32(tag)}
	switch {
	case c.odd.Load() && c.ended() != nil:
		err = c.ended()
	case tag < AnyTag || tag > math.MaxInt32:
		err = fmt.Errorf("%w: %d, want 0 to %d or AnyTag", ErrTag, tag, MaxTag)
	case uint(from) < uint(c.size):
		m.Peer = c.world(from)
		return m, false, nil
	case from == AnySource:
		m.Peer = engine.AnySource
		return m, false, nil
	case from == ProcNull:
		return m, true, nil
	default:
		err = fmt.Errorf("%w: %d, the ranks of %s are 0 to %d", ErrRank, from, c.called(), c.size-1)
	}
	return m, false, c.fail(op, from, tag, err)
}

// status is s as seen from c, by a receiver of elements of size bytes.
func (c *Comm) status(s engine.Status, size int) Status {
	n := s.Bytes
	if size > 1 {
		n /= size
	}
	return Status{Source: c.local(s.Source), Tag: int(s.Tag), Count: n, Bytes: s.Bytes}
}

func (c *Comm) wrap(op string, peer, tag int, err error) error {
	if err == nil {
		return nil
	}
	return c.fail(op, peer, tag, err)
}

// renamed is err as if another call had failed with it.
func renamed(err error, op string) error {
	if re, ok := errors.AsType[*RankError](err); ok {
		again := *re
		again.Op = op
		return &again
	}
	return err
}
