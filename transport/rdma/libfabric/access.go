//go:build ofi && cgo && linux

package libfabric

// #include "fabric.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"unsafe"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

const (
	pieceMost  = 8 << 20 // bytes of an access that are one operation of libfabric
	piecesMost = 4       // of an access at a time
)

// An access is a posted read or write that has not been reported.
type access struct {
	pair  *QueuePair
	here  []byte // in this process; pinned by pin
	key   rdma.Key
	id    uint64
	write bool   // from here to the key's region; otherwise the other way
	mr    region // of here, where that must be

	// guarded by pair.mu
	pin    runtime.Pinner
	left   bool // by its queue pair, while libfabric had it
	posted int  // bytes
	flying int  // pieces
	done   bool
	err    error
}

// accesses is what a queue pair has posted. Its methods want the queue pair's mu.
type accesses struct {
	live []*access
	done []*access // of live: to be reported
	more int       // of live: with pieces to be posted
}

func (w *accesses) dueLocked() bool { return w.more > 0 || len(w.done) > 0 }

// useLocked tells whether something is under way at what is recalled.
func (w *accesses) useLocked(r *recall) bool {
	return slices.ContainsFunc(w.live, func(a *access) bool { return a.flying > 0 && r.of(a.key.Remote[1]) })
}

// endedLocked notes that a has ended, if it has.
func (w *accesses) endedLocked(a *access) {
	if !a.done && a.flying == 0 && (a.err != nil || a.posted == len(a.here)) {
		if a.posted < len(a.here) {
			w.more--
		}
		a.done = true
		w.done = append(w.done, a)
	}
}

func (q *QueuePair) PostRead(into []byte, from rdma.Key, id uint64) error {
	return q.start("read", into, from, id, false)
}

func (q *QueuePair) PostWrite(to rdma.Key, from []byte, id uint64) error {
	return q.start("write", from, to, id, true)
}

func (q *QueuePair) start(what string, here []byte, k rdma.Key, id uint64, write bool) error {
	if err := q.Err(); err != nil {
		return err
	}
	g := k.Remote[1]
	if g>>9 == 0 || uint64(len(here)) > k.Len || write != writable(g) {
		return fmt.Errorf("%s %d bytes at %s: the key does not allow it", what, len(here), q.peer)
	}
	if !q.fabric.enter() {
		return net.ErrClosed
	}
	defer q.fabric.leave()
	if q.quickly(here, k, id, write) {
		return nil
	}
	a, ok := pop(&q.unused)
	if !ok {
		a = &access{pair: q}
	}
	a.here, a.key, a.id, a.write = here, k, id, write
	a.posted, a.flying, a.done, a.left, a.err = 0, 0, false, false, nil
	if len(here) > 0 {
		a.pin.Pin(unsafe.SliceData(here))
	}
	if err := a.registerHere(); err != nil {
		a.pin.Unpin()
		return fmt.Errorf("%s %d bytes at %s: %w", what, len(here), q.peer, err)
	}
	q.mu.Lock()
	if q.state.Load() != 0 {
		q.mu.Unlock()
		a.unregister()
		return q.Err()
	}
	q.ways.live = append(q.ways.live, a)
	q.accessing.Add(1)
	q.fabric.expected.Add(1)
	if len(here) > 0 {
		q.ways.more++
	}
	q.ways.endedLocked(a)
	q.postPieceLocked(a)
	return nil
}

// registerHere registers the memory of this side, where that must be. Providers
// for which it must keep a cache of their own.
func (a *access) registerHere() error {
	f := a.pair.fabric
	if f.c.local == 0 || len(a.here) == 0 {
		return nil
	}
	rights := C.uint64_t(C.FI_READ)
	if a.write {
		rights = C.FI_WRITE
	}
	mr, _, err := f.register(uintptr(unsafe.Pointer(unsafe.SliceData(a.here))), len(a.here), rights)
	a.mr = mr
	return err
}

