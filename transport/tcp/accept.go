//go:build linux

package tcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/transport"
)

// grace is what a handshake gets when others wait for its place.
const grace = 100 * time.Millisecond

// A guest is a socket whose first bytes are there and that is not part of a Conn yet.
type guest struct {
	*stream
	since time.Time
	once  sync.Once
	gone  chan struct{}         // closed by Close
	mate  atomic.Pointer[guest] // the lane that was there before
}

// Close makes the guest's handshake end.
func (g *guest) Close() error {
	g.once.Do(func() { close(g.gone) })
	if m := g.mate.Load(); m != nil {
		m.sock.Close()
	}
	return g.sock.Close()
}

// A half is a connection of which one lane is there.
type half struct {
	guest *guest
	preamble
	met chan struct{} // closed when the other lane took the socket over
}

// admit accepts sockets and runs their handshakes, until Close.
func (e *Endpoint) admit() {
	for {
		s, err := e.ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, or the socket died in the queue
			select {
			case <-e.closed:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		g := &guest{stream: newStream(s, e.tls, false), since: time.Now(), gone: make(chan struct{})}
		if !e.enter(g) {
			s.Close()
			return
		}
		e.running.Go(func() {
			defer e.leave(g)
			if err := e.greet(g); err != nil {
				if !e.ln.HungUp(s.RemoteAddr(), err) {
					e.strangers.Add(1)
				}
				s.Close()
			}
		})
	}
}

// enter waits until there is room for g; false once closing has begun.
func (e *Endpoint) enter(g *guest) bool {
	for {
		e.mu.Lock()
		if e.ended {
			e.mu.Unlock()
			return false
		}
		if len(e.guests) < e.opt.Handshakes {
			e.guests = append(e.guests, g)
			e.mu.Unlock()
			return true
		}
		oldest := e.guests[0]
		e.mu.Unlock()
		select {
		case <-e.closed:
		case <-e.left:
		case <-time.After(time.Until(oldest.since.Add(grace))):
			oldest.Close()
			select {
			case <-e.closed:
			case <-e.left:
			}
		}
	}
}

func (e *Endpoint) leave(g *guest) {
	e.mu.Lock()
	for i := range e.guests {
		if e.guests[i] == g {
			e.guests = append(e.guests[:i], e.guests[i+1:]...)
			break
		}
	}
	e.mu.Unlock()
	select {
	case e.left <- struct{}{}:
	default:
	}
}

var (
	errLanes   = errors.New("there are no two lanes of one connection")
	errCrowded = errors.New("too many others want to connect")
)

// greet runs the handshake of one socket; the error is why it does not end in a Conn.
func (e *Endpoint) greet(g *guest) error {
	deadline := g.since.Add(e.opt.Patience)
	g.sock.SetDeadline(deadline)
	if err := g.shake(); err != nil {
		return err
	}
	p, err := readPreamble(g, e.opt.Secret, e.place)
	if err != nil {
		return err
	}
	e.ln.Member(g.sock.RemoteAddr())
	e.mu.Lock()
	first := e.halves[p.id]
	if first == nil {
		h := &half{guest: g, preamble: p, met: make(chan struct{})}
		e.halves[p.id] = h
		e.mu.Unlock()
		return e.await(h, deadline)
	}
	if first.lane == p.lane || first.addr != p.addr || !samePeer(first.guest.stream, g.stream) {
		e.mu.Unlock()
		return errLanes
	}
	delete(e.halves, p.id)
	e.mu.Unlock()
	close(first.met)
	g.mate.Store(first.guest)
	var lanes [2]*stream
	lanes[first.lane], lanes[p.lane] = first.guest.stream, g.stream
	if err := e.welcome(g, lanes, p); err != nil {
		first.guest.sock.Close()
		return err
	}
	return nil
}

// await waits until the other lane of h comes and takes care of both.
func (e *Endpoint) await(h *half, deadline time.Time) error {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-h.met:
		return nil
	case <-late.C:
	case <-h.guest.gone:
	}
	e.mu.Lock()
	alone := e.halves[h.id] == h
	if alone {
		delete(e.halves, h.id)
	}
	e.mu.Unlock()
	if !alone {
		return nil
	}
	h.guest.sock.SetReadDeadline(time.Now().Add(lookTime))
	if _, err := h.guest.Read(make([]byte, 1)); gate.Broken(err) {
		return err
	}
	return errLanes
}

// lookTime is how long is looked whether a connection has ended.
const lookTime = 10 * time.Millisecond

// welcome answers the dialer and hands the connection to Accept. The last proof has time of its own: it comes a round trip
// later, which on a slow network is about as long as it took the dialer to get here.
func (e *Endpoint) welcome(g *guest, lanes [2]*stream, p preamble) error {
	late := time.NewTimer(e.opt.Patience)
	defer late.Stop()
	select { // before the answer, so that who was accepted is not refused
	case e.seats <- struct{}{}:
	case <-late.C:
		return errCrowded
	case <-g.gone:
		return errCrowded
	}
	lanes[0].sock.SetDeadline(time.Now().Add(e.opt.Patience))
	if e.adopt(g) { // a member: others who wait for its place do not end it while its last proof is on the way
		defer e.forget(g)
		e.leave(g)
	}
	err := answer(lanes[0], p)
	if err == nil {
		var c *Conn
		if c, err = e.connect(lanes, transport.Addr(p.addr)); err == nil {
			e.backlog <- c // has room: we have a seat
			return nil
		}
	}
	<-e.seats
	return err
}

// answer answers in lane 0, and looks whether who has dialed is here.
func answer(s *stream, p preamble) error {
	var nonce [nonceLen]byte
	rand.Read(nonce[:])
	shown := p.answer(nonce[:])
	if _, err := s.Write(append(nonce[:], shown[:]...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(s, shown[:]); err != nil {
		return err
	}
	if !p.last(nonce[:]).Is(shown[:]) {
		return fmt.Errorf("%w that was made here: it is said again", errPreamble)
	}
	return nil
}
