// Package quic is the network of QUIC connections.
//
// Each connection is one of quic-go, with a stream for each lane; the stream of
// lane 0 has the higher priority, so that messages never wait for bulk. An
// endpoint listens and dials on one UDP socket. A connection survives that an
// address of the one who dialed changes: what comes from the new address is
// recognised, and the dialer moves to another of its own addresses when the one
// it had is gone.
//
// Who begins too many connections, and is not known to be where a member is, is
// shut out by the kernel, as package gate does it.
//
// Between a message and its receiver are goroutines, those of quic-go and one of
// each lane: that costs some tens of microseconds, which TCP does not.
package quic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// Name is the first part of this network's addresses.
const Name = "quic"

// Network makes endpoints of QUIC.
func Network() transport.Network {
	return transport.Network{Name: Name, Listen: func(ctx context.Context, s transport.Site) (transport.Endpoint, error) {
		return Listen(ctx, Options{Listen: net.JoinHostPort(s.Address, "0"), Secret: s.Secret, TLS: s.TLS, Log: s.Log})
	}}
}

// How many connections wait for Accept. When they are so many, the next
// handshake waits with its answer, and is refused after Options.Patience.
const backlogLen = 128

// Options of an Endpoint. The zero value works, for processes of one machine
// where nobody else is.
type Options struct {
	// Listen is the host and port to listen on, under which others reach this endpoint.
	// Zero means 127.0.0.1, any port.
	Listen string
	// Secret is what both ends of a connection must know. They show that they do, and do not tell it.
	Secret [16]byte
	// TLS is who this endpoint is and whom it accepts, as a client and as a
	// server. Nil means a certificate made for the occasion, and that everybody
	// is accepted who knows Secret.
	TLS *tls.Config
	// Handshakes is how many may be unfinished at a time. From a quarter of them
	// on, newcomers must show that they receive at their address before they
	// cost anything; from half on, who is silent for 100 ms goes; when they are
	// so many, newcomers are refused, and Dial tries again. Zero means 128.
	Handshakes int
	// Patience is how long a handshake may take. Zero means 2 s.
	Patience time.Duration
	// Log is told of changes of address. Nil means nobody.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Handshakes == 0 {
		o.Handshakes = 128
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// An Endpoint implements transport.Endpoint.
type Endpoint struct {
	opt     Options
	tls     *tls.Config
	backlog chan *conn
	seats   chan struct{} // one for each connection in backlog, taken before its answer
	life    context.Context
	stop    context.CancelFunc // called by Close
	guard   *gate.Guard
	running sync.WaitGroup

	strangers  atomic.Uint64
	unfinished atomic.Int64

	moving sync.Mutex // held by Rebind

	mu      sync.Mutex // guards what follows; never held during I/O
	ended   bool
	addr    transport.Addr
	sockets []*socket // the last is the one in use
	open    map[*streams.Conn]struct{}
	dialed  map[*streams.Conn]*quic.Conn
}

// A socket is a UDP socket and what quic-go made of it.
type socket struct {
	udp *net.UDPConn
	tr  *quic.Transport
	ln  *quic.Listener
}

// Listen makes an endpoint, which accepts handshakes from now on.
func Listen(ctx context.Context, o Options) (*Endpoint, error) {
	o = o.withDefaults()
	conf, err := tlsConfig(o.TLS)
	if err != nil {
		return nil, fmt.Errorf("listen %s:%s: %w", Name, o.Listen, err)
	}
	e := &Endpoint{
		opt:     o,
		tls:     conf,
		backlog: make(chan *conn, backlogLen),
		seats:   make(chan struct{}, backlogLen),
		open:    make(map[*streams.Conn]struct{}),
		dialed:  make(map[*streams.Conn]*quic.Conn),
		guard:   gate.NewGuard(),
	}
	e.life, e.stop = context.WithCancel(context.Background())
	if _, err := e.bind(ctx, o.Listen); err != nil {
		e.stop()
		return nil, err
	}
	if err := e.watch(); err != nil {
		o.Log.Warn("addresses that change are not noticed", "err", err)
	}
	return e, nil
}

// bind opens a socket, on which the endpoint listens and dials from now on.
func (e *Endpoint) bind(ctx context.Context, listen string) (*socket, error) {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, "udp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen %s:%s: %w", Name, listen, err)
	}
	s := &socket{udp: pc.(*net.UDPConn)}
	at := s.udp.LocalAddr().(*net.UDPAddr)
	if at.IP.IsUnspecified() {
		pc.Close()
		return nil, fmt.Errorf("listen %s:%s: others need one host's address: listen on that", Name, listen)
	}
	addr := transport.Addr(Name + ":" + at.String())
	quiet()
	s.tr = &quic.Transport{Conn: patient{s.udp}, ConnContext: e.knock, VerifySourceAddress: e.doubt}
	conf := e.config(2, e.opt.Patience/2)
	conf.GetConfigForClient = func(*quic.ClientInfo) (*quic.Config, error) { return e.config(2, e.silence()), nil }
	if err := e.guard.Watch(s.udp); err != nil {
		pc.Close()
		return nil, fmt.Errorf("listen %s: guard the socket: %w", addr, err)
	}
	if s.ln, err = s.tr.Listen(e.tls, conf); err != nil {
		pc.Close()
		return nil, fmt.Errorf("listen %s: %w", addr, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		s.close()
		return nil, net.ErrClosed
	}
	e.addr, e.sockets = addr, append(e.sockets, s)
	e.running.Go(func() { e.admit(s.ln) })
	return s, nil
}

