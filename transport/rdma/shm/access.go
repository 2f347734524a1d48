//go:build linux

package shm

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/hugepages"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

const (
	sharedRead = 128 << 10 // a read from this length on may be shared with the peer,
	sharedMany = 512 << 10 // also where several are posted
	pollBytes  = 1 << 20   // that a PollCQ copies: some 50 µs
	aloneBytes = pollBytes // in one call: each costs 2 µs, and for as long as it takes nobody can collect garbage
	drainTime  = time.Second
	knownAlive = 10 * time.Millisecond
)

// An access is a posted read or write that has not completed.
type access struct {
	here  []byte // in this process
	key   rdma.Key
	id    uint64
	write bool // from here to the key's region; otherwise the other way

	shared *transfer // nil: this side copies alone
	index  int       // of shared
	need   uint64    // chunks of shared to be done before the access has ended
	alone  uint64    // bytes that were copied without shared
	err    error
}

func (q *QueuePair) PostRead(into []byte, from rdma.Key, id uint64) error {
	return q.post("read", access{here: into, key: from, id: id})
}

func (q *QueuePair) PostWrite(to rdma.Key, from []byte, id uint64) error {
	return q.post("write", access{here: from, key: to, id: id, write: true})
}

func (q *QueuePair) post(what string, a access) error {
	if err := q.Err(); err != nil {
		return err
	}
	if !q.reads {
		return fmt.Errorf("%s %d bytes at %s: this process may not reach the peer's memory", what, len(a.here), q.peer)
	}
	i, gen := a.key.Remote[0], a.key.Remote[1]
	if i >= maxRegions || gen == 0 || uint64(len(a.here)) > a.key.Len || a.write != (gen&writable != 0) {
		return fmt.Errorf("%s %d bytes at %s: the key does not allow it", what, len(a.here), q.peer)
	}
	prefetchRead(&q.grant(&a).gen)
	if len(a.here) > muchLen && !a.write {
		q.from.join(&q.domain.exchange.from)
	}
	if len(a.here) >= largeBody {
		hugepages.Used(a.here)
	}
	q.posted = append(q.posted, a)
	q.todo.Set(true)
	return nil
}

// advance copies for all accesses in turn and reports those that ended.
func (q *QueuePair) advance(in transport.Receiver) (moved bool) {
	todo := false
	for i, budget := 0, pollBytes; i < len(q.posted); {
		if budget <= 0 {
			todo = true
			break
		}
		if short := q.shortReads(i); len(short) > 1 {
			q.memory.readTogether(short)
		}
		a := &q.posted[i]
		before := budget
		ended := q.copyFor(a, &budget)
		moved = moved || ended || budget != before
		if !ended {
			todo = todo || a.shared == nil
			i++
			continue
		}
		id, err := a.id, a.err
		q.posted = slices.Delete(q.posted, i, i+1)
		in.Pulled(id, err)
	}
	q.todo.Set(todo)
	return moved
}

// shortReads are those of posted, from i on, that one call can begin.
func (q *QueuePair) shortReads(i int) []access {
	n, sum := 0, 0
	for n < together && i+n < len(q.posted) {
		a := &q.posted[i+n]
		if sum += len(a.here); a.write || a.shared != nil || a.alone != 0 || sum > togetherBytes {
			break
		}
		n++
	}
	return q.posted[i : i+n]
}

// copyFor moves one access on; true when it has ended.
func (q *QueuePair) copyFor(a *access, budget *int) (ended bool) {
	if !a.write && a.shared == nil && a.alone == 0 && q.shares(len(a.here)) {
		q.share(a)
	}
	if a.shared != nil {
		ended = q.copyShared(a, budget)
	} else {
		ended = q.copyAlone(a, budget)
	}
	if !ended {
		return false
	}
	switch {
	case !q.alive():
		// What was read may be another process's: the number is used again.
		a.err = fmt.Errorf("%s: %w", q.peer, transport.ErrBroken)
	case a.err == nil && atomic.LoadUint64(&q.grant(a).gen) != a.key.Remote[1]:
		a.err = fmt.Errorf("%s has withdrawn the memory", q.peer)
	}
	return true
}

func (q *QueuePair) grant(a *access) *grant { return &q.in.grants[a.key.Remote[0]] }

// copyAlone copies what is left of a, or as much as the budget allows.
func (q *QueuePair) copyAlone(a *access, budget *int) (ended bool) {
	for a.err == nil && a.alone < uint64(len(a.here)) {
		if *budget <= 0 {
			return false
		}
		n := min(uint64(len(a.here))-a.alone, aloneBytes)
		part, there := a.here[a.alone:a.alone+n], a.key.Addr+a.alone
		if a.write {
			a.err = q.write(a, there, part)
		} else {
			a.err = q.memory.read(part, there)
		}
		a.alone += n
		*budget -= max(int(n), 4<<10)
	}
	return true
}

