//go:build ofi && cgo && linux

package libfabric

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// Bits of a queue pair's state.
const (
	stateClosed = 1 << iota // by Close
	stateBroken             // by the peer, or on the way to it
)

const drainTime = time.Second

// A QueuePair implements rdma.QueuePair. Its one goroutine, watch, belongs to the
// domain and ends when the side channel does.
type QueuePair struct {
	domain *Domain
	fabric *fabric
	peer   transport.Addr
	sock   net.Conn // the side channel
	cert   *x509.Certificate

	pair        uint32 // this side's number of it, and
	cookie      uint64 // what the peer must know
	their       hello  // the peer's of both
	to          [rdma.Lanes]fiAddr
	inserted    int // of to
	grants      grants
	send        [rdma.Lanes]sendLane
	recv        [rdma.Lanes]recvLane
	greeted     atomic.Uint32 // bits of the lanes in which the peer has greeted
	waiting     atomic.Int32  // messages in the inboxes
	accessing   atomic.Int32  // accesses that were not reported
	flying      atomic.Int32  // sends that libfabric has
	controlling sync.Mutex    // held while a frame without a message is sent
	owes        atomic.Bool   // the peer wants back what owed says, and has no answer

	unused []*access // owned by who polls and posts reads and writes
	ends   []end     // likewise: of quick accesses
	alone  int       // likewise: quick accesses since the last look for messages; see quickShare
	quick  atomic.Int32

	spareEnds []end // swapped with ends

	state   atomic.Uint32
	armed   atomic.Bool // wake is not nil
	closing sync.Once
	drained sync.Once

	mu       lock.Mutex // guards what follows, and inboxes. Nothing under it waits
	ways     accesses
	revoked  [maxRegions]uint64 // the last number at each place that the peer has revoked
	owed     recall
	released bool // what would arrive now would never be taken

	wakeMu sync.Mutex // guards what follows
	wake   func()
	cause  error // of stateBroken
}

func newQueuePair(d *Domain, sock net.Conn) (*QueuePair, error) {
	q := &QueuePair{domain: d, fabric: d.fabric, sock: sock, cookie: secretWord(), ends: make([]end, 0, 64), spareEnds: make([]end, 0, 64)}
	for l := range rdma.Lane(rdma.Lanes) {
		q.recv[l].inbox = make([]arrival, window[l])
	}
	if !d.fabric.enter() {
		return nil, net.ErrClosed
	}
	defer d.fabric.leave()
	if err := q.fabric.furnish(); err != nil {
		return nil, err
	}
	if err := q.grants.open(q.fabric); err != nil {
		q.fabric.vacate()
		return nil, err
	}
	d.enrol(q)
	return q, nil
}

func (q *QueuePair) Peer() transport.Addr           { return q.peer }
func (q *QueuePair) MaxSend() int                   { return maxBody }
func (q *QueuePair) PrefersRead(n int) bool         { return n > longestSent }
func (q *QueuePair) Stable() bool                   { return false } // the peer's process must take it out of libfabric first
func (q *QueuePair) Certificate() *x509.Certificate { return q.cert }

func (q *QueuePair) PostSend(l rdma.Lane, header *[transport.HeaderLen]byte, body []byte) error {
	if q.state.Load() != 0 {
		return q.Err()
	}
	lane := &q.send[l]
	if !lane.room(l) || lane.blocked.Load() {
		q.domain.progress() // the peer's word on what it has consumed may have come
	}
	if lane.room(l) {
		lane.posted.Add(1) // before the peer can say that it has consumed it
		err := q.post(frame{kind: message, lane: l, number: lane.number}, header[:], body)
		if err != nil {
			lane.posted.Add(^uint32(0))
		}
		switch {
		case err == nil:
			lane.number++
			if lane.full.Load() {
				lane.full.Store(false)
				lane.blocked.Store(false)
			}
			return nil
		case !errors.Is(err, errAgain):
			q.breakUp(fmt.Errorf("send to %s: %w: %w", q.peer, err, transport.ErrBroken))
			return q.Err()
		}
		lane.blocked.Store(true)
	}
	lane.full.Store(true)
	if q.armed.Load() { // before it was full
		q.awaitRoom(lane.blocked.Load(), lane.room(l))
	}
	return transport.ErrFull
}

// awaitRoom sees to it that who is armed is woken when a full lane has room: now, or, where
// nobody will say that, after a nap.
func (q *QueuePair) awaitRoom(blocked, room bool) {
	switch {
	case blocked:
		q.domain.waker.congested.Store(true)
		q.domain.waker.kick()
	case room: // has come just now
		q.fire()
	}
}

