package mpiv

import (
	"context"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/trace"
)

// Calls are recorded while rankState.recorder is not nil: mpivrun asks for that. What a
// call does is the same, but for the time that it takes.

// span begins a call that is recorded if calls are.
func (rs *rankState) span() trace.Span {
	if rec := rs.recorder.Load(); rec != nil {
		return rec.Begin()
	}
	return trace.Span{}
}

// tracedIsend is Isend of a message whose number is told; 0: calls are not recorded. The
// number is another's if a collective of the same rank that is under way (Ibcast) sends
// to the same peer at the same moment.
func (c *Comm) tracedIsend(m engine.Match, data []byte, mode engine.Mode) (r engine.Request, number uint64) {
	rec := c.state.recorder.Load()
	if rec == nil {
		return c.box.Isend(m, data, mode), 0
	}
	rec.Order.Lock()
	defer rec.Order.Unlock()
	r = c.box.Isend(m, data, mode)
	return r, c.box.Sent(m.Peer)
}

// sending is the record of a call that began the message with that number.
func sending(op string, m engine.Match, n int, number uint64) trace.Record {
	if number == 0 {
		return trace.Record{Op: op}
	}
	return trace.Record{Op: op, Dir: trace.Out, Peer: int32(m.Peer), Tag: m.Tag, Context: m.Context, Bytes: int64(n), Seq: number}
}

// receiving is the record of a call that received the message with that number.
func receiving(op string, context uint32, s engine.Status, number uint64) trace.Record {
	return trace.Record{Op: op, Dir: trace.In, Peer: int32(s.Source), Tag: s.Tag, Context: context, Bytes: int64(s.Bytes), Seq: number}
}

// waitRecorded is r's WaitBin while calls are recorded.
func (c *Comm) waitRecorded(ctx context.Context, span trace.Span, r engine.Request, call *engine.Call, bin *engine.Bin) (engine.Status, error) {
	s, err := r.WaitBin(ctx, call, bin)
	if err != nil || r.Note == 0 { // it is no receive
		span.End(trace.Record{Op: call.Op})
	} else {
		span.End(receiving(call.Op, c.context, s, r.Number()))
	}
	return s, err
}

// recvRecorded is Recv of a message while calls are recorded.
func (c *Comm) recvRecorded(ctx context.Context, span trace.Span, m engine.Match, into []byte) (engine.Status, error) {
	r := c.box.Irecv(m, into)
	r.Note = 1
	var bin engine.Bin
	defer bin.Empty()
	return c.waitRecorded(ctx, span, r, &callRecv, &bin)
}

// sendRecorded is Send of a message while calls are recorded.
func (c *Comm) sendRecorded(ctx context.Context, span trace.Span, call *engine.Call, m engine.Match, data []byte, mode engine.Mode) error {
	r, number := c.tracedIsend(m, data, mode)
	_, err := r.Wait(ctx, call)
	span.End(sending(call.Op, m, len(data), number))
	return err
}

// done ends the record of a collective.
func (s *series) done(err error) error {
	if s.span.Recorded() {
		s.span.End(trace.Record{Op: s.call.Op})
	}
	return err
}
