//go:build ofi && cgo && linux

package libfabric

// #include <stdlib.h>
// #include "fabric.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// maxRegions is how many a queue pair can have registered at a time.
const maxRegions = 256

// A grant is what a region is called, in Key.Remote[1]: its place in the table,
// whether the peer may write, and a number that grows. Where the provider allows
// it, a read fetches the place after the data: if it still says the same, the
// region was there all the while.
//
//	bit 0       1: for writing
//	bits 1-8    place
//	bits 9-63   number, from 1
type grant = uint64

func newGrant(number uint64, place int, a rdma.Access) grant {
	g := number<<9 | uint64(place)<<1
	if a == rdma.RemoteWrite {
		g |= 1
	}
	return g
}

func place(g grant) int     { return int(g >> 1 & (maxRegions - 1)) }
func writable(g grant) bool { return g&1 != 0 }

func putWord(b []byte, w uint64) { binary.LittleEndian.PutUint64(b, w) }
func getWord(b []byte) uint64    { return binary.LittleEndian.Uint64(b) }
func cuint(n uint32) C.uint32_t  { return C.uint32_t(n) }

// A grantTable is C's memory.
type grantTable struct {
	words *[maxRegions]uint64
	mr    region // nil where grants are not fetched
	key   uint64 // of mr
}

// What is withdrawn from reading stays registered, where reads fetch their grant,
// until the peer says that it reads it no more: most providers give the whole way
// up when they are asked for memory that is not registered. The peer is asked when
// there is so much of it:
const (
	limboMost  = 32
	limboBytes = 4 << 20
)

// places is a set of them.
type places [maxRegions / 64]uint64

func (p *places) add(i int)      { p[i/64] |= 1 << (i % 64) }
func (p *places) remove(i int)   { p[i/64] &^= 1 << (i % 64) }
func (p *places) has(i int) bool { return p[i/64]&(1<<(i%64)) != 0 }

// A recall asks the peer not to use what was granted at some places by a number,
// or answers that it does not.
type recall struct {
	number uint64 // 0: none
	places places
}

func (r recall) put(b *[transport.HeaderLen]byte) {
	putWord(b[:], r.number)
	for i, w := range r.places {
		putWord(b[8+8*i:], w)
	}
}

func getRecall(b []byte) (r recall) {
	r.number = getWord(b)
	for i := range r.places {
		r.places[i] = getWord(b[8+8*i:])
	}
	return r
}

func (r *recall) of(g grant) bool { return g>>9 <= r.number && r.places.has(place(g)) }

// grants is the memory that one side of a queue pair has registered for its peer.
type grants struct {
	f     *fabric
	table *grantTable

	mu     sync.Mutex // guards what follows; held while libfabric registers
	number uint64
	free   []int
	live   [maxRegions]granted
	ended  bool
	last   int    // the place that was withdrawn last and is still registered for reading; -1: none
	limbo  places // withdrawn, and not asked for
	many   int    // of limbo
	bytes  int    // of limbo
	asked  recall // of the peer, that has not answered
	unsent bool   // asked is yet to be sent
}

type granted struct {
	grant grant // 0: none
	inUse bool  // not withdrawn
	at    *byte
	bytes int
	mr    region
	key   uint64 // of mr
	pin   runtime.Pinner
}

func (g *grants) open(f *fabric) error {
	g.f, g.last = f, -1
	for i := range maxRegions {
		g.free = append(g.free, maxRegions-1-i)
	}
	f.mu.Lock()
	table, ok := pop(&f.tables)
	f.mu.Unlock()
	if ok {
		g.table = table
		return nil
	}
	p := C.calloc(maxRegions, 8)
	table = &grantTable{words: (*[maxRegions]uint64)(p)}
	f.mu.Lock()
	f.memory = append(f.memory, p)
	f.mu.Unlock()
	if f.c.checks != 0 {
		mr, key, err := f.register(uintptr(p), maxRegions*8, C.FI_REMOTE_READ)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.mrs = append(f.mrs, mr)
		f.mu.Unlock()
		table.mr, table.key = mr, key
	}
	g.table = table
	return nil
}

