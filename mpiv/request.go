package mpiv

import (
	"context"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/trace"
)

// A Request is a communication under way. What was wrong with the call that began it, its Wait
// says. The zero Request is done, as is one that was waited for (MPI's MPI_REQUEST_NULL). Copies of a Request go stale
// when one of them was waited for, and then end in ErrRequest: one goroutine at
// a time may wait for a Request, or test it, whichever copy it has.
//
// It is no larger than what the compiler keeps in registers: copies of larger
// ones make the processor wait for what it has just stored.
type Request struct {
	c   *Comm
	r   engine.Request // Note is 1 + the size of the elements received; of others 0
	odd *oddRequest    // nil but for the few that are not as most
}

// An oddRequest is what few Requests need.
type oddRequest struct {
	err  error  // why it never began
	null bool   // it is from ProcNull
	mark *inUse // its buffer, where Options.Check asks for it,
	op   string //   what began it, and with what
	m    engine.Match
}

var fromNobody = &oddRequest{null: true}

// failedRequest is one that never began.
func failedRequest(c *Comm, err error) Request { return Request{c: c, odd: &oddRequest{err: err}} }

// failRequest says of err that op failed with it, on a message that m matches.
func (c *Comm) failRequest(op string, m engine.Match, err error) error {
	return c.fail(op, c.local(m.Peer), int(m.Tag), err)
}

// requestError says what err, with which op ended the wait for a request, is
// about.
func (c *Comm) requestError(op string, odd *oddRequest, err error) error {
	re, ok := errors.AsType[*engine.RequestError](err)
	if !ok {
		return c.fail(op, -1, -1, err)
	}
	begun := ""
	switch re.Kind {
	case engine.KindTask:
		if _, own := errors.AsType[*RankError](re.Err); own && !re.Lasts {
			return re.Err // of the collective
		}
		return c.fail(op, -1, -1, re.Err)
	case engine.KindSend:
		begun = "Isend"
	case engine.KindRecv:
		begun = "Irecv"
	default:
		return c.fail(op, -1, -1, re.Err)
	}
	if odd != nil && odd.mark != nil {
		begun += ", " + odd.mark.where
	}
	return c.failRequest(fmt.Sprintf("%s (%s)", op, begun), re.Match, re.Err)
}

// Isend starts a Send. data must not be changed before the Request is done.
func Isend[T Elem](c *Comm, data []T, to, tag int) Request {
	if c.takes(to, tag) && dense[T]() {
		return Request{c: c, r: c.box.Isend(c.match(to, tag), bytesOf(data), engine.Standard)}
	}
	return c.isend("Isend", outgoing(c, data), fits[T](), to, tag, engine.Standard)
}

// Issend starts an Ssend.
func Issend[T Elem](c *Comm, data []T, to, tag int) Request {
	return c.isend("Issend", outgoing(c, data), fits[T](), to, tag, engine.Synchronous)
}

// Irsend starts an Rsend.
func Irsend[T Elem](c *Comm, data []T, to, tag int) Request {
	return c.isend("Irsend", outgoing(c, data), fits[T](), to, tag, engine.Standard)
}

// Irecv starts a Recv. into must not be read or changed before the Request is
// done.
func Irecv[T Elem](c *Comm, into []T, from, tag int) Request {
	if c.takes(from, tag) && plain[T]() {
		r := c.box.Irecv(c.match(from, tag), bytesOf(into))
		r.Note = uint32(sizeOf[T]()) + 1
		return Request{c: c, r: r}
	}
	return c.irecv("Irecv", bytesOf(into), fits[T](), sizeOf[T](), from, tag)
}

func (c *Comm) isend(op string, data []byte, unfit error, to, tag int, mode engine.Mode) Request {
	m, null, err := c.dest(op, unfit, to, tag)
	switch {
	case err != nil:
		return failedRequest(c, err)
	case null:
		return Request{c: c}
	}
	mark, err := c.mark(op, data, false, m)
	if err != nil {
		return failedRequest(c, err)
	}
	span := c.state.span()
	r, number := c.tracedIsend(m, data, mode)
	span.End(sending(op, m, len(data), number))
	return Request{c, r, mark}
}

func (c *Comm) irecv(op string, into []byte, unfit error, size, from, tag int) Request {
	if unfit != nil {
		return c.failed(op, from, tag, unfit)
	}
	m, null, err := c.source(op, from, tag)
	switch {
	case err != nil:
		return failedRequest(c, err)
	case null:
		return Request{c: c, odd: fromNobody}
	}
	mark, err := c.mark(op, into, true, m)
	if err != nil {
		return failedRequest(c, err)
	}
	span := c.state.span()
	r := c.box.Irecv(m, into)
	span.End(trace.Record{Op: op})
	r.Note = uint32(size) + 1
	return Request{c, r, mark}
}

// mark has a request's buffer watched, where that is asked for.
func (c *Comm) mark(op string, buf []byte, recv bool, m engine.Match) (*oddRequest, error) {
	if !c.state.options.Check {
		return nil, nil
	}
	mark, err := c.state.pendings.watch(op, buf, recv)
	if err != nil {
		return nil, c.failRequest(op, m, err)
	}
	return &oddRequest{mark: mark, op: op, m: m}, nil
}

// unmark ends that; the error says that the buffer was changed meanwhile.
func (r *Request) unmark() error {
	if r.mark() == nil {
		return nil
	}
	if err := r.c.state.pendings.done(r.odd.mark); err != nil {
		return r.c.failRequest(r.odd.op, r.odd.m, err)
	}
	return nil
}

