// Package mem is a network inside one process, for tests: it keeps the whole
// contract of package transport, lets its tests cut any connection at any
// moment, or pull the cable, and makes no use of sockets or goroutines of its own,
// nor of clocks but to tell for how long the cable is out.
package mem

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/transport"
)

// Options of a Network. The zero value works.
type Options struct {
	Depth   int // messages that a lane holds before Send answers ErrFull. Zero means 64.
	Bulk    int // that the lane of bulk messages holds. Zero means Depth.
	MaxBody int // Zero means 64 KiB.

	// Lends tells whether a body that lasts is only copied when its receiver takes it.
	Lends bool

	// Late tells of each look of a Poll at the lane of bulk messages whether none is there yet.
	// Nil: what is there is found.
	Late func() bool

	// Halfway tells of each message whether a Poll leaves it when its receiver has said where its
	// body goes, and a later one goes on. Nil: none.
	Halfway func() bool

	// Other is of every other connection, the first among them. Nil: all are alike.
	Other *Options
}

func (o Options) withDefaults() Options {
	if o.Depth == 0 {
		o.Depth = 64
	}
	if o.Bulk == 0 {
		o.Bulk = o.Depth
	}
	if o.MaxBody == 0 {
		o.MaxBody = 64 << 10
	}
	if o.Other != nil {
		other := o.Other.withDefaults()
		o.Other = &other
	}
	return o
}

// depth is how many messages a lane holds.
func (o *Options) depth(lane int) int {
	if lane == 1 {
		return o.Bulk
	}
	return o.Depth
}

// A Network joins the endpoints that Listen made on it.
type Network struct {
	opt Options

	mu        sync.Mutex // guards what follows
	endpoints map[transport.Addr]*Endpoint
	pipes     []*pipe // those that were not seen broken
	other     bool    // the last is as Options.Other

	pulled  atomic.Bool
	since   time.Time     // it is pulled; guarded by mu
	plugged chan struct{} // closed by Plug; guarded by mu
}

// NewNetwork is a network without endpoints.
func NewNetwork(o Options) *Network {
	return &Network{opt: o.withDefaults(), endpoints: make(map[transport.Addr]*Endpoint)}
}

// Pull pulls the cable: from now on nothing arrives, and nobody is told. Dials
// wait.
func (n *Network) Pull() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.pulled.Load() {
		n.since, n.plugged = time.Now(), make(chan struct{})
		n.pulled.Store(true)
	}
}

// Plug undoes Pull: what was sent meanwhile arrives.
func (n *Network) Plug() {
	n.mu.Lock()
	if !n.pulled.Load() {
		n.mu.Unlock()
		return
	}
	n.pulled.Store(false)
	close(n.plugged)
	pipes := slices.Clone(n.pipes)
	n.mu.Unlock()
	for _, p := range pipes {
		p.wake()
	}
}

// whole waits until the cable is in.
func (n *Network) whole(ctx context.Context) error {
	n.mu.Lock()
	pulled, plugged := n.pulled.Load(), n.plugged
	n.mu.Unlock()
	if !pulled {
		return nil
	}
	select {
	case <-plugged:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Listen makes the endpoint "mem:" + name. A name can be taken once.
func (n *Network) Listen(name string) (*Endpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := transport.Addr("mem:" + name)
	if n.endpoints[a] != nil {
		return nil, fmt.Errorf("listen %s: the name is taken", a)
	}
	e := &Endpoint{net: n, addr: a, backlog: make(chan *Conn, 16), closed: make(chan struct{})}
	n.endpoints[a] = e
	return e, nil
}

// An Endpoint implements transport.Endpoint.
type Endpoint struct {
	net     *Network
	addr    transport.Addr
	backlog chan *Conn    // full: Dial waits
	closed  chan struct{} // closed by Close

	mu    sync.Mutex // guards what follows
	conns []*Conn
	ended bool
}

func (e *Endpoint) Addr() transport.Addr { return e.addr }

func (e *Endpoint) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	if err := e.net.whole(ctx); err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	e.net.mu.Lock()
	peer := e.net.endpoints[a]
	e.net.mu.Unlock()
	if peer == nil {
		return nil, fmt.Errorf("dial %s: nobody listens there", a)
	}
	there, here := e.net.Pipe(e.addr, a)
	if !e.adopt(here) {
		return nil, fmt.Errorf("dial %s: %w", a, net.ErrClosed)
	}
	if !peer.adopt(there) {
		here.Close()
		return nil, fmt.Errorf("dial %s: it is closed", a)
	}
	select {
	case peer.backlog <- there:
		return here, nil
	case <-peer.closed:
		here.Close()
		return nil, fmt.Errorf("dial %s: it is closed", a)
	case <-ctx.Done():
		here.Close()
		return nil, fmt.Errorf("dial %s: %w", a, ctx.Err())
	}
}

func (e *Endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case <-e.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-e.backlog:
		return c, nil
	case <-e.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *Endpoint) Close() error {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return nil
	}
	e.ended = true
	conns := e.conns
	e.mu.Unlock()
	e.net.mu.Lock()
	delete(e.net.endpoints, e.addr)
	e.net.mu.Unlock()
	close(e.closed)
	for _, c := range conns {
		c.Close()
	}
	return nil
}

