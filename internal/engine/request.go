package engine

import (
	"context"
	"errors"

	"github.com/mpiv/mpiv/wire"
)

// A Request is a send or receive under way. The zero Request is done. It may be
// copied; once one of the copies was waited for, all are stale.
type Request struct {
	op   *op
	use  uint32 // op.state when it began
	Note uint32 // the caller's
}

// Null tells whether r is the zero Request, which is done and has no status.
func (r Request) Null() bool { return r.op == nil }

func (r Request) stale() bool { return r.op.now()&^1 != r.use }

// expired: r was waited for, and its op has had no other use yet.
func (r Request) expired() bool { return r.op.now() == r.use+2 }

func (r Request) finished() bool { return r.op.now() != r.use }

// asked is finished of who asks for r: a task that is deferred goes on.
func (r Request) asked() bool { return r.finishedFor(untilDone) }

// finishedFor is asked of who waits for r alone, with ctx.
func (r Request) finishedFor(ctx context.Context) bool {
	if r.finished() {
		return true
	}
	if r.op.kind != KindTask {
		return false
	}
	r.op.start(ctx)
	return r.finished()
}

// Wait waits until r is done and tells how it ended. If the context ends first,
// a receive that is not matched and a send that is not received are taken back
// and leave no trace; what is too late for that is waited for. A task goes on. Errors
// are *RequestErrors.
func (r Request) Wait(ctx context.Context, c *Call) (Status, error) {
	var bin Bin
	s, err := r.WaitBin(ctx, c, &bin)
	bin.Empty()
	return s, err
}

// after ends Wait when await has answered err.
func (r Request) after(c *Call, err error) (Status, error) {
	var bin Bin
	s, err := r.awaited(c, err, &bin)
	bin.Empty()
	return s, err
}

// Take is Wait for a request that is done and has not failed; false for all
// others. It leaves what is to be freed in bin.
func (r Request) Take(bin *Bin) (Status, bool) {
	o := r.op
	if o.now() != r.use|1 || o.err != nil {
		return Status{}, false
	}
	s := o.status
	bin.add(o)
	return s, true
}

// WaitBin is Wait that leaves what is to be freed in bin, for who waits for
// many.
func (r Request) WaitBin(ctx context.Context, c *Call, bin *Bin) (Status, error) {
	o := r.op
	if o == nil {
		return Status{}, nil
	}
	var err error
	if !r.finishedFor(ctx) {
		err = o.box.e.await(ctx, c, o.box, goal{one: o})
	}
	return r.awaited(c, err, bin)
}

// awaited ends WaitBin when await has answered err.
func (r Request) awaited(c *Call, err error, bin *Bin) (Status, error) {
	o := r.op
	alive := err != nil && o.box.e.err() == nil
	lasts := err == ErrProcFailedPending || alive && o.kind == KindTask
	if alive && !lasts {
		err = r.takeBack(c, err)
	}
	switch {
	case err == nil, lasts && r.finished():
		if s, ok := r.Take(bin); ok {
			return s, nil
		}
		return r.ended(bin)
	case lasts:
		e := r.failed(err)
		e.Lasts = true
		return Status{}, e
	}
	err = r.failed(err)
	if r.finished() { // it was taken back
		bin.add(o)
	}
	return Status{}, err
}

// Number is that of the message of a receive that WaitBin has ended without an error, among those from
// its source. It may be asked for until the Bin is emptied.
func (r Request) Number() uint64 { return r.op.seq }

// ended reads the result of a finished request, once.
func (r Request) ended(bin *Bin) (Status, error) {
	if r.stale() {
		return Status{}, r.failed(ErrStale)
	}
	o := r.op
	s, err := o.status, o.err
	if err != nil {
		err = r.failed(o.box.whyCancelled(o.context, err))
	}
	bin.add(o)
	return s, err
}

// A RequestError is how a request failed, and what it was begun with.
type RequestError struct {
	Kind  Kind // 0: that is not known any more, as the request is stale
	Match Match
	Err   error
	Lasts bool // it is under way yet, and can be waited for again
}

func (e *RequestError) Error() string { return e.Err.Error() }
func (e *RequestError) Unwrap() error { return e.Err }

func (r Request) failed(err error) *RequestError {
	e, o := &RequestError{Err: err}, r.op
	o.box.mu.Lock() // r may be stale, and o about to be used for something else
	defer o.box.mu.Unlock()
	if !r.stale() || r.expired() {
		e.Kind, e.Match = o.kind, Match{Context: o.context, Peer: o.peer, Tag: o.tag, Check: o.check}
	}
	return e
}

// A Bin is ops that were used and are to be freed together. The zero Bin is
// empty.
type Bin struct {
	first, last *op
	n           int
}

// add expires o: its result has been read.
func (n *Bin) add(o *op) {
	o.expire()
	if o == &o.box.lone {
		o.box.busy.Set(false)
		return
	}
	if o.choice != 0 && o.kind == KindTask {
		o.box.turns.tasks.Add(-1)
	}
	if n.last != nil && n.last.box != o.box {
		n.Empty()
	}
	if o.next = n.first; n.first == nil {
		n.last = o
	}
	n.first = o
	n.n++
}

// Empty frees what is in n.
func (n *Bin) Empty() {
	if n.first == nil {
		return
	}
	b := n.last.box
	b.mu.Lock()
	n.last.next, b.ops = b.ops, n.first
	b.live -= n.n
	b.mu.Unlock()
	*n = Bin{}
}