// mark is r's buffer, where Options.Check asks for it; nil otherwise.
func (r *Request) mark() *inUse {
	if r.odd == nil {
		return nil
	}
	return r.odd.mark
}

func (c *Comm) failed(op string, peer, tag int, err error) Request {
	return failedRequest(c, c.fail(op, peer, tag, err))
}

// Wait waits until the request is done, and makes r the zero Request. The
// Status is that of a receive. If the context ends first, what can be taken
// back is: an unmatched receive leaves no trace. A collective goes on then, and r
// stays what it was, as it does with ErrProcFailedPending.
func (r *Request) Wait(ctx context.Context) (Status, error) { return r.waitAs(ctx, &callWait) }

var (
	callWait, callWaitall     = engine.Call{Op: "Wait"}, engine.Call{Op: "Waitall"}
	callWaitany, callWaitsome = engine.Call{Op: "Waitany"}, engine.Call{Op: "Waitsome"}
	callTest, callTestall     = engine.Call{Op: "Test"}, engine.Call{Op: "Testall"}
	callTestsome              = engine.Call{Op: "Testsome"}
)

func (r *Request) waitAs(ctx context.Context, call *engine.Call) (Status, error) {
	var bin engine.Bin
	s, err := r.waitBin(ctx, call, &bin)
	bin.Empty()
	return s, err
}

// waitBin is waitAs that leaves what is to be freed in bin.
func (r *Request) waitBin(ctx context.Context, call *engine.Call, bin *engine.Bin) (Status, error) {
	if r.r.Null() {
		return r.early()
	}
	if mark := r.mark(); mark != nil {
		call = &engine.Call{Op: call.Op, Begun: &mark.stack}
	}
	var s engine.Status
	var err error
	if span := r.c.state.span(); span.Recorded() {
		s, err = r.c.waitRecorded(ctx, span, r.r, call, bin)
	} else {
		s, err = r.r.WaitBin(ctx, call, bin)
	}
	if err != nil {
		if re, ok := errors.AsType[*engine.RequestError](err); ok && re.Lasts {
			return Status{}, r.c.requestError(call.Op, r.odd, err)
		}
	}
	return r.ended(call.Op, s, err)
}

// early ends a request that never was under way.
func (r *Request) early() (Status, error) {
	s, err := Status{Source: AnySource, Tag: AnyTag}, r.unmark()
	if odd := r.odd; odd != nil {
		if odd.err != nil {
			err = odd.err
		}
		if odd.null {
			s = nullStatus
		}
	}
	*r = Request{}
	return s, err
}

// ended makes the result of the engine's request that of r.
func (r *Request) ended(op string, s engine.Status, err error) (Status, error) {
	if err != nil || r.odd != nil || r.r.Note > 2 {
		return r.endedOddly(op, s, err)
	}
	c, size := r.c, int(r.r.Note)-1
	*r = Request{}
	if size < 0 {
		return Status{Source: AnySource, Tag: AnyTag}, nil
	}
	return c.status(s, size), nil
}

// endedOddly is ended for what is checked, is no message of bytes, or failed.
func (r *Request) endedOddly(op string, s engine.Status, err error) (Status, error) {
	c, size, odd := r.c, int(r.r.Note)-1, r.odd
	changed := r.unmark()
	*r = Request{}
	if err == nil && changed != nil {
		return Status{}, changed
	}
	if err == nil && size > 1 && s.Bytes%size != 0 {
		st := c.status(s, size)
		return st, c.fail(op, st.Source, st.Tag, notWhole(s, size))
	}
	if err != nil {
		if err = c.requestError(op, odd, err); !errors.Is(err, ErrTruncate) {
			return Status{}, err
		}
	}
	if size < 0 {
		return Status{Source: AnySource, Tag: AnyTag}, err
	}
	return c.status(s, size), err
}

// Test is Wait without waiting: false, and r as it was, if it is not done.
func (r *Request) Test() (Status, bool, error) {
	if r.c != nil && r.c.box.Chooses() {
		if !r.done() {
			return Status{}, false, nil
		}
		s, err := r.waitAs(context.Background(), &callTest)
		return s, true, err
	}
	if r.r.Null() {
		s, err := r.early()
		return s, true, err
	}
	if r.c.state.recorder.Load() != nil {
		if !r.r.Finished() {
			r.c.box.Progress()
		}
		if r.r.Finished() {
			s, err := r.waitAs(context.Background(), &callTest)
			return s, true, err
		}
	}
	s, ok, err := r.r.Test()
	if !ok {
		return Status{}, false, r.raised("Test")
	}
	status, err := r.ended("Test", s, err)
	return status, true, err
}

// raised is ErrProcFailedPending if r may wait for a rank that has failed.
func (r *Request) raised(op string) error {
	if !r.r.Raised() {
		return nil
	}
	return r.c.requestError(op, r.odd, r.r.Pending())
}

// done tells whether r is, without ending it.
func (r *Request) done() bool {
	if r.c != nil && r.c.box.Chooses() {
		return decide(r.c.box, r.r.Finished)
	}
	return r.r.Finished()
}

// decide is done, of one or of many requests, where that is recorded: in a later life of the
// rank it comes out the same.
func decide(b *engine.Box, done func() bool) bool {
	n, before, known := b.Decide()
	if known {
		return before.Seq != 0
	}
	is := done()
	if !is {
		b.Progress()
		is = done()
	}
	if is {
		b.Decided(n, 0, 1)
	}
	return is
}

// Cancel tries to take the request back. It must still be waited for; it ends
// with ErrCancelled if it was taken back, and as usual if it was too late.
func (r *Request) Cancel() {
	if r.c != nil {
		r.c.box.Cancel(r.r)
	}
}
