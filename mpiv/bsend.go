package mpiv

import (
	"context"
	"fmt"
	"sync"

	"github.com/mpiv/mpiv/internal/engine"
)

// bsendBuffer is the space that a rank attached for its buffered sends.
type bsendBuffer struct {
	mu    sync.Mutex // guards what follows
	limit int        // bytes attached
	used  int
	under []bsend // under way
}

type bsend struct {
	r engine.Request
	n int
}

// BsendOverhead is what a buffered send needs beside the bytes of its message.
const BsendOverhead = 64

// BufferAttach gives the calling rank room for n bytes of buffered sends, in
// place of what it had.
func BufferAttach(c *Comm, n int) error {
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
// takes away their room. It returns what was attached, in bytes.
func BufferDetach(ctx context.Context, c *Comm) (int, error) {
	b := &c.state.buffered
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.under) > 0 {
		if _, err := b.under[0].r.Wait(ctx, &engine.Call{Op: "BufferDetach"}); err != nil {
			return 0, c.fail("BufferDetach", -1, -1, err)
		}
		b.used -= b.under[0].n
		b.under = b.under[1:]
	}
	n := b.limit
	b.limit = 0
	return n, nil
}

// Bsend is Send that never waits: it copies data to the room that BufferAttach
// gave, and fails with ErrBuffer if there is too little left.
func Bsend[T Elem](ctx context.Context, c *Comm, data []T, to, tag int) error {
	return c.bsend("Bsend", bytesOf(data), fits[T](), to, tag)
}

// Ibsend is Bsend that tells with the Request whether it failed. Since data was
// copied, it may be changed at once.
func Ibsend[T Elem](c *Comm, data []T, to, tag int) Request {
	if err := c.bsend("Ibsend", bytesOf(data), fits[T](), to, tag); err != nil {
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
	left := b.under[:0]
	for _, u := range b.under {
		if _, done, _ := u.r.Test(); done {
			b.used -= u.n
		} else {
			left = append(left, u)
		}
	}
	b.under = left
	n := len(data) + BsendOverhead
	if b.used+n > b.limit {
		return c.fail(op, to, tag, fmt.Errorf("%w: needs %d bytes, %d of %d are in use; attach more with BufferAttach", ErrBuffer, n, b.used, b.limit))
	}
	span := c.state.span()
	r, number := c.tracedIsend(m, append([]byte(nil), data...), engine.Standard)
	span.End(sending(op, m, len(data), number))
	if !r.Null() {
		b.used += n
		b.under = append(b.under, bsend{r, n})
	}
	return nil
}
