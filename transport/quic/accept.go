package quic

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// grace is how long a peer may be silent in its handshake when others are many.
const grace = 100 * time.Millisecond

var (
	errCrowd = errors.New("too many handshakes are unfinished")
	errLanes = errors.New("there are no two lanes of one connection")
)

// A guest is a handshake that has begun.
type guest struct {
	since time.Time
	from  net.Addr
	e     *Endpoint
	once  sync.Once
}

type guestKey struct{}

// end says how the handshake ended; the first word counts. A member that hangs up has found a better path meanwhile.
func (g *guest) end(err error) {
	g.once.Do(func() {
		g.e.unfinished.Add(-1)
		if err != nil && !(hungUp(err) && g.e.guard.Expects(g.from)) {
			g.e.strangers.Add(1)
		}
	})
}

// hungUp tells whether err is that the peer called hangUp. Where its word overtakes the end of its handshake
// only that it was the program's own is heard (RFC 9000, section 10.2.3).
func hungUp(err error) bool {
	if early, ok := errors.AsType[*quic.TransportError](err); ok {
		return early.Remote && early.ErrorCode == quic.ApplicationErrorErrorCode
	}
	closed, ok := errors.AsType[*quic.ApplicationError](err)
	return ok && closed.Remote && closed.ErrorCode == 0
}

// doubt is asked of each datagram that would begin a connection and does not show that
// its sender receives at from. It tells whether he must do that first.
func (e *Endpoint) doubt(from net.Addr) bool {
	spent := e.guard.Charge(from)
	return spent || e.unfinished.Load() >= int64(e.opt.Handshakes/4)
}

// knock counts a handshake that begins, or refuses it. ctx ends when the
// connection does.
func (e *Endpoint) knock(ctx context.Context, from *quic.ClientInfo) (context.Context, error) {
	// Others have been charged by doubt. One token can begin many connections.
	if from.AddrVerified && e.guard.Charge(from.RemoteAddr) {
		return nil, errCrowd
	}
	if e.unfinished.Add(1) > int64(e.opt.Handshakes) {
		e.unfinished.Add(-1)
		return nil, errCrowd
	}
	g := &guest{since: time.Now(), from: from.RemoteAddr, e: e}
	context.AfterFunc(ctx, func() { g.end(context.Cause(ctx)) })
	return context.WithValue(ctx, guestKey{}, g), nil
}

// silence is how long a peer may be silent in its handshake.
func (e *Endpoint) silence() time.Duration {
	if e.unfinished.Load() >= int64(e.opt.Handshakes/2) {
		return min(grace, e.opt.Patience/2)
	}
	return e.opt.Patience / 2
}

// admit takes what has passed quic-go's handshake, until Close.
func (e *Endpoint) admit(ln *quic.Listener) {
	for {
		q, err := ln.Accept(e.life)
		if err != nil {
			return // closed, or the socket is: nothing else ends it
		}
		e.running.Go(func() {
			g := q.Context().Value(guestKey{}).(*guest)
			err := e.greet(q, g.since.Add(e.opt.Patience))
			g.end(err)
			if err != nil {
				hangUp(q)
			}
		})
	}
}

// greet hands the connection to Accept; the error is why it does not.
func (e *Endpoint) greet(q *quic.Conn, deadline time.Time) error {
	ctx, stop := context.WithDeadline(e.life, deadline)
	defer stop()
	defer context.AfterFunc(ctx, func() { hangUp(q) })()
	shown, err := e.prove(q, dials)
	if err != nil {
		return err
	}
	var lanes [2]*quic.Stream
	var hellos [2]streams.Hello
	for i := range lanes {
		s, err := q.AcceptStream(ctx) // in the order in which they were opened
		if err != nil {
			return err
		}
		h, err := streams.ReadHello(s, Name, shown)
		if err == nil && (h.Lane != i || len(h.Cert) > 0) {
			err = errLanes
		}
		if err != nil {
			return err
		}
		lanes[i], hellos[i] = s, h
	}
	if hellos[0].ID != hellos[1].ID || hellos[0].Addr != hellos[1].Addr {
		return errLanes
	}
	e.guard.Member(q.RemoteAddr())
	select { // before the answer, so that who was accepted is not refused
	case e.seats <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if shown, err = e.prove(q, accepts); err == nil {
		if _, err = lanes[0].Write(e.hello(0, shown, hellos[0].ID)); err == nil {
			var c *conn
			if c, err = e.connect(q, lanes, hellos[0].Addr, false); err == nil {
				e.backlog <- c // has room: we have a seat
				return nil
			}
		}
	}
	<-e.seats
	return err
}

func (e *Endpoint) hello(lane int, shown proof.Proof, id [16]byte) []byte {
	return streams.Hello{Lane: lane, Proof: shown, ID: id, Addr: e.Addr()}.Append(nil)
}

const dials, accepts = "quic dials", "quic accepts"

// prove is the proof of one end of q that it knows the secret. It is of no use in another connection: who stands between
// two endpoints has one with each.
func (e *Endpoint) prove(q *quic.Conn, part string) (p proof.Proof, err error) {
	s := q.ConnectionState().TLS
	key, err := s.ExportKeyingMaterial("EXPORTER-mpiv", nil, 32) // RFC 8446, section 7.5
	if err != nil {
		return p, err
	}
	return proof.Of(e.opt.Secret, part, key), nil
}

var _ transport.Endpoint = (*Endpoint)(nil)
