package quic

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// pause is what Dial leaves between two tries at an endpoint that is crowded.
const pause = 25 * time.Millisecond

var errHungUp = errors.New("it hung up during the handshake: " +
	"it has another secret or version, does not accept this certificate, has too many connections that it has not accepted, or a slow or bad network took too long")

func (e *Endpoint) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	c, err := e.dial(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	return c, nil
}

func (e *Endpoint) dial(outer context.Context, a transport.Addr) (*conn, error) {
	if a.Network() != Name {
		return nil, fmt.Errorf("this endpoint dials %s:host:port only", Name)
	}
	ctx, stop := context.WithCancel(outer)
	defer stop()
	defer context.AfterFunc(e.life, stop)()
	to, err := resolve(ctx, a.Local())
	if err != nil {
		return nil, e.blame(outer, err)
	}
	q, err := e.call(ctx, to)
	if err != nil {
		return nil, e.blame(outer, err)
	}
	// Who has given up this connection may have said so in a packet that was lost, or not at all.
	shaking, done := context.WithTimeout(ctx, e.opt.Patience)
	defer done()
	cut := context.AfterFunc(shaking, func() { hangUp(q) })
	lanes, err := e.introduce(shaking, q)
	if err == nil && !cut() {
		err = why(shaking.Err())
	}
	if err != nil {
		hangUp(q)
		return nil, e.blame(outer, err)
	}
	return e.connect(q, lanes, a, true)
}

func resolve(ctx context.Context, hostPort string) (*net.UDPAddr, error) {
	if to, err := netip.ParseAddrPort(hostPort); err == nil {
		return net.UDPAddrFromAddrPort(to), nil
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ips[0].Unmap(), uint16(n))), nil
}

// shake runs quic-go's handshake. It goes on when ctx ends, and then hangs up: one that is given up in silence looks to the other
// end like a stranger's.
func (e *Endpoint) shake(ctx context.Context, tr *quic.Transport, to *net.UDPAddr) (*quic.Conn, error) {
	type shaken struct {
		q   *quic.Conn
		err error
	}
	done := make(chan shaken)
	if !e.run(func() {
		q, err := tr.Dial(e.life, to, e.tls, e.config(-1, e.opt.Patience))
		select {
		case done <- shaken{q, err}:
		case <-ctx.Done():
			if err == nil {
				hangUp(q)
			}
		}
	}) {
		return nil, net.ErrClosed
	}
	select {
	case s := <-done:
		return s.q, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run has a goroutine run f, which Close waits for; false once closing has begun.
func (e *Endpoint) run(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.running.Go(f)
	}
	return !e.ended
}

// call connects; it tries again while the other is crowded.
func (e *Endpoint) call(ctx context.Context, to *net.UDPAddr) (*quic.Conn, error) {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return nil, net.ErrClosed
	}
	tr := e.sockets[len(e.sockets)-1].tr
	e.mu.Unlock()
	e.guard.Member(to) // or its answers might be dropped
	for end := time.Now().Add(e.opt.Patience); ; {
		q, err := e.shake(ctx, tr, to)
		if err == nil || !crowd(err) || time.Now().After(end) {
			return q, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// crowd tells whether err is what an endpoint answers that has too many
// handshakes: no place, or that the answer to its Retry came too late.
func crowd(err error) bool {
	te, ok := errors.AsType[*quic.TransportError](err)
	return ok && (te.ErrorCode == quic.ConnectionRefused || te.ErrorCode == quic.InvalidToken)
}

// introduce opens the lanes and waits for the answer.
func (e *Endpoint) introduce(ctx context.Context, q *quic.Conn) (lanes [2]*quic.Stream, err error) {
	shown, err := e.prove(q, dials)
	if err != nil {
		return lanes, err
	}
	var id [16]byte
	rand.Read(id[:])
	for i := range lanes {
		if lanes[i], err = q.OpenStreamSync(ctx); err != nil {
			return lanes, err
		}
		if _, err = lanes[i].Write(e.hello(i, shown, id)); err != nil {
			return lanes, why(err)
		}
	}
	if shown, err = e.prove(q, accepts); err != nil {
		return lanes, err
	}
	h, err := streams.ReadHello(lanes[0], Name, shown)
	switch {
	case errors.Is(err, streams.ErrHello):
		return lanes, err
	case err != nil:
		return lanes, why(err)
	case h.ID != id || h.Lane != 0:
		return lanes, errors.New("its answer is to another connection")
	}
	return lanes, nil
}

// why adds what an end of the connection during the handshake means.
func why(err error) error {
	return fmt.Errorf("%w: %w", errHungUp, err)
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
