//go:build ofi && cgo && linux

package libfabric

// #include "fabric.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// A quick access is posted and has ended in one call of C, which is how it goes
// where the provider copies within the post. While polling is held nobody else hears
// of completions, or of a peer that wants memory back. So nothing but the ends is
// to be kept.

// The count of a queue pair's quick accesses: those that were not reported, and,
// from this bit on, those under way.
const quickNow = 1 << 16

// Who does nothing but quick accesses must look for messages too: after so many, or
// some MiB.
const quickShare = 32

// An end is a quick access that was not reported.
type end struct {
	id  uint64
	err error
}

// quickly does a whole access, if that can be at once. It is done when ok: it has
// ended, or goes on as any other.
func (q *QueuePair) quickly(here []byte, k rdma.Key, id uint64, write bool) (ok bool) {
	f := q.fabric
	if f.c.at_once == 0 || f.c.local != 0 || len(here) == 0 || len(here) > pieceMost || len(q.ends) == cap(q.ends) {
		return false
	}
	if !f.polling.TryLock() {
		return false
	}
	defer f.polling.Unlock()
	q.quick.Add(quickNow)
	if q.state.Load() != 0 || k.Remote[1]>>9 <= q.revoked[place(k.Remote[1])] {
		q.quick.Add(-quickNow)
		return false // the long way says why
	}
	o, err := f.quickOp()
	if err != nil {
		q.quick.Add(-quickNow)
		return false
	}
	o.to, o.len = q.to[rdma.Bulk], C.uint64_t(len(here))
	o.local = number(unsafe.SliceData(here))
	o.remote, o.key = C.uint64_t(k.Addr), C.uint64_t(k.Remote[0])
	o.write = 0
	if write {
		o.write = 1
	}
	ended, err := f.accessNow(o)
	runtime.KeepAlive(here)
	if err == errAgain {
		q.quick.Add(-quickNow)
		return false
	}
	if err == nil && !ended {
		q.adopt(o, here, k, id, write)
		q.quick.Add(-quickNow)
		return true
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %w", q.peer, err, transport.ErrBroken)
		q.breakUp(err)
	}
	q.ends = append(q.ends, end{id, err})
	q.alone += 1 + len(here)>>18
	q.quick.Add(1 - quickNow)
	q.notify()
	return true
}

// adopt makes an access of o, which has not ended. Polling is held.
func (q *QueuePair) adopt(o op, here []byte, k rdma.Key, id uint64, write bool) {
	a := &access{pair: q, here: here, key: k, id: id, write: write, posted: len(here), flying: 1}
	a.pin.Pin(unsafe.SliceData(here))
	q.fabric.quick = nil
	q.fabric.mu.Lock()
	q.fabric.places[o.op.index] = a
	q.fabric.mu.Unlock()
	q.accessing.Add(1)
	q.fabric.expected.Add(1)
	q.mu.Lock()
	q.ways.live = append(q.ways.live, a)
	q.mu.Unlock()
}

// reportEnds reports the quick accesses.
func (q *QueuePair) reportEnds(in transport.Receiver) (moved bool) {
	for len(q.ends) > 0 {
		e, _ := pop(&q.ends)
		q.quick.Add(-1)
		in.Pulled(e.id, e.err)
		moved = true
	}
	return moved
}

// quickOp is the op of quick accesses. Polling is held.
func (f *fabric) quickOp() (op, error) {
	if f.quick == nil {
		o, err := f.takeOp(nil)
		if err != nil {
			return nil, err
		}
		o.desc, o.check = nil, 0
		f.quick = o
	}
	return f.quick, nil
}

// accessNow hands o to libfabric, and tells whether it has ended. The handler hears
// of what else has. Polling is held.
func (f *fabric) accessNow(o op) (ended bool, err error) {
	b := f.batch
	if err := fiError(C.mpiv_access(number(f.c), number(o), number(b))); err != nil {
		f.dispatch()
		return false, err
	}
	for i := range b.event[:b.events] {
		if e := &b.event[i]; e.op == &o.op {
			ended, err = true, fiError(-e.err)
		} else {
			f.completed(e)
		}
	}
	return ended, err
}
