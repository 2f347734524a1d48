//go:build ofi && cgo && linux

package libfabric

/*
#cgo pkg-config: libfabric
#cgo CFLAGS: -O2
#cgo noescape mpiv_register
#cgo nocallback mpiv_register
#cgo noescape mpiv_progress
#cgo nocallback mpiv_progress
#cgo noescape mpiv_send
#cgo nocallback mpiv_send
#cgo noescape mpiv_access
#cgo nocallback mpiv_access
#cgo noescape mpiv_deregister
#cgo nocallback mpiv_deregister
#include <stdlib.h>
#include "fabric.h"
*/
import "C"

import (
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/transport/rdma"
)

// What the C part assumes of frames.
const _ = -((C.MPIV_HEAD ^ headLen) | (C.MPIV_SLOT ^ slotLen))

const slotLen = headLen + maxBody

// Available tells whether this program was built with libfabric, and if not, what
// that takes.
func Available() (ok bool, why string) { return true, "" }

type (
	slot   = *C.struct_mpiv_slot
	op     = *C.struct_mpiv_access
	fiAddr = C.fi_addr_t
	region = *C.struct_fid_mr
)

func slotBytes(s slot) *[slotLen]byte { return (*[slotLen]byte)(unsafe.Pointer(s.buf)) }

// A handler is told, by progress, what has completed. It owns the slots that
// arrive.
type handler interface {
	arrived(s slot, n int)
	sent(pair uint32, err error)
	accessed(a *access, word uint64, err error)
}

// A fabric is what a domain has of libfabric, with the memory that libfabric uses
// while something is under way. What may be called by any goroutine until close is
// refused after it.
type fabric struct {
	c     *C.struct_mpiv_fabric // set once
	told  handler               // set once
	users atomic.Int32          // calls under way that use c
	shut  atomic.Bool

	polling lock.Mutex           // held by who reads the completion queues; nobody waits for it
	batch   *C.struct_mpiv_batch // guarded by polling
	looks   uint64               // likewise
	vain    [rdma.Lanes]int      // likewise: looks at a lane since something was there
	quick   op                   // likewise: of quick accesses; may be nil

	toPost   atomic.Bool  // idle may have receives to post
	expected atomic.Int32 // accesses under way and memory granted: the bulk lane is theirs
	checked  atomic.Int32 // reads under way that fetch their grant

	mu     lock.Mutex // guards what follows
	keys   *rand.ChaCha8
	idle   [rdma.Lanes][]slot
	posted [rdma.Lanes]C.uint64_t // receives
	spare  [rdma.Lanes][]slot     // for sends
	ops    []op                   // for accesses
	places []*access              // by an op's index: whose it is now
	memory []unsafe.Pointer       // to free
	mrs    []region               // of memory
	tables []*grantTable          // that no queue pair uses
	pairs  int                    // queue pairs, and
	room   int                    // for how many there are slots

	avMu  sync.Mutex // guards what follows
	peers map[string]*peerAddr
}

type peerAddr struct {
	addr fiAddr
	uses int
}

func openFabric(o Options, told handler) (*fabric, error) {
	f := &fabric{told: told, peers: make(map[string]*peerAddr), keys: newKeys()}
	f.c = (*C.struct_mpiv_fabric)(C.calloc(1, C.sizeof_struct_mpiv_fabric))
	f.batch = (*C.struct_mpiv_batch)(C.calloc(1, C.sizeof_struct_mpiv_batch))
	f.memory = []unsafe.Pointer{unsafe.Pointer(f.c), unsafe.Pointer(f.batch)}
	opt := C.struct_mpiv_options{provider: C.CString(o.Provider)}
	defer C.free(unsafe.Pointer(opt.provider))
	if host, _, _ := net.SplitHostPort(o.Listen); byIP(o.Provider) {
		opt.node = C.CString(host)
		defer C.free(unsafe.Pointer(opt.node))
	}
	if o.RegisterLocal {
		opt.local = 1
	}
	if o.Naps {
		opt.naps = 1
	}
	var what *C.char
	if err := fiError(C.mpiv_open(f.c, &opt, &what)); err != nil {
		f.free()
		return nil, fmt.Errorf("%s: %s: %w (fi_info -l lists the providers of this host)", o.Provider, C.GoString(what), err)
	}
	return f, nil
}

