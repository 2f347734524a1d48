//go:build linux

package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mpiv/mpiv/transport"
)

var errHungUp = errors.New("it hung up during the handshake: " +
	"it has another secret or version, or too many connections that it has not accepted")

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
	var lanes [2]net.Conn
	for i := range lanes {
		s, err := e.dialLane(ctx, a)
		if err != nil {
			return nil, err
		}
		defer s.Close() // harmless once connect has taken the descriptor out of it
		defer e.forget(s)
		stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		p.lane = uint8(i)
		if _, err := s.Write(p.append(nil)); err != nil {
			return nil, e.blame(ctx, err)
		}
		lanes[i] = s
	}
	var answer [1]byte
	if _, err := lanes[0].Read(answer[:]); err != nil {
		return nil, e.blame(ctx, errHungUp)
	}
	if answer[0] != accepted {
		return nil, fmt.Errorf("its answer to the handshake is %#x: no endpoint of this version listens there", answer[0])
	}
	return e.connect(lanes, a)
}

func (e *Endpoint) dialLane(ctx context.Context, a transport.Addr) (net.Conn, error) {
	var d net.Dialer
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
