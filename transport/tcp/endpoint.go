//go:build linux

// Package tcp is the network of TCP connections.
//
// Go's package net sets connections up; then the sockets leave Go's poller, and
// whoever calls Send, Flush and Poll makes the system calls. Each connection has
// two sockets, lane 0 for messages and lane 1 for bulk, so that neither waits
// for the other. With Options.TLS both carry TLS 1.3, by crypto/tls. The package
// is for Linux.
package tcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/transport"
)

// Name is the first part of this network's addresses.
const Name = "tcp"

// Network makes endpoints of TCP.
func Network() transport.Network {
	return transport.Network{Name: Name, Listen: func(ctx context.Context, s transport.Site) (transport.Endpoint, error) {
		return Listen(ctx, Options{Listen: net.JoinHostPort(s.Address, "0"), Secret: s.Secret, TLS: s.TLS})
	}}
}

// How many connections wait for Accept. When they are so many, the next
// handshake waits with its answer, and is refused after Options.Patience.
const backlogLen = 128

// Options of an Endpoint. The zero value works, for processes of one machine
// where nobody else is.
type Options struct {
	// Listen is the host and port to listen on. Zero means 127.0.0.1, any port.
	// If the host is an address of this machine on a network, connections that
	// are dialed leave from it, so that they go over that network.
	Listen string
	// Advertise is the host and port under which others reach this endpoint.
	// Zero means the one listened on, which must then be one host's own.
	Advertise string
	// TLS is who this process is and whom it accepts, for both ends of
	// connections. It comes before all else: who it refuses reaches nothing of
	// this package. The version is 1.3, whatever it says. Nil means that
	// connections are in clear.
	TLS *tls.Config
	// Secret is what both ends of a connection must know. Each shows that it does,
	// and does not tell it: without TLS that keeps strangers out, be they where an endpoint
	// was that is no more, but not those who can change what is on the network.
	Secret [16]byte
	// Handshakes is how many may be under way at a time, and how many may wait
	// whose first bytes are not all there; each holds a descriptor. When they are
	// so many, newcomers wait, and the oldest goes when it has had 100 ms, or at
	// once if many wait from its address and no member has come from there. Zero
	// means 256.
	Handshakes int
	// Patience is how long the first bytes may take, then the handshake until its
	// proof is there, and then the answer and the last proof. Zero means 2 s.
	Patience time.Duration
}

func (o Options) withDefaults() Options {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Handshakes == 0 {
		o.Handshakes = 256
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Second
	}
	return o
}

// An Endpoint implements transport.Endpoint.
type Endpoint struct {
	opt        Options
	addr       transport.Addr
	place      string       // what a preamble is for: addr, and whose
	tls        *tls.Config  // nil: in clear
	from       *net.TCPAddr // where dialed connections leave from; nil: where the system likes
	congestion string       // the system's congestion control
	ln         *gate.Gate
	waker      *waker
	backlog    chan *Conn
	seats      chan struct{} // one for each connection in backlog, taken before its answer
	left       chan struct{} // a guest has left
	closed     chan struct{} // closed by Close
	running    sync.WaitGroup

	strangers atomic.Uint64

	mu     sync.Mutex // guards what follows; never held during I/O
	ended  bool
	open   map[io.Closer]struct{} // Conns, and sockets that Dial works on
	guests []*guest               // oldest first
	halves map[id]*half           // a connection's first lane, waiting for the second
}

