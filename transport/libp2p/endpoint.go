// Package libp2p is the network of libp2p hosts: for processes behind different
// NATs, or in private networks that only one host joins.
//
// A host listens with TCP and QUIC. One that cannot be reached keeps a place on
// a relay (circuit relay v2) and is dialed through it; the two then try to punch
// a hole to each other, and only what fails in that stays on the relay. The
// host's key is the process's own, of Site.TLS, and the first bytes of each
// connection carry its certificate, so that both ends know who the other is.
//
// The library is large: a program that does not import this package does not
// have it.
package libp2p

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	p2p "github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/x/rate"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// Name is the first part of this network's addresses. What follows are
// multiaddrs that end in /p2p/ID, with commas between them.
const Name = "libp2p"

// Network makes endpoints of libp2p. Site.Address may be empty: then the
// endpoint is reached through Site.Relays only. One that needs no relays is one,
// for the members of its job: its Addr is what they need in Site.Relays.
func Network() transport.Network {
	return transport.Network{Name: Name, Relays: true, Listen: func(ctx context.Context, s transport.Site) (transport.Endpoint, error) {
		return Listen(ctx, siteOptions(s))
	}}
}

func siteOptions(s transport.Site) Options {
	return Options{Address: s.Address, Secret: s.Secret, TLS: s.TLS, Relays: s.Relays, Relay: len(s.Relays) == 0, Log: s.Log}
}

// backlogLen is how many connections wait for Accept. When they are so many, the
// next is refused after Options.Patience.
const backlogLen = 128