// adopt lets Close close c too; false once closing has begun.
func (e *Endpoint) adopt(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.conns = append(e.conns, c)
	}
	return !e.ended
}

// Pipe is a connection between two addresses without endpoints: the end at b's
// side, whose peer is a, and the end at a's side.
func (n *Network) Pipe(a, b transport.Addr) (atB, atA *Conn) {
	p := &pipe{opt: n.opt, net: n}
	n.mu.Lock()
	n.pipes = append(n.pipes, p)
	if n.other = !n.other; n.other && n.opt.Other != nil {
		p.opt = *n.opt.Other
	}
	n.mu.Unlock()
	atA = &Conn{pipe: p, peer: b, side: 0}
	atB = &Conn{pipe: p, peer: a, side: 1}
	return atB, atA
}

// SharedPipe is Pipe as between two processes of one host: the connection is stable
// and can pull, and breaks only when an end closes it.
func (n *Network) SharedPipe(a, b transport.Addr) (atB, atA *SharedConn) {
	p := &pipe{opt: n.opt, net: n, offers: make(map[uint64][]byte)}
	atA = &SharedConn{Conn: Conn{pipe: p, peer: b, side: 0}}
	atB = &SharedConn{Conn: Conn{pipe: p, peer: a, side: 1}}
	return atB, atA
}

// Cut breaks one of the network's live connections, as [Conn.Cut] does. pick
// chooses among n of them. False if there is none.
func (n *Network) Cut(pick func(n int) int) bool {
	n.mu.Lock()
	n.pipes = slices.DeleteFunc(n.pipes, func(p *pipe) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.broken
	})
	var cut *pipe
	if len(n.pipes) > 0 {
		cut = n.pipes[pick(len(n.pipes))]
	}
	n.mu.Unlock()
	if cut != nil {
		(&Conn{pipe: cut}).Cut()
	}
	return cut != nil
}

// A pipe is what both ends of a connection share.
type pipe struct {
	opt Options
	net *Network

	mu     sync.Mutex // guards what follows; never held while wake or a Receiver runs
	ends   [2]end
	broken bool
	closed [2]bool
	polled [2]uint64         // bytes that a side has taken
	offers map[uint64][]byte // by ticket, of a shared pipe
	ticket uint64            // the last
}

// An end is one side's view: what is on its way to it, and its wish to be woken.
type end struct {
	lanes [2]lane
	wake  func()
	full  [2]bool // this side was told ErrFull
}

// A lane is a ring of messages in flight, whose memory is used again.
type lane struct {
	msgs       []flight
	head, size int
}

type flight struct {
	at     time.Time // it was sent, with the cable out
	header [transport.HeaderLen]byte
	body   []byte
	lent   bool   // body is the sender's,
	spare  []byte //   and this the memory for the next
}

// A Conn is one end of a connection. It implements transport.Conn.
type Conn struct {
	pipe   *pipe
	peer   transport.Addr
	side   int
	halves [2]halfway // by lane; for who polls
}

// A halfway is a message whose receiver has said where its body goes.
type halfway struct {
	placed bool
	body   []byte
}

func (c *Conn) Peer() transport.Addr { return c.peer }
func (c *Conn) MaxBody() int         { return c.pipe.opt.MaxBody }
func (c *Conn) Stable() bool         { return false }
func (c *Conn) Flush() error         { return nil }

func laneOf(bulk bool) int {
	if bulk {
		return 1
	}
	return 0
}

func (c *Conn) Send(m transport.Message) error { return c.send(m, false) }

// SendLasting implements transport.Lender.
func (c *Conn) SendLasting(m transport.Message) error { return c.send(m, c.pipe.opt.Lends) }

func (c *Conn) send(m transport.Message, lent bool) error {
	p := c.pipe
	if len(m.Body) > p.opt.MaxBody {
		return fmt.Errorf("send %d bytes to %s: %w", len(m.Body), c.peer, transport.ErrTooLong)
	}
	p.mu.Lock()
	if err := p.errLocked(c.side); err != nil {
		p.mu.Unlock()
		return err
	}
	there := &p.ends[1-c.side]
	q := &there.lanes[laneOf(m.Bulk)]
	if q.size == p.opt.depth(laneOf(m.Bulk)) {
		p.ends[c.side].full[laneOf(m.Bulk)] = true
		p.mu.Unlock()
		return transport.ErrFull
	}
	if q.msgs == nil {
		q.msgs = make([]flight, p.opt.depth(laneOf(m.Bulk)))
	}
	f := &q.msgs[(q.head+q.size)%len(q.msgs)]
	f.at = time.Time{}
	if p.net.pulled.Load() {
		f.at = time.Now()
	}
	copy(f.header[:], m.Header)
	if f.lent = lent; lent {
		f.body, f.spare = m.Body, f.body
	} else {
		f.body = append(f.body[:0], m.Body...)
	}
	q.size++
	wake := there.wake
	there.wake = nil
	p.mu.Unlock()
	if wake != nil {
		wake()
	}
	return nil
}