// where is what the peer needs to fetch a grant. A zero key means that it cannot.
func (g *grants) where() (addr, key uint64) {
	if g.table.mr == nil {
		return 0, 0
	}
	if g.f.c.virt_addr != 0 {
		addr = uint64(uintptr(unsafe.Pointer(g.table.words)))
	}
	return addr, g.table.key
}

func (g *grants) register(buf []byte, a rdma.Access) (k rdma.Key, ok bool) {
	if len(buf) == 0 || !g.f.enter() {
		return k, false
	}
	defer g.f.leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return k, false
	}
	at := unsafe.SliceData(buf)
	i, ok := g.reuseLocked(at, len(buf), a)
	if !ok {
		i, ok = g.enterLocked(at, len(buf), a)
	}
	if !ok {
		return k, false
	}
	r := &g.live[i]
	g.number++
	r.grant, r.inUse = newGrant(g.number, i, a), true
	atomic.StoreUint64(&g.table.words[i], r.grant)
	g.f.expected.Add(1)
	k = rdma.Key{Len: uint64(len(buf)), Remote: [2]uint64{r.key, r.grant}}
	if g.f.c.virt_addr != 0 {
		k.Addr = uint64(uintptr(unsafe.Pointer(at)))
	}
	return k, true
}

// reuseLocked finds the place of the same memory, if that was withdrawn last. Who
// sends one buffer again and again registers it once.
func (g *grants) reuseLocked(at *byte, n int, a rdma.Access) (i int, ok bool) {
	if i = g.last; i < 0 || a != rdma.RemoteRead || g.live[i].at != at || g.live[i].bytes != n {
		return 0, false
	}
	g.last = -1
	if g.table.mr != nil {
		g.limbo.remove(i)
		g.many--
		g.bytes -= n
	}
	return i, true
}

// enterLocked registers memory at a free place.
func (g *grants) enterLocked(at *byte, n int, a rdma.Access) (i int, ok bool) {
	if len(g.free) == 0 {
		g.keepLocked(-1)
	}
	if i, ok = pop(&g.free); !ok {
		return 0, false
	}
	access := C.uint64_t(C.FI_REMOTE_READ)
	if a == rdma.RemoteWrite {
		access = C.FI_REMOTE_WRITE
	}
	r := &g.live[i]
	r.pin.Pin(at)
	mr, key, err := g.f.register(uintptr(unsafe.Pointer(at)), n, access)
	if err != nil {
		r.pin.Unpin()
		g.free = append(g.free, i)
		return 0, false
	}
	r.at, r.bytes, r.mr, r.key = at, n, mr, key
	return i, true
}

// keepLocked keeps the place i, of what was withdrawn from reading, for reuseLocked.
// The one that was kept before ends, or else is in limbo.
func (g *grants) keepLocked(i int) {
	if g.table.mr == nil && g.last >= 0 {
		g.endLocked(g.last)
	}
	g.last = i
}

// withdraw has reads of what was granted fail from now on. True when the peer must
// be asked for it now.
func (g *grants) withdraw(of grant) (ask bool) {
	if !g.f.enter() {
		return false
	}
	defer g.f.leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	i := place(of)
	if of == 0 || g.live[i].grant != of || !g.live[i].inUse || g.limbo.has(i) || g.asked.number != 0 && g.asked.of(of) {
		return false
	}
	atomic.StoreUint64(&g.table.words[i], 0)
	g.idleLocked(i)
	if !writable(of) {
		if g.live[i].bytes <= limboBytes {
			g.keepLocked(i)
		} else if g.table.mr == nil {
			g.endLocked(i)
		}
		if g.table.mr == nil {
			return false
		}
	}
	g.limbo.add(i)
	g.many++
	g.bytes += g.live[i].bytes
	return writable(of) || g.many >= limboMost || g.bytes >= limboBytes
}

// ask is what to ask the peer for now, if there is anything.
func (g *grants) ask() (r recall, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked.number == 0 && g.many > 0 {
		g.asked = recall{g.number, g.limbo}
		g.limbo, g.many, g.bytes = places{}, 0, 0
		if g.table.mr != nil {
			g.last = -1
		}
		g.unsent = true
	}
	ok, g.unsent = g.unsent, false
	return g.asked, ok
}