// write copies part to the peer's region, unless that is withdrawn.
func (q *QueuePair) write(a *access, there uint64, part []byte) error {
	g := q.grant(a)
	q.helping.Store(true)
	defer q.helping.Store(false)
	g.writers.Add(1)
	defer g.writers.Add(^uint64(0))
	if err := q.Err(); err != nil {
		return err
	}
	if !q.alive() || atomic.LoadUint64(&g.gen) != a.key.Remote[1] {
		return nil // copyFor says why
	}
	return q.memory.write(there, part)
}

// shares tells whether to share a read of n bytes. A peer that reads from here
// too has enough to do.
func (q *QueuePair) shares(n int) bool {
	return (n >= sharedMany || n >= sharedRead && len(q.posted) == 1) && !q.regions.any() && !q.domain.crowded.Load()
}

// share opens a transfer for a, if there is one to be had. Close either waits for this and
// closes the transfer, or is seen here.
func (q *QueuePair) share(a *access) {
	q.helping.Store(true)
	defer q.helping.Store(false)
	if q.state.Load() != 0 {
		return
	}
	for i := range q.in.transfers {
		if q.open.Load()&(1<<i) != 0 {
			continue
		}
		a.shared, a.index, a.need = &q.in.transfers[i], i, chunks(uint64(len(a.here)))
		a.shared.open(a.key, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(a.here)))), uint64(len(a.here)))
		q.setOpen(q.open.Load() | 1<<i)
		return
	}
}

func (q *QueuePair) setOpen(mask uint64) {
	q.open.Store(mask)
	q.in.active.Store(mask)
}

// copyShared copies chunks of a until none is left; true when nobody copies any
// more. If the peer was at fault, a is copied again, alone.
func (q *QueuePair) copyShared(a *access, budget *int) (ended bool) {
	t := a.shared
	for a.err == nil && *budget > 0 {
		off, n, ok := t.claim(t.cursor.Load(), uint64(len(a.here)))
		if !ok {
			if uint64(uint32(t.cursor.Load())) >= a.need {
				break
			}
			continue
		}
		a.err = q.memory.read(a.here[off:off+n], a.key.Addr+off)
		t.finished(false)
		*budget -= int(n)
		if a.err != nil {
			a.need = t.close()
		}
	}
	done := t.done.Load()
	if uint64(uint32(done)) < a.need {
		return false
	}
	t.close()
	q.setOpen(q.open.Load() &^ (1 << a.index))
	a.shared = nil
	if done>>32 != 0 && a.err == nil {
		a.err = q.memory.read(a.here, a.key.Addr)
	}
	return true
}

// help copies chunks of the peer's reads of this side's regions.
func (q *QueuePair) help() (moved bool) {
	mask := q.out.active.Load()
	q.helping.Store(true) // Close waits for it to fall
	defer q.helping.Store(false)
	if q.Err() != nil {
		return false
	}
	for i := range q.out.transfers {
		if mask&(1<<i) != 0 && q.helpWith(&q.out.transfers[i]) {
			moved = true
		}
	}
	if moved {
		q.wakePeer() // it may wait for nothing but our last chunk
	}
	return moved
}

// helpWith copies chunks of t. The peer says what to copy, so it must name a
// region that is registered.
func (q *QueuePair) helpWith(t *transfer) (moved bool) {
	for budget := pollBytes; budget > 0; {
		c := t.cursor.Load()
		key := rdma.Key{Addr: t.from.Load(), Remote: [2]uint64{t.region.Load(), t.gen.Load()}}
		into, length := t.into.Load(), t.length.Load()
		if uint64(uint32(c)) >= chunks(length) {
			return moved
		}
		buf, ok := q.regions.lookup(key, length)
		if !ok || !q.alive() {
			return moved
		}
		off, n, ok := t.claim(c, length)
		if !ok {
			continue
		}
		err := q.memory.write(into+off, buf[off:off+n])
		t.finished(err != nil)
		budget -= int(n)
		moved = true
	}
	return moved
}

// alive says that the peer's process lives, so that its number is still its own:
// its end of the socket is open, or was knownAlive ago. No system gives a number
// to another process so soon.
func (q *QueuePair) alive() bool {
	now := time.Since(q.began)
	if now < q.aliveAt+knownAlive {
		return true
	}
	q.hangup[0] = unix.PollFd{Events: unix.POLLRDHUP}
	if q.raw.Control(q.lookForHangup) != nil || q.hangup[0].Revents != 0 {
		return false
	}
	q.aliveAt = now
	return true
}

// drain closes all transfers and waits until the peer writes no more to where
// they went. A peer that neither runs nor dies for drainTime is not waited for any
// longer: stopped in the middle of a chunk, it may finish that when it goes on.
func (q *QueuePair) drain() {
	for i := range q.in.transfers {
		t := &q.in.transfers[i]
		if q.open.Load()&(1<<i) == 0 {
			continue
		}
		claimed := t.close()
		q.await(func() bool { return uint64(uint32(t.done.Load())) >= claimed })
	}
}

// await waits until the peer has stopped writing to this side's memory, or for
// drainTime.
func (q *QueuePair) await(stopped func() bool) {
	for end := time.Now().Add(drainTime); !stopped() && !q.gone.Load() && time.Now().Before(end); {
		time.Sleep(10 * time.Microsecond)
	}
}
