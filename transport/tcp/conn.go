//go:build linux

package tcp

import (
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/transport"
)

// maxBody is 1 MiB: with 512 KiB, messages of 4 MiB between two hosts took 768 µs instead
// of 677, and over loopback 710 instead of 672; 6 to 9 % less went through from 1 MiB on
// (mpivbench latency and bw; 2-core Xeon VM, by turns, medians of 7).
const maxBody = 1 << 20

const (
	laneBuf   = 64 << 10 // of lane 0: many small messages in one read
	bulkBuf   = 4 << 10  // of lane 1: a frame's beginning; the rest is read into its place
	pollBytes = 1 << 20  // that one Poll takes from a lane, about
)

// Reading an empty socket costs as much as a tenth of a message's way. So after
// bulkQuiet polls without bulk its lane is read in every bulkEvery'th only. To ask poll(2) or
// epoll first whether there is something, which takes no lock of the socket, makes that way longer:
// 8 bytes between two hosts of a lab took 7.8 µs instead of 6.6, and 4 KiB 9.2 instead of 7.3.
const (
	bulkQuiet = 256
	bulkEvery = 4
)

// A Conn implements transport.Conn.
//
// A descriptor that is closed while a call uses it may by then be somebody
// else's. So Close marks the connection, shuts the sockets down, and leaves
// closing them to whoever is last: it waits for out, whose holders never wait,
// and if a goroutine is in Poll, where a Receiver may run for long or be what
// calls Close, then that Poll closes them when it ends. This costs Send what it
// pays anyway to share the held messages with Poll, and Poll two atomic
// operations.
type Conn struct {
	e           *Endpoint
	peer        transport.Addr
	certificate *x509.Certificate // the peer's; nil in clear
	id          uint64            // to the waker
	fds         [2]int

	// failed is why nothing is received any more; once set, it may only become
	// net.ErrClosed.
	failed atomic.Pointer[error]
	state  atomic.Int32

	// Owned by Poll.
	in    [2]inLane
	quiet uint32 // polls since bulk has come

	out     lock.Mutex // guards what follows but waits; held during writes, which never wait
	lanes   [2]outLane
	sendErr error // why nothing is sent any more

	armed atomic.Bool // there is a wake
	arm   struct {
		sync.Mutex // guards what follows; never held while wake runs
		wake       func()
	}
}

// The states of a Conn. Closed and polling at once: Poll frees the Conn.
const (
	polling = 1 << iota
	closed
)

