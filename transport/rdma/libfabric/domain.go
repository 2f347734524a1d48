//go:build ofi && cgo && linux

package libfabric

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// grace is what a handshake gets when others wait for its place.
const grace = 100 * time.Millisecond

func (o Options) withDefaults() Options {
	if o.Provider == "" {
		o.Provider = "shm"
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Handshakes == 0 {
		o.Handshakes = 64
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Domain implements rdma.Domain. It runs a goroutine that accepts, one that
// wakes, one for each handshake and one for each queue pair; Close waits for all.
type Domain struct {
	opt      Options
	listener net.Listener
	fabric   *fabric
	names    [rdma.Lanes]string // of the fabric's endpoints
	waker    *waker
	accepted chan *QueuePair // full: handshakes wait
	closed   chan struct{}
	left     chan struct{} // a guest is gone; holds one
	running  sync.WaitGroup
	armed    atomic.Int32 // queue pairs that want to be woken

	pairsMu lock.Mutex // guards what follows
	pairs   map[uint32]*QueuePair
	last    uint32

	mu     sync.Mutex // guards what follows
	ended  bool
	guests []*guest              // in a handshake here, the oldest first
	socks  map[net.Conn]struct{} // in any handshake
}

// A guest is a socket that was accepted and is no queue pair yet.
type guest struct {
	sock  net.Conn
	since time.Time
	stop  context.CancelFunc // of the handshake
}

// Close makes the guest's handshake end.
func (g *guest) Close() {
	g.stop()
	g.sock.Close()
}

// Listen makes a domain whose address is Name, a colon, and the host and port of
// its side channel.
func Listen(ctx context.Context, o Options) (*Domain, error) {
	o = o.withDefaults()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen %s:%s: %w", Name, o.Listen, err)
	}
	d := &Domain{
		opt: o, listener: listener,
		accepted: make(chan *QueuePair, 16), closed: make(chan struct{}), left: make(chan struct{}, 1),
		pairs: make(map[uint32]*QueuePair), socks: make(map[net.Conn]struct{}),
	}
	if err := d.open(); err != nil {
		listener.Close()
		return nil, fmt.Errorf("listen %s:%s: %w", Name, o.Listen, err)
	}
	d.running.Go(d.waker.loop)
	d.running.Go(d.listen)
	return d, nil
}

func (d *Domain) open() (err error) {
	if d.fabric, err = openFabric(d.opt, d); err != nil {
		return err
	}
	if d.names, err = d.fabric.names(); err == nil {
		d.waker, err = newWaker(d)
	}
	if err != nil {
		d.fabric.close()
	}
	return err
}

func (d *Domain) Addr() transport.Addr {
	return transport.Addr(Name + ":" + d.listener.Addr().String())
}

// secretWord is a number that nobody can guess, and not zero.
func secretWord() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return max(binary.LittleEndian.Uint64(b[:]), 1)
}

// listen accepts sockets and starts their handshakes.
func (d *Domain) listen() {
	for {
		sock, err := d.listener.Accept()
		if err != nil {
			if d.isClosed() {
				return
			}
			d.opt.Log.Debug("accept again in a moment", "addr", d.Addr(), "err", err)
			select {
			case <-time.After(10 * time.Millisecond): // out of files, perhaps
				continue
			case <-d.closed:
				return
			}
		}
		ctx, stop := context.WithTimeout(context.Background(), d.opt.Patience)
		g := &guest{sock: sock, since: time.Now(), stop: stop}
		if !d.enter(g) {
			g.Close()
			return
		}
		d.running.Go(func() {
			d.admit(ctx, sock)
			stop()
			d.leave(g)
		})
	}
}

// enter waits until there is room for g; false once closing has begun.
func (d *Domain) enter(g *guest) bool {
	for {
		d.mu.Lock()
		if d.ended {
			d.mu.Unlock()
			return false
		}
		if len(d.guests) < d.opt.Handshakes {
			d.guests = append(d.guests, g)
			d.mu.Unlock()
			return true
		}
		oldest := d.guests[0]
		d.mu.Unlock()
		select {
		case <-d.closed:
		case <-d.left:
		case <-time.After(time.Until(oldest.since.Add(grace))):
			oldest.Close()
			select {
			case <-d.closed:
			case <-d.left:
			}
		}
	}
}

func (d *Domain) leave(g *guest) {
	d.mu.Lock()
	for i := range d.guests {
		if d.guests[i] == g {
			d.guests = append(d.guests[:i], d.guests[i+1:]...)
			break
		}
	}
	d.mu.Unlock()
	select {
	case d.left <- struct{}{}:
	default:
	}
}

func (d *Domain) isClosed() bool {
	select {
	case <-d.closed:
		return true
	default:
		return false
	}
}

// admit runs the handshake and queues the result for Accept.
func (d *Domain) admit(ctx context.Context, sock net.Conn) {
	q, err := d.shake(sock, func() (*QueuePair, error) { return d.accept(ctx, sock) })
	if err != nil {
		if !d.isClosed() {
			d.opt.Log.Debug("stranger refused", "addr", d.Addr(), "from", sock.RemoteAddr(), "err", err)
		}
		return
	}
	select {
	case d.accepted <- q:
	case <-d.closed: // Close closes q
	}
}

// shake runs a handshake on sock, which it owns. What it returns is d's.
func (d *Domain) shake(sock net.Conn, handshake func() (*QueuePair, error)) (*QueuePair, error) {
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		sock.Close()
		return nil, net.ErrClosed
	}
	d.socks[sock] = struct{}{}
	d.running.Add(1) // also for who dials: the fabric stays until then
	defer d.running.Done()
	d.mu.Unlock()
	sock.SetDeadline(time.Now().Add(d.opt.Patience))
	q, err := handshake()
	d.mu.Lock()
	delete(d.socks, sock)
	ended := d.ended
	if err == nil && !ended {
		d.running.Go(q.watch)
	}
	d.mu.Unlock()
	if err == nil && ended {
		q.Close() // which may wait
		err = net.ErrClosed
	}
	if err != nil {
		sock.Close()
		return nil, err
	}
	return q, nil
}