// postPieceLocked posts the next piece of a, if it has one and there is room. It
// gives mu back.
func (q *QueuePair) postPieceLocked(a *access) (posted bool) {
	off := a.posted
	n := min(len(a.here)-off, int(min(q.fabric.c.max_message, pieceMost)))
	switch {
	case a.done || n == 0 || a.flying >= piecesMost || q.state.Load() != 0:
		q.mu.Unlock()
		return false
	case a.err == nil && a.key.Remote[1]>>9 <= q.revoked[place(a.key.Remote[1])]:
		a.err = q.withdrawn()
	}
	if a.err != nil {
		q.ways.endedLocked(a)
		q.mu.Unlock()
		return true
	}
	a.flying++
	a.posted += n
	if a.posted == len(a.here) {
		q.ways.more--
	}
	q.mu.Unlock()
	err := q.issue(a, off, n)
	if err == nil {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.posted == len(a.here) {
		q.ways.more++
	}
	a.flying--
	a.posted = off
	if !errors.Is(err, errAgain) {
		a.err = fmt.Errorf("%s: %w", q.peer, err)
		q.ways.endedLocked(a)
	}
	return false
}

// issue hands n bytes of a, from off on, to libfabric.
func (q *QueuePair) issue(a *access, off, n int) error {
	o, err := q.fabric.takeOp(a)
	if err != nil {
		return err
	}
	o.to, o.len = q.to[rdma.Bulk], C.uint64_t(n)
	o.local = C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(a.here))) + uintptr(off))
	o.remote, o.key = C.uint64_t(a.key.Addr)+C.uint64_t(off), C.uint64_t(a.key.Remote[0])
	o.desc, o.write, o.check = nil, 0, 0
	if a.mr != nil {
		o.desc = C.mpiv_desc(a.mr)
	}
	switch {
	case a.write:
		o.write = 1
	case q.their.grantsKey != 0:
		o.check = 1
		o.grant = C.uint64_t(q.their.grants) + C.uint64_t(8*place(a.key.Remote[1]))
		o.grant_key = C.uint64_t(q.their.grantsKey)
	}
	return q.fabric.access(o)
}

func (q *QueuePair) withdrawn() error { return fmt.Errorf("%s has withdrawn the memory", q.peer) }

// accessed is told by progress that a piece of a has ended. After an error, as on
// hardware, the queue pair is dead: the provider has given up the way to the peer.
func (q *QueuePair) accessed(a *access, word grant, err error) {
	if err != nil {
		err = fmt.Errorf("%s: %w: %w", q.peer, err, transport.ErrBroken)
		q.breakUp(err)
	} else if !a.write && q.their.grantsKey != 0 && word != a.key.Remote[1] {
		err = q.withdrawn()
	}
	q.mu.Lock()
	a.flying--
	if a.err == nil {
		a.err = err
	}
	q.ways.endedLocked(a)
	if a.left && a.flying == 0 {
		a.unregister()
	}
	q.mu.Unlock()
	q.answer()
	q.notify()
}

// advance posts pieces and reports the accesses that have ended.
func (q *QueuePair) advance(in transport.Receiver) (moved bool) {
	if !q.fabric.enter() {
		return false
	}
	defer q.fabric.leave()
	for i := 0; ; i++ {
		q.mu.Lock()
		if q.ways.more == 0 || i >= len(q.ways.live) {
			break
		}
		moved = q.postPieceLocked(q.ways.live[i]) || moved
	}
	for { // mu is held
		a, ok := pop(&q.ways.done)
		if !ok {
			q.mu.Unlock()
			return moved
		}
		i := slices.Index(q.ways.live, a)
		q.ways.live = slices.Delete(q.ways.live, i, i+1)
		a.unregister()
		q.mu.Unlock()
		id, err := a.id, a.err
		a.here, a.err = nil, nil
		q.accessing.Add(-1)
		q.fabric.expected.Add(-1)
		q.unused = append(q.unused, a)
		in.Pulled(id, err)
		moved = true
		q.mu.Lock()
	}
}

func (a *access) unregister() {
	if a.mr != nil {
		C.mpiv_deregister(a.mr)
		a.mr = nil
	}
	a.pin.Unpin()
}

// drain waits until nothing is under way.
func (q *QueuePair) drain() {
	q.await(func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return !slices.ContainsFunc(q.ways.live, func(a *access) bool { return a.flying > 0 })
	})
}

// abandon ends the accesses of a dead connection. What libfabric keeps stays
// pinned until the fabric is closed.
func (q *QueuePair) abandon(report func(id uint64)) {
	if q.quick.Load() >= quickNow {
		q.await(func() bool { return q.quick.Load() < quickNow })
	}
	q.mu.Lock()
	none := len(q.ways.live) == 0
	q.mu.Unlock()
	if none {
		return
	}
	q.drained.Do(q.drain)
	q.mu.Lock()
	live := q.ways.live
	q.ways = accesses{}
	q.accessing.Add(-int32(len(live)))
	q.fabric.expected.Add(-int32(len(live)))
	for _, a := range live {
		a.done, a.left = true, true
		if a.flying == 0 {
			a.unregister()
		}
	}
	q.mu.Unlock()
	for _, a := range live {
		report(a.id)
	}
}
