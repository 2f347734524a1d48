//go:build ofi && cgo && linux

package libfabric

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/rdma"
)

// The handshake. On the side channel: TLS, if there is a configuration; each
// end's hello. On the fabric: who dialed greets in both lanes, and the other
// greets back, so that whatever a provider sets up for the first message is
// there. On the side channel again: from who dialed, that it is ready, which is a proof
// for the nonces of both, as a hello may have been heard by others and be said again.

// What a proof on the side channel is for.
const (
	dials   = "libfabric dials"
	accepts = "libfabric accepts"
	ready   = "libfabric is ready"
)

// prove is the proof that this end knows the secret, to or of the endpoint with that address.
func (d *Domain) prove(part string, addr transport.Addr, nonces ...[]byte) proof.Proof {
	return proof.Of(d.opt.Secret, part, append(nonces, []byte(addr))...)
}

// connect is the handshake of who dials.
func (d *Domain) connect(ctx context.Context, sock net.Conn, a transport.Addr) (*QueuePair, error) {
	var cert *x509.Certificate
	if d.opt.TLS != nil {
		var err error
		if sock, cert, err = identify(tls.Client(sock, d.opt.TLS)); err != nil {
			return nil, err
		}
	}
	return d.meet(sock, cert, func(q *QueuePair) error {
		q.peer = a
		own := d.hello(q)
		own.proof = d.prove(dials, a, own.nonce[:])
		if _, err := sock.Write(own.append(nil)); err != nil {
			return err
		}
		theirs, err := readHello(sock, true, func(nonce []byte) proof.Proof { return d.prove(accepts, a, own.nonce[:], nonce) })
		if err != nil {
			return err
		}
		if theirs.refusal != "" {
			return fmt.Errorf("refused: %s", theirs.refusal)
		}
		if err := q.learn(theirs); err != nil {
			return err
		}
		if err := q.greet(ctx); err != nil {
			return err
		}
		if err := q.awaitGreeting(ctx); err != nil {
			return err
		}
		shown := d.prove(ready, a, own.nonce[:], theirs.nonce[:])
		_, err = sock.Write(shown[:])
		return err
	})
}

// accept is the handshake of who is dialed.
func (d *Domain) accept(ctx context.Context, sock net.Conn) (*QueuePair, error) {
	var cert *x509.Certificate
	if d.opt.TLS != nil {
		var err error
		if sock, cert, err = identify(tls.Server(sock, d.opt.TLS)); err != nil {
			return nil, err
		}
	}
	theirs, err := readHello(sock, false, func(nonce []byte) proof.Proof { return d.prove(dials, d.Addr(), nonce) })
	if err != nil {
		return nil, refuse(sock, err)
	}
	return d.meet(sock, cert, func(q *QueuePair) error {
		q.peer = transport.Addr(theirs.addr)
		if err := q.learn(theirs); err != nil {
			return refuse(sock, err)
		}
		own := d.hello(q)
		own.proof = d.prove(accepts, d.Addr(), theirs.nonce[:], own.nonce[:])
		if _, err := sock.Write(own.append(nil)); err != nil {
			return err
		}
		if err := q.awaitGreeting(ctx); err != nil {
			return err
		}
		if err := q.greet(ctx); err != nil {
			return err
		}
		return q.awaitReady(ctx, d.prove(ready, d.Addr(), theirs.nonce[:], own.nonce[:]))
	})
}

// meet makes a queue pair and closes it when the handshake does not end well.
func (d *Domain) meet(sock net.Conn, cert *x509.Certificate, shake func(*QueuePair) error) (*QueuePair, error) {
	q, err := newQueuePair(d, sock)
	if err != nil {
		return nil, err
	}
	q.cert = cert
	if err = shake(q); err == nil {
		err = sock.SetDeadline(time.Time{})
	}
	if err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// identify runs the TLS handshake, after which both ends know who the other is.
func identify(c *tls.Conn) (net.Conn, *x509.Certificate, error) {
	if err := c.Handshake(); err != nil {
		return nil, nil, err
	}
	certs := c.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return c, nil, nil
	}
	return c, certs[0], nil
}

// refuse tells the peer why, if it listens, and returns why.
func refuse(sock net.Conn, why error) error {
	sock.Write(hello{refusal: why.Error()}.append(nil))
	return why
}

func (d *Domain) hello(q *QueuePair) hello {
	h := hello{
		pair: q.pair, cookie: q.cookie,
		addr: string(d.Addr()), provider: d.opt.Provider, names: d.names,
	}
	h.grants, h.grantsKey = q.grants.where()
	rand.Read(h.nonce[:])
	return h
}

// learn takes what the peer says of itself.
func (q *QueuePair) learn(theirs hello) error {
	if ours := q.domain.opt.Provider; theirs.provider != ours {
		return fmt.Errorf("its provider is %q, ours %q: choose one for all", theirs.provider, ours)
	}
	q.their = theirs
	if !q.fabric.enter() {
		return net.ErrClosed
	}
	defer q.fabric.leave()
	for l := range q.to {
		addr, err := q.fabric.insert(theirs.names[l])
		if err != nil {
			return err
		}
		q.to[l] = addr
		q.inserted++
	}
	return nil
}

// look makes progress until done, or ctx is.
func (q *QueuePair) look(ctx context.Context, what string, done func() bool) error {
	for !done() {
		switch {
		case q.state.Load() != 0:
			return q.Err()
		case q.domain.isClosed():
			return net.ErrClosed
		case ctx.Err() != nil:
			return fmt.Errorf("%s over the fabric: %w", what, ctx.Err())
		}
		if !q.domain.progressAll() {
			time.Sleep(shortNap)
		}
	}
	return nil
}

// greet sends a greeting in each lane.
func (q *QueuePair) greet(ctx context.Context) error {
	for l := range rdma.Lane(rdma.Lanes) {
		if err := q.look(ctx, "greet "+string(q.peer), func() bool { return q.control(greeting, l, &nothing) }); err != nil {
			return err
		}
	}
	return nil
}

func (q *QueuePair) awaitGreeting(ctx context.Context) error {
	return q.look(ctx, "wait for "+string(q.peer), func() bool { return q.greeted.Load() == 1<<rdma.Lanes-1 })
}

// awaitReady makes progress until the peer is ready too, and has shown that it is who said hello.
func (q *QueuePair) awaitReady(ctx context.Context, shown proof.Proof) error {
	done := make(chan error, 1)
	go func() { // ends when the peer speaks, or the deadline of the handshake comes, or its socket is closed
		var b proof.Proof
		_, err := io.ReadFull(q.sock, b[:])
		if err == nil && !shown.Is(b[:]) {
			err = errSecret
		}
		done <- err
	}()
	var err error
	over := false
	q.look(ctx, "wait for "+string(q.peer), func() bool {
		select {
		case err = <-done:
			over = true
		default:
		}
		return over
	})
	if !over {
		q.sock.Close()
		err = <-done
	}
	return err
}