// post sends a frame with a header and a body. The error may be errAgain.
func (q *QueuePair) post(f frame, header, body []byte) error {
	if !q.fabric.enter() {
		return net.ErrClosed
	}
	defer q.fabric.leave()
	s, ok := q.fabric.takeSlot(f.lane)
	if !ok {
		return errAgain
	}
	f.cookie, f.pair, f.length = q.their.cookie, q.their.pair, len(body)
	for l := range q.recv {
		f.freed[l] = q.recv[l].freed.Load()
	}
	b := slotBytes(s)
	f.put(b[:])
	copy(b[headLen-transport.HeaderLen:headLen], header)
	copy(b[headLen:], body)
	s.op.index = cuint(q.pair)
	q.flying.Add(1)
	flying, err := q.fabric.send(s, q.to[f.lane], headLen+len(body))
	if !flying {
		q.flying.Add(-1)
	}
	if err != nil {
		q.fabric.giveSlot(s)
		return err
	}
	for l := range q.recv {
		q.recv[l].told.Store(f.freed[l])
	}
	return nil
}

var nothing [transport.HeaderLen]byte

// control sends a frame without a message, if that can be now.
func (q *QueuePair) control(k kind, l rdma.Lane, header *[transport.HeaderLen]byte) bool {
	q.controlling.Lock()
	defer q.controlling.Unlock()
	err := q.post(frame{kind: k, lane: l}, header[:], nil)
	if err != nil && !errors.Is(err, errAgain) {
		q.breakUp(fmt.Errorf("send to %s: %w: %w", q.peer, err, transport.ErrBroken))
	}
	return err == nil
}

// sent is told by progress that a send has ended.
func (q *QueuePair) sent(err error) {
	q.flying.Add(-1)
	if err != nil {
		q.breakUp(fmt.Errorf("send to %s: %w: %w", q.peer, err, transport.ErrBroken))
		q.fire()
	}
}

// arrived is told by progress of a frame in s; true when it keeps s.
func (q *QueuePair) arrived(f frame, s slot) (kept bool) {
	notify := false
	for l := range q.send {
		lane := &q.send[l]
		if !lane.heard(f.freed[l]) {
			q.lied("it has read more messages than were sent")
		}
		notify = notify || lane.full.Load()
	}
	switch header := slotBytes(s)[headLen-transport.HeaderLen : headLen]; f.kind {
	case message:
		lane := &q.recv[f.lane]
		q.mu.Lock()
		kept = !q.released && f.number == lane.number && lane.pushLocked(arrival{s, f.length})
		q.mu.Unlock()
		lane.number++
		if kept {
			q.waiting.Add(1)
		} else {
			q.lied("a message is missing, or too many came")
		}
		notify = true
	case greeting:
		q.greeted.Or(1 << f.lane)
	case revoke:
		q.revokedByPeer(getRecall(header))
	case revoked:
		q.grants.answered(getRecall(header).number)
	}
	if notify {
		q.notify()
	}
	return kept
}

func (q *QueuePair) PollCQ(in transport.Receiver) (moved bool, err error) {
	state := q.state.Load() // before the lanes: what came before the end is delivered
	if state&stateClosed != 0 {
		return false, net.ErrClosed
	}
	received := q.waiting.Load() > 0 && q.receive(in)
	ended := len(q.ends) > 0 && q.reportEnds(in)
	moved = q.accessing.Load() > 0 && q.advance(in) || received || ended
	if !moved || q.alone >= quickShare {
		q.alone = 0
		q.domain.progress()
		received = q.waiting.Load() > 0 && q.receive(in)
		moved = q.accessing.Load() > 0 && q.advance(in) || received || moved
	}
	q.settle()
	if !moved && state != 0 {
		q.abandon(func(id uint64) { in.Pulled(id, q.Err()) })
		return false, q.Err()
	}
	return moved, nil
}

// receive hands over what has come, within bounds. It lies in the fabric's memory.
func (q *QueuePair) receive(in transport.Receiver) (moved bool) {
	if !q.fabric.enter() {
		return false
	}
	defer q.fabric.leave()
	for l := range rdma.Lane(rdma.Lanes) {
		for n, most := 0, int(window[l]/2); n < most && q.waiting.Load() > 0 && q.take(l, in); n++ {
			moved = true
		}
	}
	return moved
}

// take hands over the next message of a lane.
func (q *QueuePair) take(l rdma.Lane, in transport.Receiver) bool {
	lane := &q.recv[l]
	q.mu.Lock()
	a, ok := lane.popLocked()
	q.mu.Unlock()
	if !ok {
		return false
	}
	q.waiting.Add(-1)
	b := slotBytes(a.slot)
	header := b[headLen-transport.HeaderLen : headLen : headLen]
	in.Receive(header, b[headLen:headLen+a.length])
	q.fabric.recycle(a.slot)
	lane.freed.Add(1)
	if lane.owes(l) {
		q.control(credit, rdma.Eager, &nothing)
	}
	return true
}

