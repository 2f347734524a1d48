//go:build linux

package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/transport"
)

var errHungUp = errors.New("it hung up during the handshake: " +
	"it has another secret or version, is with TLS where this is without, has too many connections that it has not accepted, or a slow or bad network took too long")

func (e *Endpoint) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	c, err := e.dial(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	return c, nil
}

func (e *Endpoint) dial(ctx context.Context, a transport.Addr) (*Conn, error) {
	if a.Network() != Name {
		return nil, fmt.Errorf("this endpoint dials %s:host:port only", Name)
	}
	p := preamble{secret: e.opt.Secret, addr: string(e.addr)}
	rand.Read(p.id[:])
	var lanes [2]*stream
	for i := range lanes {
		s, err := e.dialLane(ctx, a)
		if err != nil {
			return nil, err
		}
		defer s.Close() // harmless once connect has taken the descriptor out of it
		defer e.forget(s)
		stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		lanes[i] = newStream(s, e.tls, true)
	}
	raw, err := lanes[0].sock.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	p.to = place(string(a), networkOf(raw))
	if err := introduce(lanes, p); err != nil {
		return nil, e.blame(ctx, explain(err))
	}
	if err := answered(lanes[0], p); err != nil {
		return nil, e.blame(ctx, explain(err))
	}
	if !samePeer(lanes[0], lanes[1]) {
		return nil, errors.New("its two lanes end at two processes")
	}
	return e.connect(lanes, a)
}

// introduce runs both lanes' handshakes at the same time, up to the answer.
func introduce(lanes [2]*stream, p preamble) (err error) {
	ends := make(chan error, len(lanes))
	for i, s := range lanes {
		go func(p preamble) {
			p.lane = uint8(i)
			err := s.shake()
			if err == nil {
				_, err = s.Write(p.append(nil))
			}
			ends <- err
		}(p)
	}
	for range lanes {
		if e := <-ends; e != nil && err == nil {
			err = e
			lanes[0].sock.Close() // ends the other
			lanes[1].sock.Close()
		}
	}
	return err
}

// answered is the rest of the handshake, in lane 0.
func answered(s *stream, p preamble) error {
	var b [answerLen]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return err
	}
	nonce := b[:nonceLen]
	if !p.answer(nonce).Is(b[nonceLen:]) {
		return errors.New("its answer to the handshake is wrong: no endpoint of this job and version listens there")
	}
	last := p.last(nonce)
	_, err := s.Write(last[:])
	return err
}

// explain makes more of err, with which a handshake has ended.
func explain(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return fmt.Errorf("it does not accept this process: %w", err)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("it has no TLS: %w", err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errHungUp
	}
	return err
}

// dialLane makes one socket. It does so in the caller's goroutine: a socket
// belongs to the network namespace of the thread that makes it.
func (e *Endpoint) dialLane(ctx context.Context, a transport.Addr) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		_, err := unpace(c)
		return err
	}}
	if e.from != nil && e.sameVersion(a) {
		d.LocalAddr = e.from
	}
	s, err := d.DialContext(ctx, "tcp", a.Local())
	if err != nil {
		return nil, e.blame(ctx, err)
	}
	if !e.adopt(s) {
		s.Close()
		return nil, net.ErrClosed
	}
	return s, nil
}

// sameVersion tells whether a has the version of IP that dialed connections leave from. To
// the other version they go from where the system likes.
func (e *Endpoint) sameVersion(a transport.Addr) bool {
	to, err := netip.ParseAddrPort(a.Local())
	return err != nil || to.Addr().Unmap().Is4() == (e.from.IP.To4() != nil)
}

// blame is why err happened: the context or Close, if they are the reason.
func (e *Endpoint) blame(ctx context.Context, err error) error {
	select {
	case <-e.closed:
		return net.ErrClosed
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
