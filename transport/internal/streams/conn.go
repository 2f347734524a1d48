// Package streams makes a transport.Conn of two ordered byte streams, one for
// each lane, that goroutines read and write: for networks whose streams block.
package streams

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/mpiv/mpiv/transport"
)

// MaxBody is the longest body of a message. Streams carry long and short frames
// equally fast.
const MaxBody = 256 << 10

// How much lies between a stream and the callers of Send and Poll, for the lanes
// 0 and 1. Powers of two. Larger ones for bulk leave the core's cache, and cost more
// of its time (decision 8).
var (
	inLen  = [2]int{64 << 10, 128 << 10}
	outLen = [2]int{64 << 10, 256 << 10}
)

var errPeerClosed = errors.New("the peer has closed it")

// A Stream is one lane. Read and Write are called by one goroutine each, and
// Write takes all of p or fails. If it has TryWriteAll(p []byte) error, which
// writes all of p without waiting, or nothing and answers with an error, then
// short messages leave without another goroutine.
type Stream interface {
	io.Reader
	io.Writer
}

// Options of a Conn. Peer, Lanes and End must be set.
type Options struct {
	Peer        transport.Addr
	Lanes       [2]Stream         // for messages, and for bulk
	Certificate *x509.Certificate // the peer's, if it has one
	// End breaks both streams, tells the peer if it can, and makes what waits
	// in Read and Write return. It may be called twice, by any goroutine.
	End func()
	// Closed is called once by Close. Nil means nobody.
	Closed func(*Conn)
}

// A Conn implements transport.Conn and transport.Authenticated. It has four
// goroutines, which End and Close end.
type Conn struct {
	opt     Options
	in      [2]inLane
	out     [2]outLane
	workers sync.WaitGroup
	polling atomic.Bool

	// failed is why the connection is dead; once set, it may only become
	// net.ErrClosed. Then done is closed.
	failed atomic.Pointer[error]
	ended  sync.Once
	done   chan struct{}

	armed atomic.Bool // arm.wake is set
	arm   struct {
		sync.Mutex // guards what follows; never held while wake runs
		wake       func()
	}
}

// New makes a Conn, which owns the streams from now on.
func New(opt Options) *Conn {
	c := &Conn{opt: opt, done: make(chan struct{})}
	for i := range opt.Lanes {
		c.in[i].init(opt.Lanes[i], inLen[i])
		c.out[i].init(opt.Lanes[i], outLen[i])
		c.workers.Go(func() { c.read(&c.in[i]) })
		c.workers.Go(func() { c.write(&c.out[i]) })
	}
	return c
}

func (c *Conn) Peer() transport.Addr           { return c.opt.Peer }
func (c *Conn) MaxBody() int                   { return MaxBody }
func (c *Conn) Stable() bool                   { return false }
func (c *Conn) Certificate() *x509.Certificate { return c.opt.Certificate }

// Assisted implements transport.Assisted: streams have goroutines.
func (c *Conn) Assisted() {}

func (c *Conn) Send(m transport.Message) error {
	if len(m.Header) != transport.HeaderLen {
		panic(fmt.Sprintf("streams: Send of a header of %d bytes, want %d", len(m.Header), transport.HeaderLen))
	}
	if len(m.Body) > MaxBody {
		return fmt.Errorf("send %d bytes to %s: %w: at most %d", len(m.Body), c.opt.Peer, transport.ErrTooLong, MaxBody)
	}
	if failed := c.failed.Load(); failed != nil {
		return *failed
	}
	lane := 0
	if m.Bulk {
		lane = 1
	}
	o := &c.out[lane]
	err := o.send(m)
	if err != nil && o.roomy() { // all has left before anybody knew that room is wanted
		c.signal()
	}
	return err
}

// Progress is how many bytes of what may leave the streams have taken, ever, and how many wait
// for that.
func (c *Conn) Progress() (taken uint64, waiting int) {
	for i := range c.out {
		r := &c.out[i].ring
		head := r.head.Load() // before the tail, which it never passes
		taken += head
		waiting += int(r.tail.Load() - head)
	}
	return taken, waiting
}

// Passed implements transport.Counted.
func (c *Conn) Passed() (sent, received uint64) {
	for i := range c.out {
		sent += c.out[i].ring.head.Load()
		received += c.in[i].ring.tail.Load()
	}
	return sent, received
}

func (c *Conn) Flush() error {
	if failed := c.failed.Load(); failed != nil {
		return *failed
	}
	for i := range c.out {
		if o := &c.out[i]; o.held.Load() {
			o.mu.Lock()
			o.flushLocked()
			o.mu.Unlock()
		}
	}
	return nil
}

// Poll hands over what had arrived when the connection broke before it says so.
func (c *Conn) Poll(in transport.Receiver) (moved bool, err error) {
	if !c.polling.CompareAndSwap(false, true) {
		panic("streams: two goroutines in Poll of one Conn, or a Receiver that calls it")
	}
	defer c.polling.Store(false)
	failed := c.failed.Load() // before looking, so that nothing comes between
	if failed != nil && *failed == net.ErrClosed {
		return false, net.ErrClosed
	}
	for i := range c.out {
		// A goroutine that is in Send now has mu; what it leaves behind goes
		// with the next Poll.
		if o := &c.out[i]; o.held.Load() && o.mu.TryLock() {
			moved = o.flushLocked() || moved
			o.mu.Unlock()
		}
	}
	for i := range c.in {
		if l := &c.in[i]; l.ready() && !c.closed() {
			moved = true
			if err := l.deliver(in, func() bool { return !c.closed() }); err != nil {
				c.fail("receive from", err)
				return true, *c.failed.Load()
			}
		}
	}
	switch {
	case c.closed():
		return moved, net.ErrClosed
	case failed != nil && !c.in[0].ready() && !c.in[1].ready():
		return moved, *failed
	}
	return moved, nil
}

func (c *Conn) closed() bool {
	failed := c.failed.Load()
	return failed != nil && *failed == net.ErrClosed
}

func (c *Conn) Arm(wake func()) {
	c.arm.Lock()
	c.arm.wake = wake
	c.armed.Store(true)
	c.arm.Unlock()
	if c.failed.Load() != nil || c.in[0].ready() || c.in[1].ready() || c.out[0].roomy() || c.out[1].roomy() {
		c.signal()
	}
}

// signal wakes who is armed. Whoever calls it has stored before what there is to
// see.
func (c *Conn) signal() {
	if !c.armed.Load() {
		return
	}
	c.arm.Lock()
	wake := c.arm.wake
	c.arm.wake = nil
	c.armed.Store(false)
	c.arm.Unlock()
	if wake != nil {
		wake()
	}
}

// fail breaks the connection because of err, unless it is dead already.
func (c *Conn) fail(doing string, err error) {
	err = fmt.Errorf("%s %s: %w: %w", doing, c.opt.Peer, transport.ErrBroken, err)
	if c.failed.CompareAndSwap(nil, &err) {
		c.end()
	}
}

func (c *Conn) end() {
	c.ended.Do(func() { close(c.done) })
	c.opt.End()
	c.signal()
}

func (c *Conn) Close() error {
	err := net.ErrClosed
	if old := c.failed.Swap(&err); old != nil && *old == net.ErrClosed {
		c.workers.Wait()
		return nil
	}
	c.end()
	c.workers.Wait()
	if c.opt.Closed != nil {
		c.opt.Closed(c)
	}
	return nil
}
