package libp2p

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

var errHungUp = errors.New("it hung up during the handshake: " +
	"it has another secret or version, does not accept this certificate, has too many connections that it has not accepted, or a slow or bad network took too long")

// Dial connects, directly if it can. A context without a deadline gives the
// handshake Options.Patience after the hosts are connected.
func (e *Endpoint) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	c, err := e.dial(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	return c, nil
}

func (e *Endpoint) dial(outer context.Context, a transport.Addr) (_ *streams.Conn, err error) {
	if a.Network() != Name {
		return nil, fmt.Errorf("this endpoint dials %s:multiaddr/p2p/ID only", Name)
	}
	info, err := parseAddr(string(a))
	if err != nil {
		return nil, err
	}
	ctx, stop := e.bounded(outer)
	defer stop()
	if err := e.reach(ctx, info); err != nil {
		return nil, e.blame(outer, err)
	}
	ctx, late := context.WithTimeout(ctx, e.opt.Patience)
	defer late()
	var lanes [2]network.Stream
	defer func() {
		if err != nil {
			for _, s := range lanes {
				if s != nil {
					s.Reset()
				}
			}
		}
	}()
	var id [16]byte
	rand.Read(id[:])
	for i := range lanes {
		if lanes[i], err = e.open1(ctx, info.ID, i, id); err != nil {
			return nil, e.blame(outer, err)
		}
	}
	cut := context.AfterFunc(ctx, func() { lanes[0].Reset() })
	cert, err := e.answer(lanes[0], id)
	if !cut() {
		err = ctx.Err()
	}
	if err != nil {
		return nil, e.blame(outer, err)
	}
	return e.connect(lanes, a, cert)
}

// bounded is ctx that ends with the endpoint too, and lets streams go through
// relays.
func (e *Endpoint) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(network.WithAllowLimitedConn(ctx, protocolID))
	unhook := context.AfterFunc(e.life, stop)
	return ctx, func() { unhook(); stop() }
}

// reach connects the hosts. If that went through a relay, the other side begins
// to punch a hole; reach gives it some time. Where that was in vain it mostly is again: later ones have less.
func (e *Endpoint) reach(ctx context.Context, to peer.AddrInfo) error {
	if !e.direct(to.ID) {
		e.showAll(ctx, to)
	}
	if err := e.meet(ctx, to); err != nil {
		return err
	}
	patience := e.opt.Punch
	if e.unpunched.Load() {
		patience /= 10
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	for !e.direct(to.ID) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end.C:
			e.unpunched.Store(true)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// meet connects the hosts. When to try again decides the caller, not libp2p, which would refuse to for 5 s or more.
func (e *Endpoint) meet(ctx context.Context, to peer.AddrInfo) error {
	if s, ok := e.host.Network().(interface{ Backoff() *swarm.DialBackoff }); ok {
		s.Backoff().Clear(to.ID)
	}
	return e.host.Connect(ctx, to)
}

// direct tells whether there is a connection to a peer that is not through a
// relay.
func (e *Endpoint) direct(id peer.ID) bool {
	for _, c := range e.host.Network().ConnsToPeer(id) {
		if !circuit(c.RemoteMultiaddr()) {
			return true
		}
	}
	return false
}

// open1 opens a stream to a peer and says Hello on it.
func (e *Endpoint) open1(ctx context.Context, to peer.ID, lane int, id [16]byte) (network.Stream, error) {
	s, err := e.host.NewStream(ctx, to, protocolID)
	if err != nil {
		return nil, err
	}
	cut := context.AfterFunc(ctx, func() { s.Reset() })
	_, err = s.Write(e.hello(s, lane, id))
	if !cut() {
		return nil, ctx.Err()
	}
	if err != nil {
		s.Reset()
		return nil, fmt.Errorf("%w: %w", errHungUp, err)
	}
	return s, nil
}

// answer reads the other's Hello, and notes that it belongs to the job.
func (e *Endpoint) answer(s network.Stream, id [16]byte) (*x509.Certificate, error) {
	h, err := streams.ReadHello(s, Name, e.proofOf(s.Conn().RemotePeer(), e.host.ID()))
	switch {
	case errors.Is(err, streams.ErrHello):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errHungUp, err)
	case h.ID != id || h.Lane != 0:
		return nil, errors.New("its answer is to another connection")
	}
	cert, err := e.verify(h.Cert, s.Conn().RemotePublicKey())
	if err == nil {
		e.join(s.Conn().RemotePeer())
	}
	return cert, err
}

// blame is why err happened: the context or Close, if they are the reason.
func (e *Endpoint) blame(ctx context.Context, err error) error {
	if e.life.Err() != nil {
		return net.ErrClosed
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
