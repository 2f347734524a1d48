package quic

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/quic-go/quic-go"

	"github.com/mpiv/mpiv/transport/internal/streams"
)

// maxSockets bounds how often an endpoint can move: twice, because in quic-go the end
// that accepted a connection takes one of its two spare connection IDs for each
// move, and never gives it back (quic-go pull request 5819). Closing the
// dialer's old path frees an ID of the dialer's only. The old sockets stay until
// Close: quic-go ends a connection when one that it has been on is closed.
const maxSockets = 3

var errSettled = fmt.Errorf("this endpoint has moved %d times: make another", maxSockets-1)

// Rebind moves the endpoint to another address of this host, as a host and port;
// it is for when the old one is gone, or about to be. The connections that this
// endpoint dialed go on from there, without losing a message; those it accepted
// stay where they are, since QUIC lets only the dialer move. From then on it
// listens at the new address too, and Addr says so.
//
// The error tells how many connections did not get through from the new address
// before ctx ended. They too stay where they are.
func (e *Endpoint) Rebind(ctx context.Context, listen string) error {
	e.moving.Lock()
	defer e.moving.Unlock()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(e.life, stop)()
	e.mu.Lock()
	ended, full := e.ended, len(e.sockets) >= maxSockets
	e.mu.Unlock()
	if ended {
		return net.ErrClosed
	}
	if full {
		return fmt.Errorf("move to %s:%s: %w", Name, listen, errSettled)
	}
	s, err := e.bind(ctx, listen)
	if err != nil {
		return err
	}
	e.mu.Lock()
	moves := make(map[*streams.Conn]*quic.Conn, len(e.dialed))
	for c, q := range e.dialed {
		moves[c] = q
	}
	e.mu.Unlock()
	moved := make(chan error, len(moves))
	for _, q := range moves {
		go func() { moved <- move(ctx, q, s.tr) }()
	}
	var errs []error
	for range moves {
		if err := <-moved; err != nil {
			errs = append(errs, err)
		}
	}
	e.opt.Log.Info("quic endpoint moved", "addr", e.Addr(), "connections", len(moves), "left", len(errs))
	if len(errs) > 0 {
		return fmt.Errorf("move to %s:%s: %d of %d connections are left behind: %w", Name, listen, len(errs), len(moves), errs[0])
	}
	return nil
}

// move makes q go on over tr. A connection that has ended needs not.
func move(ctx context.Context, q *quic.Conn, tr *quic.Transport) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(q.Context(), stop)()
	p, err := q.AddPath(tr)
	if err == nil {
		if err = p.Probe(ctx); err == nil {
			err = p.Switch()
		}
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}
	if q.Context().Err() != nil {
		return nil
	}
	return err
}
