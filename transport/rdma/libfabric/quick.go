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

// quickly does a whole access. It is false, and nothing was done, when that cannot be
// now: the other way goes on, or says why not.
func (q *QueuePair) quickly(here []byte, k rdma.Key, id uint64, write bool) bool {
	f := q.fabric
	if f.c.at_once == 0 || f.c.local != 0 || len(q.ends) == cap(q.ends) ||
		len(here) == 0 || len(here) > int(min(f.c.max_message, pieceMost)) {
		return false
	}
	if !f.polling.TryLock() {
		return false
	}
	defer f.polling.Unlock()
	q.quick.Add(quickNow)
	if q.state.Load() != 0 || k.Remote[1]>>9 <= q.revoked[place(k.Remote[1])] {
		q.quick.Add(-quickNow)
		return false
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
	posted, ended, err := f.accessNow(o)
	runtime.KeepAlive(here)
	now := int32(-quickNow)
	switch {
	case !posted:
	case !ended:
		q.adopt(o, here, k, id, write)
	case err != nil:
		err = fmt.Errorf("%s: %w: %w", q.peer, err, transport.ErrBroken)
		q.breakUp(err)
		fallthrough
	default:
		q.ends = append(q.ends, end{id, err})
		q.alone += 1 + len(here)>>18
		now++
	}
	q.quick.Add(now)
	f.dispatch()
	if ended {
		q.notify()
	}
	return posted
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
	ends := q.ends
	q.ends = q.spareEnds[:0] // for what is posted meanwhile
	for _, e := range ends {
		q.quick.Add(-1)
		in.Pulled(e.id, e.err)
	}
	q.spareEnds = ends
	return len(ends) > 0
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

// accessNow hands o to libfabric, and tells whether it took it and how it has ended,
// if it has. What else has completed awaits dispatch. Polling is held.
func (f *fabric) accessNow(o op) (posted, ended bool, err error) {
	b := f.batch
	posted = C.mpiv_access(number(f.c), number(o), number(b)) == 0
	for i := range b.event[:b.events] {
		if e := &b.event[i]; e.op == &o.op {
			e.op = nil
			return posted, true, fiError(-e.err)
		}
	}
	return posted, false, nil
}