// Options of an Endpoint.
type Options struct {
	// Address is the IP address to listen on. Empty means none: then Relays must
	// be set. 0.0.0.0 means all of this host.
	Address string
	// Secret is what both ends of a connection must know. They show that they do, and do not tell it.
	Secret [16]byte
	// TLS is who this endpoint is and whom it accepts: its first certificate,
	// of an ed25519 key, and VerifyConnection, which is shown the peer's. Nil
	// means a key made for the occasion, and that everybody is accepted who
	// knows Secret.
	TLS *tls.Config
	// Relays are addresses of endpoints that relay, as their Addr says. The
	// endpoint keeps a place on each. If it has an Address of its own one that
	// cannot be reached is tried again and again.
	Relays []string
	// Relay makes this endpoint relay between members of its job.
	Relay bool
	// Handshakes is how many peers may be connected that have not shown that
	// they belong to the job. When they are so many, the next takes the place of
	// the one that has been there the longest, if that has had 100 ms. Zero means
	// 128.
	Handshakes int
	// Patience is how long they have for that. Zero means 5 s.
	Patience time.Duration
	// Punch is how long Dial waits for a hole to be punched when it got through
	// a relay only. Zero means 1 s.
	Punch time.Duration
	// Log is told of relays that are lost and found. Nil means nobody.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Handshakes == 0 {
		o.Handshakes = 128
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.Punch == 0 {
		o.Punch = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// An Endpoint implements transport.Endpoint.
type Endpoint struct {
	opt     Options
	cert    []byte // own, DER
	host    host.Host
	relay   *relay.Relay // nil unless it is one
	relays  []peer.AddrInfo
	backlog chan *streams.Conn
	seats   chan struct{} // one for each connection in backlog, taken before its answer
	life    context.Context
	stop    context.CancelFunc // called by Close
	running sync.WaitGroup

	strangers atomic.Uint64
	unpunched atomic.Bool // no hole was punched in time, once

	mu      sync.Mutex // guards what follows; never held during I/O
	ended   bool
	addr    transport.Addr
	open    map[*streams.Conn]struct{}
	members map[peer.ID]struct{} // connected, and known to belong to the job
	silents []silent             // accepted, and still in their handshake of libp2p; the oldest first
	guests  map[network.Conn]guest
	knocks  map[peer.ID]int // streams in their handshake
	halves  map[halfKey]*half
}

var unlimited = rcmgr.NewFixedLimiter(rcmgr.InfiniteLimits)

// Listen makes an endpoint. When it returns, the endpoint has a place on each
// relay, or knows that it cannot be reached.
func Listen(ctx context.Context, o Options) (*Endpoint, error) {
	e, err := listen(ctx, o.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("listen %s:%s: %w", Name, o.Address, err)
	}
	return e, nil
}

func listen(ctx context.Context, o Options) (_ *Endpoint, err error) {
	e := &Endpoint{
		opt:     o,
		backlog: make(chan *streams.Conn, backlogLen),
		seats:   make(chan struct{}, backlogLen),
		open:    make(map[*streams.Conn]struct{}),
		members: make(map[peer.ID]struct{}),
		guests:  make(map[network.Conn]guest),
		knocks:  make(map[peer.ID]int),
		halves:  make(map[halfKey]*half),
	}
	if o.Address == "" && len(o.Relays) == 0 {
		return nil, errors.New("nobody could reach it: it needs an address of this host, or a relay")
	}
	for _, r := range o.Relays {
		info, err := parseAddr(r)
		if err != nil {
			return nil, fmt.Errorf("relay %q: %w", r, err)
		}
		e.relays = append(e.relays, info)
	}
	e.life, e.stop = context.WithCancel(context.Background())
	opts, err := e.hostOptions()
	if err != nil {
		return nil, err
	}
	if e.host, err = p2p.New(opts...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if o.Relay {
		if e.relay, err = newRelay(e); err != nil {
			return nil, err
		}
	}
	e.host.Network().Notify((*watch)(e))
	e.host.SetStreamHandler(protocolID, e.knock)
	lefts, errs := make([]time.Duration, len(e.relays)), make([]error, len(e.relays))
	var asked sync.WaitGroup
	for i, r := range e.relays {
		asked.Go(func() { lefts[i], errs[i] = e.reserve(ctx, r) })
	}
	asked.Wait()
	for i, r := range e.relays {
		if err := errs[i]; err != nil && o.Address == "" {
			return nil, fmt.Errorf("relay %s: %w", r, err)
		}
		e.running.Go(func() { e.keepPlace(r, lefts[i]) })
	}
	addr := e.reachable()
	if !streams.ValidAddr(addr, Name) {
		return nil, fmt.Errorf("%q cannot be advertised: give one address of this host", addr)
	}
	e.mu.Lock()
	e.addr = addr
	e.mu.Unlock()
	return e, nil
}

func (e *Endpoint) hostOptions() ([]p2p.Option, error) {
	key, cert, err := identity(e.opt.TLS)
	if err != nil {
		return nil, err
	}
	e.cert = cert
	// What a peer may cost before it has shown its key, and how many streams it may
	// open before it has shown that it belongs to the job, libp2p bounds; the rest
	// this package does. Of the streams that have no protocol yet half are for members.
	limits := rcmgr.PartialLimitConfig{
		Transient: rcmgr.ResourceLimits{
			ConnsInbound: rcmgr.LimitVal(e.opt.Handshakes), FD: rcmgr.LimitVal(2 * e.opt.Handshakes), Memory: 64 << 20,
			StreamsInbound: rcmgr.LimitVal(2 * streamsMost * e.opt.Handshakes),
		},
		PeerDefault: rcmgr.ResourceLimits{StreamsInbound: streamsMost},
	}
	many := []rcmgr.ConnLimitPerSubnet{{PrefixLength: 0, ConnCount: 1 << 20}} // a host has many processes
	resources, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits.Build(rcmgr.InfiniteLimits)),
		rcmgr.WithLimitPerSubnet(many, many), rcmgr.WithConnRateLimiters(new(rate.Limiter)), rcmgr.WithMetricsDisabled())
	if err != nil {
		return nil, err
	}
	opts := []p2p.Option{
		p2p.Identity(key), p2p.ResourceManager(resources), p2p.ConnectionManager(connmgr.NullConnMgr{}), p2p.ConnectionGater((*gater)(e)), p2p.DisableMetrics(), p2p.Ping(false),
		p2p.EnableRelay(), p2p.EnableHolePunching(), p2p.UserAgent("mpiv"),
	}
	if e.opt.Address == "" {
		return append(opts, p2p.NoListenAddrs), nil
	}
	ip, err := netip.ParseAddr(e.opt.Address)
	if err != nil {
		return nil, fmt.Errorf("%w: give an IP address of this host", err)
	}
	version := "ip4"
	if ip.Is6() {
		version = "ip6"
	}
	return append(opts, p2p.ListenAddrStrings(
		fmt.Sprintf("/%s/%s/udp/0/quic-v1", version, ip),
		fmt.Sprintf("/%s/%s/tcp/0", version, ip))), nil
}

func (e *Endpoint) Addr() transport.Addr { return e.self() }

// Strangers is how many connected or opened a stream and did not show in time
// that they belong to the job.
func (e *Endpoint) Strangers() uint64 { return e.strangers.Load() }

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
	for c := range e.open {
		toClose = append(toClose, c)
	}
	for _, g := range e.guests {
		g.late.Stop()
	}
	e.mu.Unlock()
	var err error
	if first {
		e.stop()
		for _, c := range toClose {
			c.Close()
		}
		if e.relay != nil {
			err = e.relay.Close()
		}
		err = errors.Join(err, e.host.Close())
	}
	e.running.Wait()
	return err
}

// connect makes a Conn of the streams of a finished handshake, which are its
// own if there is one, and reset otherwise.
func (e *Endpoint) connect(lanes [2]network.Stream, peer transport.Addr, cert *x509.Certificate) (*streams.Conn, error) {
	c := streams.New(streams.Options{
		Peer:        peer,
		Lanes:       [2]streams.Stream{lanes[0], lanes[1]},
		Certificate: cert,
		End:         func() { lanes[0].Reset(); lanes[1].Reset() },
		Closed: func(c *streams.Conn) {
			e.mu.Lock()
			delete(e.open, c)
			e.mu.Unlock()
		},
	})
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		c.Close()
		return nil, net.ErrClosed
	}
	e.open[c] = struct{}{}
	e.mu.Unlock()
	return c, nil
}

var (
	_ transport.Endpoint  = (*Endpoint)(nil)
	_ transport.Forgetter = (*Endpoint)(nil)
)