// byIP tells whether a provider finds its device by an IP address of this host.
func byIP(provider string) bool {
	core, _, _ := strings.Cut(provider, ";")
	return core != "shm" && core != "efa"
}

var errAgain = errors.New("not now")

// fiError is libfabric's error; its numbers are negative.
func fiError[N C.int | C.int64_t](n N) error {
	switch {
	case n >= 0:
		return nil
	case n == -C.FI_EAGAIN:
		return errAgain
	}
	return errors.New(C.GoString(C.fi_strerror(C.int(-n))))
}

// enter keeps close away until leave; false when it is too late.
func (f *fabric) enter() bool {
	f.users.Add(1)
	if f.shut.Load() {
		f.users.Add(-1)
		return false
	}
	return true
}

func (f *fabric) leave() { f.users.Add(-1) }

// names is the addresses of the two endpoints.
func (f *fabric) names() (n [rdma.Lanes]string, err error) {
	for lane := range n {
		var b [textMost]byte
		length := C.size_t(len(b))
		if err := fiError(C.mpiv_name(f.c, C.int(lane), unsafe.Pointer(&b), &length)); err != nil {
			return n, fmt.Errorf("ask for an endpoint's address: %w", err)
		}
		n[lane] = string(b[:min(int(length), len(b))])
	}
	return n, nil
}

// insert makes name known. Each insert wants its remove.
func (f *fabric) insert(name string) (fiAddr, error) {
	f.avMu.Lock()
	defer f.avMu.Unlock()
	p := f.peers[name]
	if p == nil {
		p = new(peerAddr)
		var b [textMost + 1]byte // more than any provider reads; and what is text ends
		copy(b[:], name)
		if err := fiError(C.mpiv_insert(f.c, unsafe.Pointer(&b), &p.addr)); err != nil {
			return 0, fmt.Errorf("resolve the peer's fabric address: %w", err)
		}
		f.peers[name] = p
	}
	p.uses++
	return p.addr, nil
}

// remove ends an insert. The address stays while something is under way to it.
func (f *fabric) remove(name string, quiet bool) {
	f.avMu.Lock()
	defer f.avMu.Unlock()
	p := f.peers[name]
	p.uses--
	if p.uses == 0 && quiet && C.mpiv_remove(f.c, p.addr) == 0 {
		delete(f.peers, name)
	}
}

// furnish makes sure that there are slots for one more queue pair, until vacate.
func (f *fabric) furnish() error {
	f.mu.Lock()
	f.pairs++
	enough := f.pairs <= f.room
	if !enough {
		f.room++
	}
	f.mu.Unlock()
	if enough {
		return nil
	}
	for l := range rdma.Lane(rdma.Lanes) {
		n := int(window[l])
		if l == rdma.Eager {
			n += asides
		}
		if err := errors.Join(f.grow(C.MPIV_RECV, l, n), f.grow(C.MPIV_SEND, l, n)); err != nil {
			f.mu.Lock()
			f.pairs--
			f.room--
			f.mu.Unlock()
			return fmt.Errorf("register %d bytes for messages: %w", n*slotLen, err)
		}
	}
	return nil
}

func (f *fabric) vacate() {
	f.mu.Lock()
	f.pairs--
	f.mu.Unlock()
}

// grow makes n more slots in a lane, for receives or sends.
func (f *fabric) grow(kind C.uint32_t, lane rdma.Lane, n int) error {
	slots := C.calloc(C.size_t(n), C.sizeof_struct_mpiv_slot)
	bufs := C.calloc(C.size_t(n), slotLen)
	f.mu.Lock()
	f.memory = append(f.memory, slots, bufs)
	f.mu.Unlock()
	desc, err := f.local(bufs, n*slotLen, C.FI_SEND|C.FI_RECV)
	if err != nil {
		return err
	}
	all := unsafe.Slice((slot)(slots), n)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range all {
		s := &all[i]
		s.op.kind, s.lane, s.desc = kind, C.uint32_t(lane), desc
		s.buf = (*C.char)(unsafe.Add(bufs, i*slotLen))
		if kind == C.MPIV_RECV {
			f.idle[lane] = append(f.idle[lane], s)
		} else {
			f.spare[lane] = append(f.spare[lane], s)
		}
	}
	f.toPost.Store(true)
	return nil
}

