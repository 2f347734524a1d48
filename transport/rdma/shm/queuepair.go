//go:build linux

package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/barrier"
	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

const pollBulk = 256 << 10 // bytes of bulk bodies that a PollCQ takes

// Bits of a queue pair's state.
const (
	stateClosed = 1 << iota // by Close
	stateBroken             // by the peer
)

// A QueuePair implements rdma.QueuePair. Its one goroutine, watch, belongs to the
// domain and ends when the socket does.
type QueuePair struct {
	domain  *Domain
	peer    transport.Addr
	segment *segment   // keeps what in, out and the lanes refer to mapped
	in, out *direction // of segment
	sock    *net.UnixConn
	raw     syscall.RawConn
	reads   bool // this side can read the peer's memory
	isRead  bool // and the other way round
	began   time.Time
	regions regionTable
	nonce   [8]byte    // read by the peer's probe
	to      membership // in the domain's exchange
	from    membership

	// owned by who posts sends
	send  [rdma.Lanes]sendLane
	heard uint64 // stirred at the last
	gauge gauge

	// owned by who polls
	recv          [rdma.Lanes]recvLane
	stirred       release.Uint64 // polls that found messages; read by who sends
	posted        []access
	memory        peerMemory
	hangup        [1]unix.PollFd
	aliveAt       time.Duration // since began
	lookForHangup func(fd uintptr)

	fences  bool // the two processes have no barriers. See package barrier
	fence   atomic.Uint32
	state   atomic.Uint32
	todo    release.Bool  // an access waits for PollCQ
	open    atomic.Uint64 // bits of this side's transfers, as in in.active
	helping atomic.Bool   // PollCQ writes to the peer's memory, or asks it to write here
	gone    atomic.Bool   // the peer's end of the socket is closed
	closing sync.Once
	drained sync.Once

	mu    sync.Mutex // guards what follows
	wake  func()
	cause error // of stateBroken
}

// newQueuePair is the end of seg that sends in direction out. The lanes refer to
// the segment, so the queue pair must live as long as they are used: methods
// that touch it end with KeepAlive.
func newQueuePair(d *Domain, seg *segment, out int, sock *net.UnixConn) (*QueuePair, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	q := &QueuePair{
		domain: d, segment: seg, out: &seg.dirs[out], in: &seg.dirs[1-out], sock: sock, raw: raw,
		began: time.Now().Add(-knownAlive), // nothing is known yet
		gauge: gauge{call: callCost(), reach: reachOf(copiesLines), perKiB: firstPerKiB},
	}
	send, recv := seg.dirs.lanes(out), seg.dirs.lanes(1-out)
	for l := range rdma.Lane(rdma.Lanes) {
		q.send[l], q.recv[l] = newSendLane(send[l]), newRecvLane(recv[l])
	}
	q.regions.init(&q.out.grants)
	q.lookForHangup = func(fd uintptr) {
		q.hangup[0].Fd = int32(fd)
		for {
			if _, err := unix.Poll(q.hangup[:], 0); err != unix.EINTR {
				return
			}
		}
	}
	return q, nil
}

func (q *QueuePair) Peer() transport.Addr { return q.peer }
func (q *QueuePair) MaxSend() int         { return maxBody }
func (q *QueuePair) Stable() bool         { return true }

func (q *QueuePair) PostSend(l rdma.Lane, header *[transport.HeaderLen]byte, body []byte) error {
	if q.state.Load() != 0 {
		return q.Err()
	}
	lane := &q.send[l]
	if lane.tail&q.domain.stride.Load() == 0 {
		lane.turnBack()
	}
	streams := q.streams()
	var posted, ok bool
	if len(body) > wholeLen && l == rdma.Eager {
		posted, ok = q.postLong(header, body, streams)
	} else {
		posted, ok = lane.post(header, body, streams)
	}
	if !posted {
		if !ok {
			return q.lied("it has read more messages than were sent")
		}
		if q.in.sleeping.Load() == asleep { // it was armed before
			if q.awaitsRoom(l) {
				q.fire()
			}
			runtime.KeepAlive(q)
		}
		return transport.ErrFull
	}
	if q.fences {
		q.fence.Add(1)
	}
	if how := q.out.sleeping.Load(); how != awake {
		if how == drowsy {
			q.fence.Add(1)
		}
		q.wakePeer()
	}
	runtime.KeepAlive(q)
	return nil
}