// takeBack ends a request whose wait has ended with cause. nil: it was too late,
// and the request is done as usual.
func (r Request) takeBack(c *Call, cause error) error {
	o := r.op
	if ended, err := o.box.awaitAgain(o, c); ended {
		return err
	}
	o.cancel()
	if err := o.box.e.await(untilDone, c, o.box, goal{one: o}); err != nil {
		return err
	}
	if errors.Is(o.err, ErrCancelled) {
		return cause
	}
	return nil
}

// Test is Wait without waiting: false if r is not done.
func (r Request) Test() (Status, bool, error) {
	if r.op == nil {
		return Status{}, true, nil
	}
	if !r.asked() {
		r.op.box.Progress()
		if !r.finished() {
			if err := r.op.box.e.err(); err != nil {
				return Status{}, true, err
			}
			return Status{}, false, nil
		}
	}
	var bin Bin
	s, err := r.ended(&bin)
	bin.Empty()
	return s, true, err
}

// Raised tells whether Wait would return ErrProcFailedPending now.
func (r Request) Raised() bool { return r.op != nil && !r.finished() && r.op.raised() }

// Pending is ErrProcFailedPending of r.
func (r Request) Pending() error { return r.failed(ErrProcFailedPending) }

// Finished tells whether Wait would return at once, without ending r.
func (r Request) Finished() bool { return r.op == nil || r.asked() }

// Cancel is Request.Cancel for a program that may ask for what was sent long ago: in a later
// life of b's rank it comes out the same.
func (b *Box) Cancel(r Request) {
	if b.Chooses() && (r.op == nil || r.op.kind == KindSend) {
		// A send that has ended here may be under way there, or the other way round.
		n, x, known := b.Decide()
		switch {
		case known && x.Seq == 0 || !known && (r.op == nil || r.finished()):
			return
		case !known:
			b.Decided(n, 0, 1)
		}
	}
	r.Cancel()
}

// Cancel tries to take the request back. Wait tells how it ended: with
// ErrCancelled if that was possible.
func (r Request) Cancel() {
	if r.op != nil && !r.stale() {
		r.op.cancel()
	}
}

// WaitAny waits until one of rs that is not Null is done, and returns its
// index; -1 if all are Null. The request must then be ended with Wait or Test.
func WaitAny(ctx context.Context, c *Call, rs []Request) (int, error) {
	var b *Box
	for i := range rs {
		if rs[i].op == nil {
			continue
		}
		if rs[i].asked() {
			return i, nil
		}
		if b == nil {
			b = rs[i].op.box
		}
	}
	if b == nil {
		return -1, nil
	}
	if err := b.e.await(ctx, c, b, goal{any: rs}); err == ErrProcFailedPending {
		for i := range rs {
			if rs[i].op != nil && (rs[i].finished() || rs[i].op.raised()) {
				return i, nil
			}
		}
		return -1, err // it was acknowledged this moment
	} else if err != nil {
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
	case KindRecv, kindProbe, kindMprobe:
		b := o.box
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.cancelsLocked(o, o.queue != nil) {
			return false
		}
		o.queue.remove(o)
		o.err = ErrCancelled
		o.finishLocked()
		return true
	case KindSend:
		return o.cancelSend()
	}
	return false
}

func (o *op) cancelSend() bool {
	b := o.box
	if o.only == never {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !o.done() {
			o.err = ErrCancelled
			o.finishLocked()
		}
		return true
	}
	n := o.number()
	if n == 0 || !b.asks(o.peer, n) {
		return false
	}
	back, asked := o.takeBack(n)
	switch {
	case back:
		b.learns(o.peer, n, AskedInTime)
		o.err = ErrCancelled
		o.finish()
	case !asked:
		b.learns(o.peer, n, AskedTooLate)
	}
	return back
}

// number is that of the message of the send o; 0 if it has ended. Then its entry may be another's.
func (o *op) number() uint64 {
	if dst := o.box.e.Box(o.peer); dst != nil {
		dst.mu.Lock()
		defer dst.mu.Unlock()
		if a := o.msg; a != nil && a.sender == o && !o.done() {
			return a.header.Seq
		}
		return 0
	}
	l := o.box.e.lockLink(o.peer)
	if l == nil {
		return 0 // its receiver has come here, with what was sent to it
	}
	defer l.mu.Unlock()
	if o.entry == nil || o.done() {
		return 0
	}
	return o.entry.header.Seq
}

// takeBack takes back the send o of message n, where that is still possible. If its receiver
// is asked, it ends by and by.
func (o *op) takeBack(n uint64) (back, asked bool) {
	if dst := o.box.e.Box(o.peer); dst != nil {
		dst.mu.Lock()
		defer dst.mu.Unlock()
		a := o.msg
		if a == nil || !a.queued || a.sender != o {
			return false, false
		}
		dst.removeLocked(a)
		dst.returnsLocked(o.box.rank, n)
		dst.freeArrivalLocked(a)
		return true, false
	}
	l := o.box.e.lockLink(o.peer)
	if l == nil {
		return false, false
	}
	defer l.mu.Unlock()
	return false, o.entry != nil && !o.done() && l.takeBack(o.entry)
}

// takeBack asks for x, where that is still possible: then it ends by and by. mu is held.
func (l *link) takeBack(x *entry) (asked bool) {
	if x.retracting {
		return true
	}
	// A message that has its number must be sent: an Offer can be retracted,
	// and what has not left is made one.
	if x.header.Kind == wire.Eager {
		if x.lent {
			return false // it may have arrived
		}
		if l.stuck == stuckQueue && l.queue.head == x {
			return false // it is leaving
		}
		l.offer(x)
	}
	x.retracting = true
	if x.kept && !x.queued {
		l.retract(x)
	}
	l.attend()
	return true
}