// settle sends what the peer ought to hear and could not be sent before.
func (q *QueuePair) settle() {
	for l := range rdma.Lane(rdma.Lanes) {
		if q.recv[l].owes(l) {
			q.control(credit, rdma.Eager, &nothing)
		}
	}
	q.answer()
}

func (q *QueuePair) NotifyCQ(wake func()) {
	q.wakeMu.Lock()
	if q.wake == nil {
		q.domain.armed.Add(1)
	}
	q.wake = wake
	q.armed.Store(true)
	q.wakeMu.Unlock()
	q.domain.progressAll()
	q.settle()
	if q.due() {
		q.fire()
	}
	if q.armed.Load() {
		for l := range q.send {
			if q.send[l].blocked.Load() {
				q.domain.waker.congested.Store(true)
			}
		}
		q.domain.waker.kick()
	}
}

// due says that PollCQ would make progress, or that a full lane has room.
func (q *QueuePair) due() bool {
	due := q.state.Load() != 0 || q.quick.Load() > 0
	for l := range rdma.Lane(rdma.Lanes) {
		send := &q.send[l]
		due = due || q.recv[l].owes(l) || send.full.Load() && !send.blocked.Load() && send.room(l)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for l := range q.recv {
		due = due || q.recv[l].count > 0
	}
	return due || q.ways.dueLocked()
}

func (q *QueuePair) notify() {
	if q.armed.Load() {
		q.fire()
	}
}

// fire calls wake, once for each NotifyCQ.
func (q *QueuePair) fire() {
	q.wakeMu.Lock()
	wake := q.wake
	q.wake = nil
	q.armed.Store(false)
	if wake != nil {
		q.domain.armed.Add(-1)
	}
	q.wakeMu.Unlock()
	if wake != nil {
		wake()
	}
}

// watch waits for the end of the side channel, which nobody uses after the
// handshake.
func (q *QueuePair) watch() {
	var b [1]byte
	_, err := q.sock.Read(b[:])
	if err == nil {
		q.lied("it spoke out of turn")
	}
	q.breakUp(fmt.Errorf("%s: %w", q.peer, transport.ErrBroken))
	q.fire()
}

// Err is why nothing can be done any more, or nil.
func (q *QueuePair) Err() error {
	switch state := q.state.Load(); {
	case state == 0:
		return nil
	case state&stateClosed != 0:
		return net.ErrClosed
	}
	q.wakeMu.Lock()
	defer q.wakeMu.Unlock()
	return q.cause
}

// lied breaks the connection because of what the peer did.
func (q *QueuePair) lied(what string) {
	q.breakUp(fmt.Errorf("%s broke the protocol, %s: %w", q.peer, what, transport.ErrBroken))
	q.fire()
}

func (q *QueuePair) breakUp(cause error) {
	q.wakeMu.Lock()
	if q.cause == nil {
		q.cause = cause
	}
	q.wakeMu.Unlock()
	q.state.Or(stateBroken)
}

// await makes progress until done, or for drainTime.
func (q *QueuePair) await(done func() bool) bool {
	for end := time.Now().Add(drainTime); !done(); {
		if time.Now().After(end) {
			return false
		}
		if !q.domain.progressAll() {
			runtime.Gosched()
		}
	}
	return true
}

// Close breaks the connection. When it returns, nothing reads or writes memory of
// the program for this queue pair any more. A peer that neither runs nor dies for
// drainTime is not waited for any longer: what it was asked for may still come.
func (q *QueuePair) Close() error {
	q.closing.Do(func() {
		q.state.Or(stateClosed)
		q.fire()
		q.sock.Close()
		q.abandon(func(uint64) {})
		q.release()
	})
	return nil
}

// release gives back what the queue pair has of the domain, which is not closed before
// the queue pair is forgotten.
func (q *QueuePair) release() {
	if !q.fabric.enter() {
		return
	}
	defer q.fabric.leave()
	q.grants.closeAll()
	q.domain.forget(q)
	q.mu.Lock()
	q.released = true
	for l := range q.recv {
		for a, ok := q.recv[l].popLocked(); ok; a, ok = q.recv[l].popLocked() {
			q.fabric.recycle(a.slot)
		}
	}
	q.mu.Unlock()
	q.fabric.vacate()
	for l := range q.inserted {
		q.fabric.remove(q.their.names[l], q.flying.Load() == 0)
	}
}