// streams tells whether nothing has come since the last message was sent: then
// this is no exchange of question and answer.
func (q *QueuePair) streams() bool {
	answered := q.answered()
	streams := answered == q.heard
	q.heard = answered
	return streams
}

// postLong posts to the eager lane, and notes now and then how long that takes, unless it is the first to touch that
// part of the ring of bytes: then the kernel has to find the memory.
func (q *QueuePair) postLong(header *[transport.HeaderLen]byte, body []byte, streams bool) (posted, ok bool) {
	lane := &q.send[rdma.Eager]
	q.gauge.goes(q.answered(), false)
	if len(body) > muchLen {
		q.to.join(&q.domain.exchange.to)
	}
	if !q.gauge.due() {
		return lane.post(header, body, streams)
	}
	began, touched := time.Now(), lane.dataTouched
	posted, ok = lane.post(header, body, streams)
	if posted && lane.dataTouched == touched {
		q.gauge.took(len(body), time.Since(began))
	}
	return posted, ok
}

// answered grows with what the peer has sent.
func (q *QueuePair) answered() uint64 { return q.stirred.Get() }

func (q *QueuePair) PrefersRead(n int) bool {
	if !q.isRead {
		return n > q.gauge.reach.answer
	}
	return n > wholeLen && q.gauge.prefersRead(n, q.answered(), q.domain.sparesMemory())
}

func (q *QueuePair) wakePeer() {
	if q.out.sleeping.Load() == asleep && q.out.sleeping.CompareAndSwap(asleep, drowsy) {
		q.raw.Write(ring)
	}
}