// local registers C memory for this side's use, where that must be.
func (f *fabric) local(p unsafe.Pointer, n int, access C.uint64_t) (desc unsafe.Pointer, err error) {
	if f.c.local == 0 {
		return nil, nil
	}
	mr, _, err := f.register(uintptr(p), n, access)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.mrs = append(f.mrs, mr)
	f.mu.Unlock()
	return C.mpiv_desc(mr), nil
}

// newKeys is where keys come from: numbers that nobody can guess, without the
// system call and the memory that each of crypto/rand's may cost.
func newKeys() *rand.ChaCha8 {
	var seed [32]byte
	crand.Read(seed[:])
	return rand.NewChaCha8(seed)
}

// register registers memory, which must be pinned. Its key cannot be guessed,
// where it is not the provider that chooses.
func (f *fabric) register(p uintptr, n int, access C.uint64_t) (mr region, key uint64, err error) {
	for range 10 {
		f.mu.Lock()
		key := C.uint64_t(f.keys.Uint64()) & f.c.key_mask
		f.mu.Unlock()
		r := C.mpiv_register(f.c, C.uintptr_t(p), C.size_t(n), access, key)
		if r.err != -C.FI_ENOKEY {
			return r.mr, uint64(r.key), fiError(r.err)
		}
	}
	return nil, 0, errors.New("every key is in use")
}

// send sends the first n bytes of s to a peer's endpoint and gives s back when
// they have left. After an error s is still the caller's; flying is false when it
// is given back already.
func (f *fabric) send(s slot, to fiAddr, n int) (flying bool, err error) {
	switch r := C.mpiv_send(number(f.c), number(s), to, C.size_t(n)); {
	case r == 1:
		f.mu.Lock()
		f.spare[s.lane] = append(f.spare[s.lane], s)
		f.mu.Unlock()
		return false, nil
	case r == 0:
		return true, nil
	default:
		return false, fiError(r)
	}
}

func pop[T any](list *[]T) (x T, ok bool) {
	n := len(*list)
	if n == 0 {
		return x, false
	}
	x, *list = (*list)[n-1], (*list)[:n-1]
	return x, true
}

func (f *fabric) takeSlot(l rdma.Lane) (slot, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return pop(&f.spare[l])
}

func (f *fabric) giveSlot(s slot) {
	f.mu.Lock()
	f.spare[s.lane] = append(f.spare[s.lane], s)
	f.mu.Unlock()
}

// recycle takes a slot that arrived back.
func (f *fabric) recycle(s slot) {
	f.mu.Lock()
	f.idle[s.lane] = append(f.idle[s.lane], s)
	f.mu.Unlock()
	f.toPost.Store(true)
}

// A look at an idle lane of a provider without hardware is a system call or two. So
// a lane where lately so many looks were in vain gets only every idleShare-th,
// unless something is expected of it.
const (
	idleAfter = 64
	idleShare = 8
)

// progress posts receives and tells the handler what has completed, unless
// another goroutine is at it. All looks at both lanes.
func (f *fabric) progress(all bool) (moved bool, err error) {
	if !f.enter() {
		return false, net.ErrClosed
	}
	defer f.leave()
	if !f.polling.TryLock() {
		return false, nil
	}
	defer f.polling.Unlock()
	b := f.batch
	b.posts = 0
	if f.toPost.Load() {
		f.mu.Lock()
		f.fillLocked()
		f.mu.Unlock()
	}
	b.lanes = f.lanes(all)
	if b.posts == 0 && b.lanes == 0 {
		return false, nil
	}
	b.again = 0
	if f.checked.Load() > 0 {
		b.again = 1 << rdma.Bulk
	}
	err = fiError(C.mpiv_progress(number(f.c), number(b)))
	for l := range f.vain {
		if b.busy&(1<<l) != 0 {
			f.vain[l] = 0
		} else if b.lanes&(1<<l) != 0 {
			f.vain[l]++
		}
	}
	if b.posts != 0 {
		f.mu.Lock()
		for i, s := range b.post[:b.posts] {
			if i < int(b.posted) {
				f.posted[s.lane]++
			} else {
				f.idle[s.lane] = append(f.idle[s.lane], s)
				f.toPost.Store(true)
			}
		}
		f.mu.Unlock()
	}
	f.dispatch()
	return b.events != 0, err
}

// dispatch tells the handler what the batch says has completed. Polling is held.
func (f *fabric) dispatch() {
	for i := range f.batch.event[:f.batch.events] {
		if e := &f.batch.event[i]; e.op != nil { // not a quick access
			f.completed(e)
		}
	}
}