// Lends implements transport.Lender.
func (c *Conn) Lends() bool { return c.pipe.opt.Lends }

// Lent implements transport.Lender.
func (c *Conn) Lent() bool {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken {
		return false
	}
	for i := range p.ends[1-c.side].lanes {
		q := &p.ends[1-c.side].lanes[i]
		for k := range q.size {
			if q.msgs[(q.head+k)%len(q.msgs)].lent {
				return true
			}
		}
	}
	return false
}

func (p *pipe) errLocked(side int) error {
	switch {
	case p.closed[side]:
		return net.ErrClosed
	case p.broken && !p.net.pulled.Load():
		return transport.ErrBroken
	}
	return nil
}

func (c *Conn) Poll(in transport.Receiver) (moved bool, err error) {
	p := c.pipe
	for i := range p.ends[c.side].lanes {
		more := true
		for n := 0; more && n < p.opt.depth(i); n++ { // not for as long as the peer sends: there is another lane
			p.mu.Lock()
			if err := p.errLocked(c.side); err != nil {
				p.mu.Unlock()
				return moved, err
			}
			q := &p.ends[c.side].lanes[i]
			if q.size == 0 || p.net.pulled.Load() || i == 1 && p.opt.Late != nil && p.opt.Late() {
				p.mu.Unlock()
				break
			}
			f := &q.msgs[q.head]
			p.mu.Unlock() // the slot is ours until size falls
			half := &c.halves[i]
			if !half.placed && p.opt.Halfway != nil && p.opt.Halfway() {
				body := in.Place(f.header[:], len(f.body))
				*half = halfway{placed: true, body: body[:min(len(body), len(f.body))]}
				break
			}
			if !p.take(f) {
				break
			}
			if half.placed {
				body := half.body
				*half = halfway{}
				copy(body, f.body)
				in.Arrived(f.header[:], body)
			} else {
				more = in.Receive(f.header[:], f.body)
			}
			moved = true
			p.mu.Lock()
			q.head = (q.head + 1) % len(q.msgs)
			q.size--
			p.polled[c.side] += uint64(len(f.body) + len(f.header))
			there := &p.ends[1-c.side]
			var wake func()
			if there.full[i] && there.wake != nil {
				there.full[i] = false
				wake, there.wake = there.wake, nil
			}
			p.mu.Unlock()
			if wake != nil {
				wake()
			}
		}
	}
	return moved, nil
}

// take copies a body that is the sender's, who may use it again from then on, or from
// when the pipe broke: false then, and the message is lost.
func (p *pipe) take(f *flight) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.lent && !p.broken {
		f.body, f.spare, f.lent = append(f.spare[:0], f.body...), nil, false
	}
	return !p.broken
}

func (c *Conn) Arm(wake func()) {
	p := c.pipe
	p.mu.Lock()
	e, there := &p.ends[c.side], &p.ends[1-c.side]
	pulled := p.net.pulled.Load()
	due := p.broken && !pulled || p.closed[c.side]
	for i := range e.lanes {
		due = due || e.lanes[i].size > 0 && !pulled || e.full[i] && there.lanes[i].size < p.opt.depth(i)
	}
	if !due {
		e.wake = wake
	} else {
		e.full = [2]bool{}
	}
	p.mu.Unlock()
	if due {
		wake()
	}
}

// Path implements transport.Measured: while the cable is in, all that was sent is
// acknowledged.
func (c *Conn) Path() transport.PathInfo {
	n, p := c.pipe.net, c.pipe
	n.mu.Lock()
	since := n.since
	n.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	i := transport.PathInfo{RTT: 100 * time.Microsecond, Delivered: p.polled[1-c.side], Received: p.polled[c.side]}
	if !n.pulled.Load() {
		return i
	}
	for k := range p.ends[1-c.side].lanes {
		q := &p.ends[1-c.side].lanes[k]
		for m := range q.size {
			f := &q.msgs[(q.head+m)%len(q.msgs)]
			i.Unacked += len(f.body) + len(f.header)
			at := f.at
			if at.Before(since) {
				at = since
			}
			i.Stalled = max(i.Stalled, time.Since(at))
			i.Oldest = i.Stalled
		}
	}
	return i
}

// Cut breaks the connection, as a network does: both ends find out, and what is
// in flight is lost.
func (c *Conn) Cut() { c.sever(false) }

func (c *Conn) Close() error { c.sever(true); return nil }

func (c *Conn) sever(closing bool) {
	p := c.pipe
	p.mu.Lock()
	p.broken = true
	if closing {
		p.closed[c.side] = true
	}
	p.mu.Unlock()
	p.wake()
}

// wake wakes who is armed at either end.
func (p *pipe) wake() {
	p.mu.Lock()
	var wakes [2]func()
	for i := range p.ends {
		wakes[i], p.ends[i].wake = p.ends[i].wake, nil
	}
	p.mu.Unlock()
	for _, wake := range wakes {
		if wake != nil {
			wake()
		}
	}
}