// ring writes the doorbell. When the socket is full, rings are waiting already.
func ring(fd uintptr) (done bool) {
	for {
		if err := unix.Send(int(fd), bell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != unix.EINTR {
			return true
		}
	}
}

var bell = []byte{1}

func (q *QueuePair) PollCQ(in transport.Receiver) (moved bool, err error) {
	state := q.state.Load() // before the lanes: what came before the end is delivered
	if state&stateClosed != 0 {
		return false, net.ErrClosed
	}
	eager, bulk := q.recv[rdma.Eager].ready(), q.recv[rdma.Bulk].ready()
	if n := q.domain.looks.Load(); n > 1 && !eager && !bulk {
		eager, bulk = q.lookAgain(n - 1)
	}
	ok := true
	if eager {
		moved, ok = q.receiveEager(in)
	}
	if bulk && ok {
		var more bool
		more, ok = q.receiveBulk(in)
		moved = moved || more
	}
	switch {
	case !ok:
		return true, q.lied("it sent what is not a message")
	case moved:
		q.stir()
	default:
		q.rest(rdma.Eager)
		q.rest(rdma.Bulk)
	}
	if len(q.posted) != 0 && q.advance(in) {
		moved = true
	}
	if q.out.active.Load() != 0 && q.help() {
		moved = true
	}
	if !moved && state != 0 {
		q.abandon(in)
		return false, q.Err()
	}
	runtime.KeepAlive(q)
	return moved, nil
}

// lookAgain looks n times whether the lanes are ready, or until one is.
func (q *QueuePair) lookAgain(n uint32) (eager, bulk bool) {
	next := q.recv[rdma.Eager].beside()
	for ; n > 0 && !eager && !bulk; n-- {
		q.recv[rdma.Eager].fetchSecond()
		if len(next) > 0 {
			prefetchBody(next)
		}
		eager, bulk = q.recv[rdma.Eager].ready(), q.recv[rdma.Bulk].ready()
	}
	return eager, bulk
}

// lively is after how many polls that found messages the queue pair is no longer drowsy.
const lively = 64

// stir counts a poll that found messages.
func (q *QueuePair) stir() {
	n := q.stirred.Get() + 1
	q.stirred.Set(n)
	if n%lively == 0 && q.in.sleeping.Load() == drowsy {
		q.in.sleeping.CompareAndSwap(drowsy, awake)
	}
}

// receiveEager hands over what the eager lane holds, within bounds, as long as in wants more. ok is false when that
// cannot be.
func (q *QueuePair) receiveEager(in transport.Receiver) (moved, ok bool) {
	eager := &q.recv[rdma.Eager]
	row := eager.row
	eager.row = 0
	for end := row + eagerSlots; row < end && eager.ready(); row++ {
		took, more, ok := eager.take(in, row)
		if !ok {
			return false, false
		}
		if !took {
			break
		}
		moved = true
		if eager.due() {
			q.tell(rdma.Eager)
		}
		if !more {
			eager.row = row + 1
			break
		}
	}
	if eager.much {
		q.from.join(&q.domain.exchange.from)
	}
	return moved, true
}

// receiveBulk is receiveEager of the bulk lane.
func (q *QueuePair) receiveBulk(in transport.Receiver) (moved, ok bool) {
	bulk := &q.recv[rdma.Bulk]
	start := bulk.dataHead
	for n := 0; n < bulkSlots && bulk.dataHead-start < pollBulk && bulk.ready(); n++ {
		took, _, ok := bulk.take(in, 0)
		if !ok {
			return false, false
		}
		if !took {
			break
		}
		moved = true
		if bulk.due() {
			q.tell(rdma.Bulk)
		}
	}
	return moved, true
}

// rest notes that a lane is empty, and tells the peer where it may turn back.
func (q *QueuePair) rest(l rdma.Lane) {
	if lane := &q.recv[l]; lane.rest() && (lane.head&q.domain.stride.Load() == 0 || lane.owes()) {
		q.tell(l)
	}
}

// tell gives freed slots back, and wakes the peer if it waits for them.
func (q *QueuePair) tell(l rdma.Lane) {
	q.recv[l].tell()
	bit := uint64(1) << l
	if q.in.wanted.Load()&bit != 0 && q.in.wanted.And(^bit)&bit != 0 {
		q.raw.Write(ring)
	}
}

// abandon ends the accesses of a broken connection.
func (q *QueuePair) abandon(in transport.Receiver) {
	if len(q.posted) == 0 {
		return
	}
	q.drained.Do(q.drain)
	posted := q.posted
	q.posted = nil
	q.todo.Set(false)
	for _, a := range posted {
		in.Pulled(a.id, q.Err())
	}
}

func (q *QueuePair) NotifyCQ(wake func()) {
	q.mu.Lock()
	q.wake = wake
	q.mu.Unlock()
	if q.in.sleeping.Swap(asleep) == awake && !q.fences {
		barrier.HeavyGlobal()
	}
	if q.due() {
		q.in.sleeping.Store(drowsy)
		q.fire()
	}
	runtime.KeepAlive(q)
}

// due says that PollCQ would make progress, or that a full lane has room. Where
// it is false, the peer has been asked to ring.
func (q *QueuePair) due() bool {
	due := q.state.Load() != 0 || q.todo.Get()
	for l := range rdma.Lane(rdma.Lanes) {
		due = due || q.recv[l].filled()
		due = q.awaitsRoom(l) || due
	}
	for i, open := 0, q.open.Load(); i < maxTransfers; i++ {
		due = due || open&(1<<i) != 0 && !q.in.transfers[i].stalled()
	}
	return due
}

// awaitsRoom asks the peer to ring when there is room in a lane that is full; true when there is.
func (q *QueuePair) awaitsRoom(l rdma.Lane) bool {
	at := q.send[l].fullAt.Load()
	if at == 0 {
		return false
	}
	q.out.wanted.Or(1 << l)
	return q.out.heads[l].Load() != at-1
}

// fire calls wake, once for each NotifyCQ.
func (q *QueuePair) fire() {
	q.mu.Lock()
	wake := q.wake
	q.wake = nil
	q.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// watch waits at the socket for the doorbell and for the end.
func (q *QueuePair) watch() {
	var ended error
	answer := func(fd uintptr) (done bool) {
		ended = leaveRings(fd)
		if ended == nil {
			q.fire()
		}
		return ended != nil
	}
	for {
		err := q.raw.Read(answer)
		if errors.Is(err, os.ErrDeadlineExceeded) { // see lied
			err = q.sock.SetReadDeadline(time.Time{})
		}
		if err != nil || ended != nil {
			q.gone.Store(true)
			q.breakUp(fmt.Errorf("%s: %w", q.peer, transport.ErrBroken))
			q.fire()
			return
		}
	}
}

// ringsLeft is how many rings are left in the socket. Each is an event of its own, whether it is read or
// not; but who has rung is woken when it is, as it could write more: the runtime's poller waits for that, too.
// So they are read when they are many. A socket has room for some two hundred.
const ringsLeft = 64

// leaveRings looks at the socket, and returns an error if the peer has closed it.
func leaveRings(fd uintptr) error {
	var rings int
	closed := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	_, err := unix.Poll(closed[:], 0)
	if err == nil && closed[0].Revents == 0 {
		if rings, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && rings < ringsLeft {
			return nil
		}
	}
	var some [2 * ringsLeft]byte
	for {
		n, err := unix.Read(int(fd), some[:])
		switch {
		case err == unix.EAGAIN:
			return nil
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
	}
}

func (q *QueuePair) Register(buf []byte, a rdma.Access) (rdma.Key, bool) {
	if !q.isRead || q.state.Load() != 0 {
		return rdma.Key{}, false
	}
	if a == rdma.RemoteRead {
		q.gauge.goes(q.answered(), true)
		if len(buf) > muchLen {
			q.to.join(&q.domain.exchange.to)
		}
	}
	k, ok := q.regions.register(buf, a)
	runtime.KeepAlive(q)
	return k, ok
}

func (q *QueuePair) Deregister(k rdma.Key) {
	if g := q.regions.deregister(k); g != nil {
		q.await(func() bool { return g.writers.Load() == 0 })
	}
	runtime.KeepAlive(q)
}

// Err is why nothing can be done any more, or nil.
func (q *QueuePair) Err() error {
	switch state := q.state.Load(); {
	case state == 0:
		return nil
	case state&stateClosed != 0:
		return net.ErrClosed
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause
}

// lied breaks the connection because of what the peer did. Wake must not be
// called from within PollCQ, which calls lied: a deadline makes watch do it.
func (q *QueuePair) lied(what string) error {
	q.breakUp(fmt.Errorf("%s broke the protocol, %s: %w", q.peer, what, transport.ErrBroken))
	q.sock.SetReadDeadline(time.Unix(1, 0))
	return q.Err()
}

func (q *QueuePair) breakUp(cause error) {
	q.mu.Lock()
	if q.cause == nil {
		q.cause = cause
	}
	q.mu.Unlock()
	q.state.Or(stateBroken)
}

// Close breaks the connection. When it returns, neither side copies to memory of
// the other any more.
func (q *QueuePair) Close() error {
	q.closing.Do(func() {
		q.state.Or(stateClosed)
		for q.helping.Load() { // a few chunks at most
			runtime.Gosched()
		}
		q.drained.Do(q.drain)
		q.domain.forget(q)
		q.sock.Close()
		q.fire()
	})
	return nil
}