// access hands o to libfabric.
func (f *fabric) access(o op) error {
	if o.check != 0 {
		f.checked.Add(1)
	}
	err := fiError(C.mpiv_access(number(f.c), number(o), 0))
	if err != nil {
		f.giveOp(o)
	}
	return err
}

// number is the address of what is C's, or stays where it is for one call.
func number[T any](p *T) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(p))) }

// lanes is which to look at now. Polling is held.
func (f *fabric) lanes(all bool) (bits C.uint32_t) {
	f.looks++
	for l := range f.vain {
		if all || f.vain[l] < idleAfter || f.looks%idleShare == 0 || l == int(rdma.Bulk) && f.expected.Load() > 0 {
			bits |= 1 << l
		}
	}
	return bits
}

func (f *fabric) fillLocked() {
	b := f.batch
	f.toPost.Store(false)
	for l := range f.idle {
		for room := f.c.receives - f.posted[l]; room > 0 && b.posts < C.MPIV_BATCH; room-- {
			s, ok := pop(&f.idle[l])
			if !ok {
				break
			}
			b.post[b.posts] = s
			b.posts++
		}
	}
	if b.posts == C.MPIV_BATCH {
		f.toPost.Store(true)
	}
}

func (f *fabric) completed(e *C.struct_mpiv_event) {
	err := fiError(-e.err)
	switch e.op.kind {
	case C.MPIV_RECV:
		s := slot(unsafe.Pointer(e.op))
		f.mu.Lock()
		f.posted[s.lane]--
		more := len(f.idle[s.lane]) > 0
		f.mu.Unlock()
		if more { // there was no room for
			f.toPost.Store(true)
		}
		if err != nil { // of a stranger, perhaps
			f.recycle(s)
			return
		}
		f.told.arrived(s, int(e.len))
	case C.MPIV_SEND:
		s := slot(unsafe.Pointer(e.op))
		pair := uint32(s.op.index)
		f.giveSlot(s)
		f.told.sent(pair, err)
	case C.MPIV_ACCESS:
		o := op(unsafe.Pointer(e.op))
		word := uint64(o.word) // before another takes o
		f.told.accessed(f.giveOp(o), word, err)
	}
}

// takeOp is an op for a, until it has completed or giveOp.
func (f *fabric) takeOp(a *access) (op, error) {
	for {
		f.mu.Lock()
		o, ok := pop(&f.ops)
		if ok {
			f.places[o.op.index] = a
		}
		f.mu.Unlock()
		if ok {
			return o, nil
		}
		if err := f.growOps(); err != nil {
			return nil, err
		}
	}
}

// giveOp takes an op back, and says whose it was.
func (f *fabric) giveOp(o op) *access {
	if o.check != 0 {
		f.checked.Add(-1)
	}
	f.mu.Lock()
	a := f.places[o.op.index]
	f.places[o.op.index] = nil
	f.ops = append(f.ops, o)
	f.mu.Unlock()
	return a
}

func (f *fabric) growOps() error {
	const n = 32
	p := C.calloc(n, C.sizeof_struct_mpiv_access)
	f.mu.Lock()
	f.memory = append(f.memory, p)
	f.mu.Unlock()
	desc, err := f.local(p, n*C.sizeof_struct_mpiv_access, C.FI_READ|C.FI_WRITE)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, all := 0, unsafe.Slice(op(p), n); i < n; i++ {
		all[i].op.kind, all[i].op.index, all[i].word_desc = C.MPIV_ACCESS, C.uint32_t(len(f.places)), desc
		f.places = append(f.places, nil)
		f.ops = append(f.ops, &all[i])
	}
	return nil
}

// close ends all that is under way; what memory it used is free afterwards.
func (f *fabric) close() {
	f.shut.Store(true)
	for f.users.Load() != 0 { // calls that never wait, and Receivers
		time.Sleep(10 * time.Microsecond)
	}
	C.mpiv_close_endpoints(f.c)
	for _, mr := range f.mrs {
		C.mpiv_deregister(mr)
	}
	C.mpiv_close(f.c)
	for _, a := range f.places {
		if a != nil {
			a.pin.Unpin()
		}
	}
	f.free()
}

func (f *fabric) free() {
	for _, p := range f.memory {
		C.free(p)
	}
	f.memory = nil
}
