//go:build linux

package shm

import (
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

const (
	sharedRead = 128 << 10 // reads from this length on are shared with the peer
	pollBytes  = 1 << 20   // a PollCQ copies about this much, at 20 µs per 512 KiB
	drainTime  = time.Second
)

// A read is a posted one that has not completed.
type read struct {
	into []byte
	key  rdma.Key
	id   uint64

	shared *transfer // nil: this side copies alone
	index  int       // of shared
	need   uint64    // chunks of shared to be done before the read has ended
	alone  uint64    // bytes that were copied without shared
	err    error
}

func (q *QueuePair) PostRead(into []byte, from rdma.Key, id uint64) error {
	if err := q.dead(); err != nil {
		return err
	}
	if !q.reads {
		return fmt.Errorf("read from %s: this process may not read the peer's memory", q.peer)
	}
	if from.Remote[0] >= regions || uint64(len(into)) > from.Len {
		return fmt.Errorf("read %d bytes from %s: the key does not name so many", len(into), q.peer)
	}
	q.posted = append(q.posted, read{into: into, key: from, id: id})
	q.todo.Store(true)
	return nil
}

// advance copies for all reads, some of each turn, and reports those that ended.
func (q *QueuePair) advance(in transport.Receiver) (moved bool) {
	todo := false
	for i, budget := 0, pollBytes; i < len(q.posted); {
		r := &q.posted[i]
		if budget <= 0 {
			todo = true
			break
		}
		before := budget
		ended := q.copyFor(r, &budget)
		moved = moved || ended || budget != before
		if !ended {
			todo = todo || r.shared == nil
			i++
			continue
		}
		id, err := r.id, r.err
		q.posted = slices.Delete(q.posted, i, i+1)
		in.Pulled(id, err)
	}
	q.todo.Store(todo)
	return moved
}

// copyFor moves one read on; true when it has ended.
func (q *QueuePair) copyFor(r *read, budget *int) (ended bool) {
	if r.shared == nil && r.alone == 0 && len(r.into) >= sharedRead {
		q.share(r)
	}
	if r.shared != nil {
		if !q.copyShared(r, budget) {
			return false
		}
	} else {
		for r.err == nil && r.alone < uint64(len(r.into)) {
			if *budget <= 0 {
				return false
			}
			n := min(uint64(len(r.into))-r.alone, chunk)
			r.err = q.memory.read(r.into[r.alone:r.alone+n], r.key.Addr+r.alone)
			r.alone += n
			*budget -= max(int(n), 4<<10)
		}
	}
	switch {
	case !q.alive():
		// What was read may be another process's: the number is used again.
		r.err = fmt.Errorf("read from %s: %w", q.peer, transport.ErrBroken)
	case r.err == nil && q.in.regions[r.key.Remote[0]].Load() != r.key.Remote[1]:
		r.err = fmt.Errorf("read from %s: the peer has withdrawn the memory", q.peer)
	}
	return true
}

// share opens a transfer for r, if there is one to be had.
func (q *QueuePair) share(r *read) {
	for i := range q.in.transfers {
		if q.open.Load()&(1<<i) != 0 {
			continue
		}
		r.shared, r.index, r.need = &q.in.transfers[i], i, chunks(uint64(len(r.into)))
		r.shared.open(r.key, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.into)))), uint64(len(r.into)))
		q.setOpen(q.open.Load() | 1<<i)
		return
	}
}

func (q *QueuePair) setOpen(mask uint64) {
	q.open.Store(mask)
	q.in.active.Store(mask)
}

// copyShared copies chunks of r until none is left; true when nobody copies any
// more. If the peer was at fault, r is copied again, alone.
func (q *QueuePair) copyShared(r *read, budget *int) (ended bool) {
	t := r.shared
	for r.err == nil && *budget > 0 {
		off, n, ok := t.claim(t.cursor.Load(), uint64(len(r.into)))
		if !ok {
			if uint64(uint32(t.cursor.Load())) >= r.need {
				break
			}
			continue
		}
		r.err = q.memory.read(r.into[off:off+n], r.key.Addr+off)
		t.finished(false)
		*budget -= int(n)
		if r.err != nil {
			r.need = t.close()
		}
	}
	done := t.done.Load()
	if uint64(uint32(done)) < r.need {
		return false
	}
	t.close()
	q.setOpen(q.open.Load() &^ (1 << r.index))
	r.shared = nil
	if done>>32 != 0 && r.err == nil {
		r.err = q.memory.read(r.into, r.key.Addr)
	}
	return true
}

// help copies chunks of the peer's reads of this side's regions.
func (q *QueuePair) help() (moved bool) {
	mask := q.out.active.Load()
	if mask == 0 {
		return false
	}
	q.helping.Store(true) // Close waits for it to fall
	defer q.helping.Store(false)
	if q.dead() != nil {
		return false
	}
	for i := range q.out.transfers {
		if mask&(1<<i) != 0 && q.helpWith(&q.out.transfers[i], &moved) {
			q.wakePeer()
		}
	}
	return moved
}

// helpWith copies chunks of t; true when it copied the last that was left.
// The peer says what to copy, so it must name a region that is registered.
func (q *QueuePair) helpWith(t *transfer, moved *bool) (last bool) {
	for budget := pollBytes; budget > 0; {
		c := t.cursor.Load()
		key := rdma.Key{Addr: t.from.Load(), Remote: [2]uint64{t.region.Load(), t.gen.Load()}}
		into, length := t.into.Load(), t.length.Load()
		if uint64(uint32(c)) >= chunks(length) {
			return *moved
		}
		buf, ok := q.regions.lookup(key, length)
		if !ok || !q.alive() {
			return false
		}
		off, n, ok := t.claim(c, length)
		if !ok {
			continue
		}
		err := q.memory.write(into+off, buf[off:off+n])
		runtime.KeepAlive(buf)
		t.finished(err != nil)
		budget -= int(n)
		*moved = true
	}
	return false
}

// alive says that the peer's end of the socket is open, so that its process lives.
func (q *QueuePair) alive() bool {
	q.hangup[0] = unix.PollFd{Events: unix.POLLRDHUP}
	return q.raw.Control(q.lookForHangup) == nil && q.hangup[0].Revents == 0
}

// drain closes all transfers and waits until the peer writes no more to where
// they went: it has said so, or is gone. A peer that neither runs nor dies for
// drainTime is not waited for any longer; what is left then is the moment between
// its claim of a chunk and its system call.
func (q *QueuePair) drain() {
	for i := range q.in.transfers {
		t := &q.in.transfers[i]
		if q.open.Load()&(1<<i) == 0 {
			continue
		}
		claimed := t.close()
		for end := time.Now().Add(drainTime); uint64(uint32(t.done.Load())) < claimed && !q.gone.Load() && time.Now().Before(end); {
			time.Sleep(10 * time.Microsecond)
		}
	}
}