// answered: the peer uses no more what it was asked for.
func (g *grants) answered(number uint64) {
	if !g.f.enter() {
		return
	}
	defer g.f.leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked.number == 0 || g.asked.number != number {
		return
	}
	for i := range g.live {
		if g.asked.places.has(i) && g.live[i].grant != 0 {
			g.endLocked(i)
		}
	}
	g.asked = recall{}
}

// end ends a grant whatever the peer says, on a connection that is dead.
func (g *grants) end(of grant) {
	if !g.f.enter() {
		return
	}
	defer g.f.leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := place(of); g.live[i].grant == of {
		g.endLocked(i)
	}
}

// holds tells whether what was granted is still registered.
func (g *grants) holds(of grant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live[place(of)].grant == of
}

// idleLocked: nothing is expected at the place any more.
func (g *grants) idleLocked(i int) {
	if g.live[i].inUse {
		g.live[i].inUse = false
		g.f.expected.Add(-1)
	}
}

func (g *grants) endLocked(i int) {
	g.idleLocked(i)
	r := &g.live[i]
	C.mpiv_deregister(r.mr)
	r.pin.Unpin()
	r.grant, r.at, r.mr = 0, nil, nil
	g.free = append(g.free, i)
}

// closeAll ends all grants, and refuses more.
func (g *grants) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for i := range g.live {
		if g.live[i].grant != 0 {
			atomic.StoreUint64(&g.table.words[i], 0)
			g.endLocked(i)
		}
	}
	g.f.mu.Lock()
	g.f.tables = append(g.f.tables, g.table)
	g.f.mu.Unlock()
}

func (q *QueuePair) Register(buf []byte, a rdma.Access) (rdma.Key, bool) {
	if q.state.Load() != 0 {
		return rdma.Key{}, false
	}
	return q.grants.register(buf, a)
}

// Deregister of what the peer may write to waits until the peer says that it does
// not any more, for drainTime at most.
func (q *QueuePair) Deregister(k rdma.Key) {
	g := k.Remote[1]
	if !q.grants.withdraw(g) {
		return
	}
	q.ask()
	if !writable(g) {
		return
	}
	if !q.await(func() bool {
		q.ask() // perhaps it could not be sent, or another had to be answered first
		return !q.grants.holds(g) || q.state.Load() != 0
	}) {
		q.breakUp(fmt.Errorf("%s does not give back what was withdrawn: %w", q.peer, transport.ErrBroken))
		q.fire()
	}
	q.grants.end(g)
}

// ask asks the peer for what was withdrawn, if it must be now.
func (q *QueuePair) ask() {
	r, ok := q.grants.ask()
	if !ok {
		return
	}
	var header [transport.HeaderLen]byte
	r.put(&header)
	if !q.control(revoke, rdma.Eager, &header) {
		q.grants.mu.Lock()
		q.grants.unsent = q.grants.asked.number == r.number
		q.grants.mu.Unlock()
	}
}

// revokedByPeer: the peer wants back what it granted.
func (q *QueuePair) revokedByPeer(r recall) {
	q.mu.Lock()
	for i := range q.revoked {
		if r.places.has(i) {
			q.revoked[i] = max(q.revoked[i], r.number)
		}
	}
	q.owed = r
	q.owes.Store(true)
	q.mu.Unlock()
	q.answer()
}

// answer tells the peer that nothing uses what it wants back, once that is so.
func (q *QueuePair) answer() {
	if !q.owes.Load() {
		return
	}
	q.mu.Lock()
	r := q.owed
	owes := q.owes.Load() && !q.ways.useLocked(&r)
	if owes {
		q.owes.Store(false) // here, for another question may follow the answer
	}
	q.mu.Unlock()
	if !owes {
		return
	}
	var header [transport.HeaderLen]byte
	r.put(&header)
	if !q.control(revoked, rdma.Eager, &header) {
		q.owes.Store(true)
	}
}
