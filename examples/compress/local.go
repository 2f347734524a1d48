package main

import (
	"context"
	"sync/atomic"
)

// local connects the roles inside a process: what ranks.go does with messages,
// with channels.
type local struct {
	compressors int
	block       int
	window      int

	blocks   chan []byte
	results  chan []byte
	credits  chan int // has room for all there can be
	verdicts chan verdict
	working  atomic.Int32 // compressors that are not done

	freeBlocks, freeResults chan []byte // to use again; have room for all there are
}

func newLocal(opt options) *local {
	n := opt.baseline
	window := opt.windowFor(n)
	l := &local{
		compressors: n, block: opt.block, window: window,
		blocks:      make(chan []byte, n),
		results:     make(chan []byte, n),
		credits:     make(chan int, window+2),
		verdicts:    make(chan verdict, 1),
		freeBlocks:  make(chan []byte, 2*n+1),
		freeResults: make(chan []byte, window+n),
	}
	l.working.Store(int32(n))
	return l
}

// send sends v, unless the context ends first.
func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive receives from a channel, unless the context ends first. From a closed
// one it is the zero T.
func receive[T any](ctx context.Context, from <-chan T) (T, error) {
	select {
	case v := <-from:
		return v, nil
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// reuse is a free slice, or a new one of n bytes.
func reuse(free <-chan []byte, n int) []byte {
	select {
	case msg := <-free:
		return msg[:n]
	default:
		return make([]byte, n)
	}
}

// Here a role ends with its process.
func (*local) restore(context.Context, vars) (again bool, err error) { return false, nil }
func (*local) safePoint(context.Context) error                       { return nil }

type localReader struct {
	*local
	credit int
}

func (r *localReader) room() []byte { return reuse(r.freeBlocks, headerBytes+r.block) }

func (r *localReader) give(ctx context.Context, msg []byte) error {
	for r.credit == 0 {
		n, err := receive(ctx, r.credits)
		if err != nil {
			return err
		}
		if n == creditStop {
			return errStopped
		}
		r.credit += n
	}
	r.credit--
	return send(ctx, r.blocks, msg)
}

func (r *localReader) end(_ context.Context, v verdict) error {
	close(r.blocks)
	r.verdicts <- v
	return nil
}

type localCompressor struct {
	*local
	in []byte
}

func (c *localCompressor) next(ctx context.Context) ([]byte, error) {
	if c.in != nil {
		c.freeBlocks <- c.in
	}
	var err error
	c.in, err = receive(ctx, c.blocks)
	return c.in, err
}

func (c *localCompressor) room(context.Context) ([]byte, error) {
	return reuse(c.freeResults, headerBytes+frameBytes(c.block)), nil
}

func (c *localCompressor) give(ctx context.Context, msg []byte) error {
	return send(ctx, c.results, msg)
}

func (c *localCompressor) end(context.Context) error {
	if c.working.Add(-1) == 0 {
		close(c.results)
	}
	return nil
}

type localWriter struct{ *local }

func (w *localWriter) window() int                                  { return w.local.window }
func (w *localWriter) next(ctx context.Context) ([]byte, error)     { return receive(ctx, w.results) }
func (w *localWriter) release(msg []byte)                           { w.freeResults <- msg }
func (w *localWriter) verdict(ctx context.Context) (verdict, error) { return receive(ctx, w.verdicts) }
func (w *localWriter) credit(ctx context.Context, n int) error {
	return send(ctx, w.credits, n)
}
