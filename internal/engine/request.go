package engine

import (
	"context"
	"errors"

	"github.com/mpiv/mpiv/wire"
)

// A Request is a send or receive under way. The zero Request is done. It may be
// copied; once one of the copies was waited for, all are stale.
type Request struct {
	op  *op
	use uint32 // op.state when it began
}

// Null tells whether r is the zero Request, which is done and has no status.
func (r Request) Null() bool { return r.op == nil }

func (r Request) stale() bool { return r.op.state.Load()&^1 != r.use }

func (r Request) finished() bool { return r.op.state.Load() != r.use }

// Wait waits until r is done and tells how it ended. If the context ends first,
// a receive that is not matched and a send that is not received are taken back
// and leave no trace; what is too late for that is waited for.
func (r Request) Wait(ctx context.Context, c Call) (Status, error) {
	o := r.op
	if o == nil {
		return Status{}, nil
	}
	if !r.finished() {
		e := o.box.e
		if err := e.await(ctx, c, o.box, goal{one: o}); err != nil {
			if e.err() != nil {
				return Status{}, err
			}
			if err := r.takeBack(c, err); err != nil {
				return Status{}, err
			}
		}
	}
	return r.end()
}

// takeBack ends a request whose context has ended with cause. nil: it was too
// late, and the request is done.
func (r Request) takeBack(c Call, cause error) error {
	o := r.op
	o.cancel()
	if err := o.box.e.await(context.Background(), c, o.box, goal{one: o}); err != nil {
		return err
	}
	if errors.Is(o.err, ErrCancelled) {
		o.box.release(o)
		return cause
	}
	return nil
}

// end reads the result of a finished request and frees it.
func (r Request) end() (Status, error) {
	o := r.op
	if r.stale() {
		return Status{}, ErrStale
	}
	s, err := o.status, o.err
	o.box.release(o)
	return s, err
}

// Test is Wait without waiting: false if r is not done.
func (r Request) Test() (Status, bool, error) {
	if r.op == nil {
		return Status{}, true, nil
	}
	if !r.finished() {
		r.op.box.e.Progress()
		if !r.finished() {
			if err := r.op.box.e.err(); err != nil {
				return Status{}, true, err
			}
			return Status{}, false, nil
		}
	}
	s, err := r.end()
	return s, true, err
}

// Finished tells whether Wait would return at once, without ending r.
func (r Request) Finished() bool { return r.op == nil || r.finished() }

// Cancel tries to take the request back. Wait tells how it ended: with
// ErrCancelled if that was possible.
func (r Request) Cancel() {
	if r.op != nil && !r.finished() {
		r.op.cancel()
	}
}

// WaitAny waits until one of rs that is not Null is done, and returns its
// index; -1 if all are Null. The request must then be ended with Wait or Test.
func WaitAny(ctx context.Context, c Call, rs []Request) (int, error) {
	var b *Box
	for i := range rs {
		if rs[i].op == nil {
			continue
		}
		if rs[i].finished() {
			return i, nil
		}
		if b == nil {
			b = rs[i].op.box
		}
	}
	if b == nil {
		return -1, nil
	}
	if err := b.e.await(ctx, c, b, goal{any: rs}); err != nil {
		return -1, err
	}
	for i := range rs {
		if rs[i].op != nil && rs[i].finished() {
			return i, nil
		}
	}
	panic("engine: woken with nothing done")
}

// cancel takes o back where that is still possible. True if o is done with it
// at once; false if it ends, one way or the other, by and by.
func (o *op) cancel() bool {
	switch o.kind {
	case opRecv, opProbe, opMprobe:
		b := o.box
		b.mu.Lock()
		defer b.mu.Unlock()
		if o.queue == nil {
			return false
		}
		o.queue.remove(o)
		o.err = ErrCancelled
		o.finish()
		return true
	case opSend:
		return o.cancelSend()
	}
	return false
}

func (o *op) cancelSend() bool {
	if dst := o.box.e.peers[o.peer].box; dst != nil {
		dst.mu.Lock()
		defer dst.mu.Unlock()
		a := o.msg
		if a == nil || !a.queued || a.sender != o {
			return false
		}
		dst.removeLocked(a)
		dst.freeArrivalLocked(a)
		o.err = ErrCancelled
		o.finish()
		return true
	}
	l := o.box.e.peers[o.peer].link
	l.mu.Lock()
	defer l.mu.Unlock()
	x := o.entry
	if x == nil || x.retracting {
		return false
	}
	// A message that has its number must be sent: an Offer can be retracted,
	// and what has not left is made one.
	if x.header.Kind == wire.Eager {
		if l.stuck == stuckQueue && l.queue.head == x {
			return false // it is leaving
		}
		x.header.Kind = wire.Offer
	}
	x.retracting = true
	if x.kept && !x.queued {
		l.retract(x)
	}
	l.attend()
	return false
}
