package main

import (
	"context"

	"github.com/mpiv/mpiv/mpiv"
)

// What the ranks say to each other:
//
//	compressor → reader   tagAsk      I could take a block
//	reader → compressor   tagBlock    here is one; empty: there are no more
//	compressor → writer   tagResult   a compressed block; empty: I am done
//	writer → reader       tagCredit   you may give out so many blocks more
//	reader → writer       tagVerdict  how reading went
//
// A compressor asks for the next block before it works on this one (asksAhead),
// so that it need not wait for it. The writer's credits bound the blocks between
// reader and writer, and so what the writer must hold while it waits for the one
// that is due.
const (
	tagAsk = iota + 1
	tagBlock
	tagResult
	tagCredit
	tagVerdict
)

const asksAhead = 2 // blocks that a compressor has asked for at any time

// Credits with a meaning of their own.
const (
	creditStop = 0  // no more blocks: the writer cannot go on
	creditDone = -1 // the writer is done
)

// rankReader is the readerEnd of a rank.
type rankReader struct {
	state   *mpiv.State
	world   *mpiv.Comm
	layout  layout
	block   int
	credits int32
	stopped bool
	free    [][]byte     // blocks to use again
	sent    [][]sentSoon // by compressor: what it may not have received yet, oldest first
}

// A sentSoon is a block on its way.
type sentSoon struct {
	request mpiv.Request
	msg     []byte
}

func newRankReader(world *mpiv.Comm, l layout, opt options) *rankReader {
	return &rankReader{state: opt.state, world: world, layout: l, block: opt.block, sent: make([][]sentSoon, world.Size())}
}

func (r *rankReader) room() []byte {
	if n := len(r.free); n > 0 {
		msg := r.free[n-1]
		r.free = r.free[:n-1]
		return msg[:cap(msg)]
	}
	return make([]byte, headerBytes+r.block)
}

func (r *rankReader) give(ctx context.Context, msg []byte) error {
	for r.credits == 0 && !r.stopped {
		if _, err := r.credit(ctx); err != nil {
			return err
		}
	}
	if r.stopped {
		return errStopped
	}
	r.credits--
	to, err := r.asker(ctx)
	if err != nil {
		return err
	}
	r.sent[to] = append(r.sent[to], sentSoon{mpiv.Isend(r.world, msg, to, tagBlock), msg})
	return nil
}

// credit receives one message of the writer; done: it was the last.
func (r *rankReader) credit(ctx context.Context) (done bool, err error) {
	var n [1]int32
	_, err = mpiv.Recv(ctx, r.world, n[:], r.layout.writer, tagCredit)
	if n[0] == creditStop {
		r.stopped = true
	}
	r.credits += max(n[0], 0)
	return n[0] == creditDone, err
}

// asker waits for a compressor that could take a block. One that asks has
// received all but the last few blocks sent to it, so those are free again.
func (r *rankReader) asker(ctx context.Context) (int, error) {
	s, err := mpiv.Recv(ctx, r.world, []byte(nil), mpiv.AnySource, tagAsk)
	if err != nil {
		return 0, err
	}
	who := s.Source
	for len(r.sent[who]) >= asksAhead {
		oldest := &r.sent[who][0]
		if _, err := oldest.request.Wait(ctx); err != nil {
			return 0, err
		}
		r.free = append(r.free, oldest.msg)
		r.sent[who] = append(r.sent[who][:0], r.sent[who][1:]...)
	}
	return who, nil
}

// arrived waits until all blocks that were given away have been received.
func (r *rankReader) arrived(ctx context.Context) error {
	for who, sent := range r.sent {
		for i := range sent {
			if _, err := sent[i].request.Wait(ctx); err != nil {
				return err
			}
			r.free = append(r.free, sent[i].msg)
		}
		r.sent[who] = sent[:0]
	}
	return nil
}

func (r *rankReader) end(ctx context.Context, v verdict) error {
	for range asksAhead * r.layout.compressors() { // every ask gets an answer
		to, err := r.asker(ctx)
		if err != nil {
			return err
		}
		if err := mpiv.Send(ctx, r.world, []byte(nil), to, tagBlock); err != nil {
			return err
		}
	}
	if err := r.arrived(ctx); err != nil {
		return err
	}
	if err := mpiv.Send(ctx, r.world, []verdict{v}, r.layout.writer, tagVerdict); err != nil {
		return err
	}
	for {
		switch done, err := r.credit(ctx); {
		case ctx.Err() != nil:
			return nil // we are done; who ended the job says why
		case done || err != nil:
			return err
		}
	}
}