// newConn makes a Conn of two sockets and the streams that they are of. It
// closes the sockets if it cannot.
func newConn(e *Endpoint, fds [2]int, streams [2]*stream, peer transport.Addr) (*Conn, error) {
	c := &Conn{e: e, peer: peer, fds: fds, certificate: streams[0].certificate()}
	c.in[0].init(fds[0], laneBuf)
	c.in[1].init(fds[1], bulkBuf)
	for i, fd := range fds {
		c.lanes[i].fd = fd
		c.lanes[i].outlook.begin(streams[i].sock, e.congestion)
		if sealed := streams[i].sealed; sealed != nil {
			sealed.wire.leave(fd)
			c.in[i].sealed, c.lanes[i].sealed = sealed, sealed
			c.in[i].more.Store(true) // the handshake may have read ahead
		}
	}
	if err := e.waker.add(c); err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

func (c *Conn) Peer() transport.Addr { return c.peer }
func (c *Conn) MaxBody() int         { return maxBody }
func (c *Conn) Stable() bool         { return false }

// Certificate implements transport.Authenticated.
func (c *Conn) Certificate() *x509.Certificate { return c.certificate }

// SendLasting implements transport.Lender.
func (c *Conn) SendLasting(m transport.Message) error {
	o := &c.lanes[laneOf(m.Bulk)]
	o.lasting = true
	err := c.Send(m)
	o.lasting = false
	return err
}

func laneOf(bulk bool) int {
	if bulk {
		return 1
	}
	return 0
}

func (c *Conn) Send(m transport.Message) error {
	if len(m.Header) != transport.HeaderLen {
		panic(fmt.Sprintf("tcp: Send of a header of %d bytes, want %d", len(m.Header), transport.HeaderLen))
	}
	if len(m.Body) > maxBody {
		return fmt.Errorf("send %d bytes to %s: %w: at most %d", len(m.Body), c.peer, transport.ErrTooLong, maxBody)
	}
	c.out.Lock()
	err := c.sendErr
	if err == nil {
		o := &c.lanes[laneOf(m.Bulk)]
		if o.whole != 0 && o.whole != prefixLen+len(m.Body) {
			c.out.Unlock()
			panic(fmt.Sprintf("tcp: Send of a body of %d bytes, after one of %d was answered with ErrFull: "+
				"the same message must follow", len(m.Body), o.whole-prefixLen))
		}
		err = o.send(&m)
		if err != nil && err != transport.ErrFull {
			err = c.cannotSendLocked(err)
		}
	}
	c.out.Unlock()
	if err == transport.ErrFull {
		c.rearm()
	}
	return err
}

// Lends implements transport.Lender.
func (c *Conn) Lends() bool { return c.lanes[0].sealed == nil }

// Lent implements transport.Lender.
func (c *Conn) Lent() bool {
	c.out.Lock()
	defer c.out.Unlock()
	return c.sendErr == nil && len(c.lanes[0].parts)+len(c.lanes[1].parts) > 0
}

func (c *Conn) Flush() error {
	c.out.Lock()
	_, err := c.pushLocked()
	c.out.Unlock()
	c.rearm()
	return err
}

func (c *Conn) pushLocked() (moved bool, err error) {
	if c.sendErr != nil {
		return false, c.sendErr
	}
	for i := range c.lanes {
		m, err := c.lanes[i].push()
		if err != nil {
			return moved, c.cannotSendLocked(err)
		}
		moved = moved || m
	}
	return moved, nil
}

// cannotSendLocked ends sending. What has arrived is still received: Poll finds
// the end by itself.
func (c *Conn) cannotSendLocked(err error) error {
	c.sendErr = fmt.Errorf("send to %s: %w: %w", c.peer, transport.ErrBroken, err)
	return c.sendErr
}

func (c *Conn) Poll(in transport.Receiver) (moved bool, err error) {
	if !c.state.CompareAndSwap(0, polling) {
		if c.state.Load()&closed == 0 {
			panic("tcp: two goroutines in Poll of one Conn, or a Receiver that calls it")
		}
		return false, net.ErrClosed
	}
	if failed := c.failed.Load(); failed != nil {
		err = *failed
	} else if moved, err = c.poll(in); err != nil {
		err = c.fail(err)
	} else if moved && c.armed.Load() {
		c.disarm()
	}
	if !c.state.CompareAndSwap(polling, 0) {
		c.free()
		err = net.ErrClosed
	}
	return moved, err
}

func (c *Conn) poll(in transport.Receiver) (moved bool, err error) {
	// A goroutine that is in Send now has out; what it leaves behind goes with
	// the next Poll.
	if (c.lanes[0].waiting() || c.lanes[1].waiting()) && c.out.TryLock() {
		moved, _ = c.pushLocked() // an error is for Send; receiving goes on
		c.out.Unlock()
	}
	if (c.lanes[0].outlook.due.Load() || c.lanes[1].outlook.due.Load()) && c.out.TryLock() {
		c.lookLocked(time.Now())
		c.out.Unlock()
	}
	m, err := c.receive(0, in)
	moved = moved || m
	if err != nil || !c.alive() {
		return moved, err
	}
	c.quiet++
	if c.quiet < bulkQuiet || c.quiet%bulkEvery == 0 {
		m, err = c.receive(1, in)
		moved = moved || m
		if m {
			c.quiet = 0
		}
	}
	return moved, err
}

// lookLocked looks whether the path is still free.
func (c *Conn) lookLocked(now time.Time) {
	for i := range c.lanes {
		c.lanes[i].outlook.look(c.lanes[i].fd, now)
	}
}

func (c *Conn) receive(lane int, in transport.Receiver) (moved bool, err error) {
	l := &c.in[lane]
	if l.sealed != nil {
		return c.receiveSealed(l, in)
	}
	for budget := pollBytes; budget > 0; {
		body, buf := l.room()
		n, errno := 0, syscall.Errno(0)
		if len(body) == 0 {
			n, errno = read(l.fd, buf)
		} else {
			iov := [2]syscall.Iovec{vec(body), vec(buf)}
			n, errno = readv(l.fd, iov[:])
		}
		switch {
		case errno != 0 && later(errno):
			return moved, nil
		case errno != 0:
			return moved, errno
		case n == 0:
			return moved, io.EOF
		}
		moved = true
		l.behind = n == len(body)+len(buf)
		l.filled(n)
		if err := c.deliver(l, in); err != nil {
			return true, err
		}
		if !l.behind || !c.alive() {
			break // that was all, for now
		}
		budget -= n
	}
	return moved, nil
}

func (c *Conn) deliver(l *inLane, in transport.Receiver) (err error) {
	for more := true; more && c.alive(); {
		if more, err = l.deliver(in); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) alive() bool { return c.failed.Load() == nil }

// fail breaks the connection because of err, unless it is closed, and says why
// it is broken.
func (c *Conn) fail(err error) error {
	err = fmt.Errorf("receive from %s: %w: %w", c.peer, transport.ErrBroken, err)
	if c.failed.CompareAndSwap(nil, &err) {
		for i := range c.in {
			if sealed := c.in[i].sealed; sealed != nil {
				sealed.wire.push() // an alert, that tells the peer why
			}
		}
		c.shutdown() // wakes who is armed, and tells the peer
	}
	return *c.failed.Load()
}

// openLocked tells whether the sockets stay open while out is held.
func (c *Conn) openLocked() bool {
	failed := c.failed.Load()
	return failed == nil || *failed != net.ErrClosed
}

func (c *Conn) shutdown() {
	for _, fd := range c.fds {
		syscall.Shutdown(fd, syscall.SHUT_RDWR)
	}
}

func (c *Conn) Close() error {
	err := net.ErrClosed
	if old := c.failed.Swap(&err); old != nil && *old == err {
		c.wake() // who arms, and has seen c alive, has asked the waker: the endpoint may close that now
		return nil
	}
	c.out.Lock()
	c.sendErr = err
	c.out.Unlock()
	c.shutdown()
	if c.state.Or(closed)&polling == 0 {
		c.free()
	}
	c.e.waker.remove(c)
	c.wake()
	c.e.forget(c) // last: until then the endpoint closes c, too, before its waker
	return nil
}

// free closes the sockets, when nobody uses them any more.
func (c *Conn) free() {
	c.arm.Lock()
	defer c.arm.Unlock()
	for _, fd := range c.fds {
		closeFD(fd)
	}
}