func (d *Domain) Accept(ctx context.Context) (rdma.QueuePair, error) {
	if d.isClosed() {
		return nil, net.ErrClosed
	}
	select {
	case q := <-d.accepted:
		return q, nil
	case <-d.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *Domain) Connect(ctx context.Context, a transport.Addr) (rdma.QueuePair, error) {
	q, err := d.dial(ctx, a)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	return q, nil
}

func (d *Domain) dial(ctx context.Context, a transport.Addr) (*QueuePair, error) {
	if a.Network() != Name {
		return nil, fmt.Errorf("%s cannot dial it", d.Addr())
	}
	sock, err := new(net.Dialer).DialContext(ctx, "tcp", a.Local())
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithTimeout(ctx, d.opt.Patience)
	defer end()
	stop := context.AfterFunc(ctx, func() { sock.Close() })
	defer stop()
	return d.shake(sock, func() (*QueuePair, error) {
		q, err := d.connect(ctx, sock, a)
		if err == nil && !stop() {
			q.Close()
			err = ctx.Err()
		}
		return q, err
	})
}

// enrol makes a queue pair known, by a number of its own.
func (d *Domain) enrol(q *QueuePair) {
	d.pairsMu.Lock()
	defer d.pairsMu.Unlock()
	for d.pairs[d.last] != nil {
		d.last++
	}
	q.pair = d.last
	d.last++
	d.pairs[q.pair] = q
}

func (d *Domain) forget(q *QueuePair) {
	d.pairsMu.Lock()
	delete(d.pairs, q.pair)
	d.pairsMu.Unlock()
}

func (d *Domain) find(pair uint32) *QueuePair {
	d.pairsMu.Lock()
	defer d.pairsMu.Unlock()
	return d.pairs[pair]
}

// all is the queue pairs there are.
func (d *Domain) all() (all []*QueuePair) {
	d.pairsMu.Lock()
	defer d.pairsMu.Unlock()
	for _, q := range d.pairs {
		all = append(all, q)
	}
	return all
}

// progress reads the completion queues for all queue pairs. If that is broken, so
// are they.
func (d *Domain) progress() (moved bool) { return d.look(false) }

// progressAll leaves out nothing that could be there.
func (d *Domain) progressAll() (moved bool) { return d.look(true) }

func (d *Domain) look(all bool) (moved bool) {
	moved, err := d.fabric.progress(all)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		for _, q := range d.all() {
			q.breakUp(fmt.Errorf("read a completion queue: %w: %w", err, transport.ErrBroken))
			q.fire()
		}
	}
	return moved
}

// arrived implements handler. What is not a frame for one of the queue pairs, from
// its peer, is a stranger's.
func (d *Domain) arrived(s slot, n int) {
	f, err := parseFrame(slotBytes(s)[:min(n, slotLen)])
	if err == nil {
		if q := d.find(f.pair); q != nil && q.cookie == f.cookie && q.arrived(f, s) {
			return
		}
	}
	d.fabric.recycle(s)
}

// sent implements handler.
func (d *Domain) sent(pair uint32, err error) {
	if q := d.find(pair); q != nil {
		q.sent(err)
	}
}

// accessed implements handler.
func (d *Domain) accessed(a *access, word uint64, err error) { a.pair.accessed(a, word, err) }

// Close closes the queue pairs too, and waits for the goroutines.
func (d *Domain) Close() error {
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		d.running.Wait()
		return nil
	}
	d.ended = true
	close(d.closed)
	for sock := range d.socks {
		sock.Close()
	}
	d.mu.Unlock()
	err := d.listener.Close()
	for _, q := range d.all() {
		q.Close()
	}
	d.waker.close()
	d.running.Wait()
	d.fabric.close()
	return err
}