// rankCompressor is the compressorEnd of a rank.
type rankCompressor struct {
	state  *mpiv.State
	world  *mpiv.Comm
	layout layout
	in     []byte
	asks   int // not yet answered
	begun  bool

	// Two results, so that one is on its way while the next is made.
	out  [2][]byte
	sent [2]mpiv.Request
	turn int
}

func newRankCompressor(world *mpiv.Comm, l layout, opt options) *rankCompressor {
	c := &rankCompressor{state: opt.state, world: world, layout: l, in: make([]byte, headerBytes+opt.block)}
	for i := range c.out {
		c.out[i] = make([]byte, headerBytes+frameBytes(opt.block))
	}
	return c
}

func (c *rankCompressor) ask(ctx context.Context) error {
	c.asks++
	return mpiv.Send(ctx, c.world, []byte(nil), c.layout.reader, tagAsk)
}

func (c *rankCompressor) next(ctx context.Context) ([]byte, error) {
	for !c.begun && c.asks < asksAhead {
		if err := c.ask(ctx); err != nil {
			return nil, err
		}
	}
	c.begun = true
	for c.asks > 0 {
		s, err := mpiv.Recv(ctx, c.world, c.in, c.layout.reader, tagBlock)
		if err != nil {
			return nil, err
		}
		c.asks--
		if s.Count > 0 {
			return c.in[:s.Count], c.ask(ctx)
		}
	}
	return nil, nil
}

func (c *rankCompressor) room(ctx context.Context) ([]byte, error) {
	c.turn = 1 - c.turn
	_, err := c.sent[c.turn].Wait(ctx)
	return c.out[c.turn], err
}

func (c *rankCompressor) give(_ context.Context, msg []byte) error {
	c.sent[c.turn] = mpiv.Isend(c.world, msg, c.layout.writer, tagResult)
	return nil
}

func (c *rankCompressor) end(ctx context.Context) error {
	if err := mpiv.Waitall(ctx, c.sent[:], nil); err != nil {
		return err
	}
	return mpiv.Send(ctx, c.world, []byte(nil), c.layout.writer, tagResult)
}

// rankWriter is the writerEnd of a rank.
type rankWriter struct {
	state  *mpiv.State
	world  *mpiv.Comm
	layout layout
	ahead  int
	frame  int      // the longest message
	free   [][]byte // to use again
	ended  int      // compressors that are done
}

func newRankWriter(world *mpiv.Comm, l layout, opt options) *rankWriter {
	return &rankWriter{state: opt.state, world: world, layout: l, ahead: opt.windowFor(l.compressors()), frame: headerBytes + frameBytes(opt.block)}
}

func (w *rankWriter) window() int { return w.ahead }

func (w *rankWriter) next(ctx context.Context) ([]byte, error) {
	for w.ended < w.layout.compressors() {
		msg := w.space()
		s, err := mpiv.Recv(ctx, w.world, msg, mpiv.AnySource, tagResult)
		if err != nil {
			return nil, err
		}
		if s.Count > 0 {
			return msg[:s.Count], nil
		}
		w.release(msg)
		w.ended++
	}
	return nil, nil
}

func (w *rankWriter) space() []byte {
	if n := len(w.free); n > 0 {
		msg := w.free[n-1]
		w.free = w.free[:n-1]
		return msg[:w.frame]
	}
	return make([]byte, w.frame)
}

func (w *rankWriter) release(msg []byte) {
	if cap(msg) >= w.frame { // not if it came from another process with the state
		w.free = append(w.free, msg)
	}
}

func (w *rankWriter) credit(ctx context.Context, n int) error {
	return mpiv.Send(ctx, w.world, []int32{int32(n)}, w.layout.reader, tagCredit)
}

func (w *rankWriter) verdict(ctx context.Context) (verdict, error) {
	var v [1]verdict
	_, err := mpiv.Recv(ctx, w.world, v[:], w.layout.reader, tagVerdict)
	return v[0], err
}
