package mpiv

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
)

// bsendBuffer is the space that a rank attached for its buffered sends.
type bsendBuffer struct {
	mu     sync.Mutex // guards what follows
	limit  int        // bytes attached
	used   int
	under  []bsend       // under way
	waited chan struct{} // closed when BufferDetach no longer waits for the first of them; nil: it does not
	failed error         // how one has, of which nobody was told
	ends   sync.Cond     // with mu: waited was closed, or somebody's context has ended

	patience time.Duration // with which there is waited for room in a life after a death. 0: as at first; below: none is left
}

type bsend struct {
	c *Comm
	r engine.Request
	n int // 0: it is done, but somebody waits for it
}

// reapLocked drops those under way that are done.
func (b *bsendBuffer) reapLocked() {
	left := b.under[:0]
	for i, u := range b.under {
		if b.waited != nil && i == 0 {
			if u.r.Finished() {
				b.used -= u.n
				u.n = 0
			}
			left = append(left, u)
			continue
		}
		_, done, err := u.r.Test()
		if !done {
			left = append(left, u)
			continue
		}
		b.used -= u.n
		if b.failed == nil && err != nil {
			b.failed = u.c.requestError("Bsend", nil, err)
		}
	}
	b.under = left
}

// left is how many are under way.
func (b *bsendBuffer) left() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reapLocked()
	return len(b.under)
}

// BsendOverhead is what a buffered send needs beside the bytes of its message.
const BsendOverhead = 64

// BufferAttach gives the calling rank room for n bytes of buffered sends, in
// place of what it had.
func BufferAttach(c *Comm, n int) error {
	if c == nil {
		return c.fail("BufferAttach", -1, -1, ErrComm)
	}
	if n < 0 {
		return c.fail("BufferAttach", -1, -1, fmt.Errorf("%w: %d bytes", ErrCount, n))
	}
	b := &c.state.buffered
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = n
	return nil
}

// BufferDetach waits until all buffered sends of the calling rank are done, and
// takes away their room. It returns what was attached, in bytes. If ctx ends first, or one
// of the sends has failed, the room stays; what is under way goes on.
func BufferDetach(ctx context.Context, c *Comm) (int, error) {
	if c == nil {
		return 0, c.fail("BufferDetach", -1, -1, ErrComm)
	}
	b := &c.state.buffered
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.reapLocked(); len(b.under) > 0; b.reapLocked() {
		if err := b.firstLocked(ctx); err != nil {
			return 0, c.fail("BufferDetach", -1, -1, err)
		}
	}
	if err := b.failed; err != nil {
		b.failed = nil
		return 0, renamed(err, "BufferDetach (Bsend)")
	}
	n := b.limit
	b.limit = 0
	return n, nil
}

// firstLocked waits for the first of those under way, while mu is not held. It takes nothing back.
func (b *bsendBuffer) firstLocked(ctx context.Context) error {
	if waited := b.waited; waited != nil {
		if _, ends := ctx.Deadline(); !ends { // then only another goroutine can end this, as who looks for deadlocks sees of a Cond
			return b.othersLocked(ctx, waited)
		}
		b.mu.Unlock()
		defer b.mu.Lock()
		select {
		case <-waited:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	first := []engine.Request{b.under[0].r}
	b.waited = make(chan struct{})
	b.mu.Unlock()
	_, err := engine.WaitAny(ctx, &callBufferDetach, first)
	b.mu.Lock()
	close(b.waited)
	b.waited = nil
	b.ends.Broadcast()
	return err
}

// othersLocked waits until another BufferDetach, to which waited belongs, no longer waits for the first.
func (b *bsendBuffer) othersLocked(ctx context.Context, waited chan struct{}) error {
	b.ends.L = &b.mu
	stop := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ends.Broadcast()
	})
	defer stop()
	for b.waited == waited && ctx.Err() == nil {
		b.ends.Wait()
	}
	return ctx.Err()
}

var callBufferDetach = engine.Call{Op: "BufferDetach"}

// awaitRoomLocked waits for room for n bytes, where the rank goes on after a death: what it sends again is received
// already, so its peers answer by themselves, but perhaps later than they did to the life before, which had the room.
// What is not answered in time is for the program, as ever.
func (b *bsendBuffer) awaitRoomLocked(e *engine.Engine, n int) {
	if b.patience == 0 {
		b.patience = roomTime
	}
	for began := time.Now(); b.used+n > b.limit && b.patience > 0; b.reapLocked() {
		if e.Progress(); time.Since(began) > b.patience {
			b.patience = -1 // another will not be received, either
		}
		time.Sleep(roomLook)
	}
}

const (
	roomTime = 5 * time.Second
	roomLook = 50 * time.Microsecond
)

// Bsend is Send that never waits: it copies data to the room that BufferAttach
// gave, and fails with ErrBuffer if there is too little left.
func Bsend[T Elem](ctx context.Context, c *Comm, data []T, to, tag int) error {
	return c.bsend("Bsend", outgoing(c, data), fits[T](), to, tag)
}

// Ibsend is Bsend that tells with the Request whether it failed. Since data was
// copied, it may be changed at once.
func Ibsend[T Elem](c *Comm, data []T, to, tag int) Request {
	if err := c.bsend("Ibsend", outgoing(c, data), fits[T](), to, tag); err != nil {
		return failedRequest(c, err)
	}
	return Request{c: c}
}

func (c *Comm) bsend(op string, data []byte, unfit error, to, tag int) error {
	m, null, err := c.dest(op, unfit, to, tag)
	if err != nil || null {
		return err
	}
	b := &c.state.buffered
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reapLocked()
	n := len(data) + BsendOverhead
	if b.used+n > b.limit && n <= b.limit && c.state.life != nil && c.state.life.Recovered() {
		b.awaitRoomLocked(c.box.Engine(), n)
	}
	if b.used+n > b.limit {
		return c.fail(op, to, tag, fmt.Errorf("%w: needs %d bytes, %d of %d are in use; attach more with BufferAttach", ErrBuffer, n, b.used, b.limit))
	}
	span := c.state.span()
	r, number := c.tracedIsend(m, append([]byte(nil), data...), engine.Standard)
	span.End(sending(op, m, len(data), number))
	if !r.Null() {
		b.used += n
		b.under = append(b.under, bsend{c, r, n})
	}
	return nil
}