// Listen makes an endpoint, which accepts handshakes from now on.
func Listen(ctx context.Context, o Options) (*Endpoint, error) {
	o = o.withDefaults()
	first := gate.TLS
	if o.TLS == nil {
		first = gate.Magic(string(magic[:]), preambleLen)
	}
	var congestion string
	var network uint64
	ln, err := gate.Listen(ctx, o.Listen, gate.Options{First: first, Waiting: o.Handshakes, Patience: o.Patience,
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			congestion, err = unpace(c)
			network = networkOf(c)
			return err
		}})
	if err != nil {
		return nil, fmt.Errorf("listen %s:%s: %w", Name, o.Listen, err)
	}
	advertise := o.Advertise
	if advertise == "" {
		at := ln.Addr().(*net.TCPAddr)
		if at.IP.IsUnspecified() {
			ln.Close()
			return nil, fmt.Errorf("listen %s:%s: others need one host's address: set Options.Advertise", Name, o.Listen)
		}
		advertise = at.String()
	}
	addr := transport.Addr(Name + ":" + advertise)
	if !validAddr(string(addr)) {
		ln.Close()
		return nil, fmt.Errorf("listen %s:%s: %q cannot be advertised: use host:port in fewer than %d bytes",
			Name, o.Listen, advertise, maxAddr)
	}
	w, err := newWaker()
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen %s: %w", addr, err)
	}
	e := &Endpoint{
		opt:        o,
		addr:       addr,
		place:      place(string(addr), network),
		tls:        forLanes(o.TLS),
		from:       source(ln.Addr().(*net.TCPAddr)),
		congestion: congestion,
		ln:         ln,
		waker:      w,
		backlog:    make(chan *Conn, backlogLen),
		seats:      make(chan struct{}, backlogLen),
		left:       make(chan struct{}, 1),
		closed:     make(chan struct{}),
		open:       make(map[io.Closer]struct{}),
		halves:     make(map[id]*half),
	}
	e.running.Go(e.admit)
	e.running.Go(w.loop)
	return e, nil
}

// source is where an endpoint that listens at a dials from.
func source(a *net.TCPAddr) *net.TCPAddr {
	if a.IP.IsLoopback() || a.IP.IsUnspecified() {
		return nil
	}
	return &net.TCPAddr{IP: a.IP, Zone: a.Zone}
}

func (e *Endpoint) Addr() transport.Addr { return e.addr }

// Strangers is how many connected and did not complete the handshake. It leaves out
// those that the kernel dropped for who had already been turned away too often.
func (e *Endpoint) Strangers() uint64 { return e.strangers.Load() + e.ln.Strangers() }

// Expect implements transport.Expecter.
func (e *Endpoint) Expect(peers []transport.Addr) {
	var from []netip.Addr
	for _, p := range peers {
		if at, err := netip.ParseAddrPort(p.Local()); err == nil && p.Network() == Name {
			from = append(from, at.Addr())
		}
	}
	e.ln.Expect(from...)
}

func (e *Endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case <-e.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-e.backlog:
		<-e.seats
		return c, nil
	case <-e.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *Endpoint) Close() error {
	e.mu.Lock()
	first := !e.ended
	e.ended = true
	var toClose []io.Closer
	if first {
		for c := range e.open {
			toClose = append(toClose, c)
		}
		for _, g := range e.guests {
			toClose = append(toClose, g)
		}
	}
	e.mu.Unlock()
	if first {
		close(e.closed)
		e.ln.Close()
		for _, c := range toClose {
			c.Close()
		}
		e.waker.close()
	}
	e.running.Wait()
	return nil
}

// adopt lets Close close c too; false once closing has begun.
func (e *Endpoint) adopt(c io.Closer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.open[c] = struct{}{}
	}
	return !e.ended
}

func (e *Endpoint) forget(c io.Closer) {
	e.mu.Lock()
	delete(e.open, c)
	e.mu.Unlock()
}

// connect makes a Conn of the two sockets of a finished handshake. They belong
// to the Conn if there is one, and are closed otherwise.
func (e *Endpoint) connect(lanes [2]*stream, peer transport.Addr) (*Conn, error) {
	defer lanes[0].sock.Close()
	defer lanes[1].sock.Close()
	fd0, err := detach(lanes[0].sock)
	if err != nil {
		return nil, err
	}
	fd1, err := detach(lanes[1].sock)
	if err != nil {
		closeFD(fd0)
		return nil, err
	}
	c, err := newConn(e, [2]int{fd0, fd1}, lanes, peer)
	if err != nil {
		return nil, err
	}
	if !e.adopt(c) {
		c.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}