// quiet keeps quic-go from writing to the program's standard error that the
// system grants less than the 7 MB of socket buffer it asks for.
var quiet = sync.OnceFunc(func() {
	const name = "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING"
	if _, set := os.LookupEnv(name); !set {
		os.Setenv(name, "true")
	}
})

func (s *socket) close() {
	s.ln.Close()
	s.tr.Close()
	s.udp.Close()
}

// config is for connections whose peer may open so many streams.
func (e *Endpoint) config(incoming int64, silence time.Duration) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout: silence,
		// What every path has to take. quic-go sends at least as much, always, and finds out how much
		// more a path takes.
		InitialPacketSize: 1200,
		// Whether the peer is alive others find out: a stopped process is not
		// to lose its connections.
		MaxIdleTimeout:  5 * time.Minute,
		KeepAlivePeriod: 20 * time.Second,
		// Small at first, because that is what a stranger who knows no secret
		// can fill; quic-go lets them grow with what is consumed. That of the
		// connection is larger, so that bulk never uses up what messages need.
		InitialStreamReceiveWindow:     256 << 10,
		MaxStreamReceiveWindow:         16 << 20,
		InitialConnectionReceiveWindow: 512 << 10,
		MaxConnectionReceiveWindow:     32 << 20,
		MaxIncomingStreams:             incoming,
		MaxIncomingUniStreams:          -1,
	}
}

// Addr is where others can dial this endpoint; Rebind changes it.
func (e *Endpoint) Addr() transport.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr
}

// Strangers is how many began a handshake and were refused or did not complete
// it. It leaves out those that the kernel dropped for who had tried too often. In a crowd it may count a member that
// was asked to show where it is after its first datagram had been let in: it begins anew, and what it began times out.
func (e *Endpoint) Strangers() uint64 { return e.strangers.Load() }

// Expect implements transport.Expecter.
func (e *Endpoint) Expect(peers []transport.Addr) {
	var from []netip.Addr
	for _, p := range peers {
		if at, err := netip.ParseAddrPort(p.Local()); err == nil && p.Network() == Name {
			from = append(from, at.Addr())
		}
	}
	e.guard.Expect(from...)
}

func (e *Endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	if e.life.Err() != nil {
		return nil, net.ErrClosed
	}
	select {
	case c := <-e.backlog:
		<-e.seats
		return c, nil
	case <-e.life.Done():
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *Endpoint) Close() error {
	e.mu.Lock()
	first := !e.ended
	e.ended = true
	var toClose []*streams.Conn
	if first {
		for c := range e.open {
			toClose = append(toClose, c)
		}
	}
	e.mu.Unlock()
	if first {
		e.stop()
		for _, c := range toClose {
			c.Close()
		}
		for _, s := range e.sockets { // nobody adds any more
			s.close()
		}
		e.guard.Close()
	}
	e.running.Wait()
	return nil
}

// connect makes a Conn of the streams of a finished handshake; the quic.Conn is
// the Conn's if there is one, and closed otherwise.
func (e *Endpoint) connect(q *quic.Conn, lanes [2]*quic.Stream, peer transport.Addr, dialed bool) (*conn, error) {
	lanes[0].SetPriority(0, false)
	o := streams.Options{
		Peer:   peer,
		Lanes:  [2]streams.Stream{lanes[0], lanes[1]},
		End:    func() { hangUp(q) },
		Closed: func(c *streams.Conn) { e.forget(c) },
	}
	if e.opt.TLS != nil {
		certs := q.ConnectionState().TLS.PeerCertificates
		if len(certs) == 0 {
			hangUp(q)
			return nil, errors.New("the peer has shown no certificate")
		}
		o.Certificate = certs[0]
	}
	c := streams.New(o)
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		c.Close()
		return nil, net.ErrClosed
	}
	e.open[c] = struct{}{}
	if dialed {
		e.dialed[c] = q
	}
	e.mu.Unlock()
	return &conn{Conn: c, q: q}, nil
}

func hangUp(q *quic.Conn) { q.CloseWithError(0, "closed") }

func (e *Endpoint) forget(c *streams.Conn) {
	e.mu.Lock()
	delete(e.open, c)
	delete(e.dialed, c)
	e.mu.Unlock()
}
