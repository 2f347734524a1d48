package mpiv

import (
	"context"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/internal/engine"
)

// A Persistent is a send or a receive whose arguments are given once, and that
// is started and waited for again and again. It is made inactive; Start makes
// it active, and Wait, or a Test that finds it done, inactive again. One
// goroutine at a time may use it. MPI-4.0, "Persistent Communication Requests".
type Persistent struct {
	c      *Comm
	op     string
	data   []byte
	unfit  error
	size   int
	recv   bool
	mode   engine.Mode
	peer   int
	tag    int
	active bool
	r      Request
}

// SendInit prepares an Isend.
func SendInit[T Elem](c *Comm, data []T, to, tag int) *Persistent {
	return &Persistent{c: c, op: "Isend", data: bytesOf(data), unfit: fits[T](), mode: engine.Standard, peer: to, tag: tag}
}

// SsendInit prepares an Issend.
func SsendInit[T Elem](c *Comm, data []T, to, tag int) *Persistent {
	return &Persistent{c: c, op: "Issend", data: bytesOf(data), unfit: fits[T](), mode: engine.Synchronous, peer: to, tag: tag}
}

// RecvInit prepares an Irecv.
func RecvInit[T Elem](c *Comm, into []T, from, tag int) *Persistent {
	return &Persistent{c: c, op: "Irecv", data: bytesOf(into), unfit: fits[T](), size: sizeOf[T](), recv: true, peer: from, tag: tag}
}

// Start begins the communication. ErrInactive if it is active already. What
// else is wrong, Wait reports.
func (p *Persistent) Start() error {
	if p.active {
		return p.c.fail("Start", p.peer, p.tag, fmt.Errorf("%w: it is active, wait for it before it is started again", ErrInactive))
	}
	p.active = true
	if p.recv {
		p.r = p.c.irecv(p.op, p.data, p.unfit, p.size, p.peer, p.tag)
	} else {
		p.r = p.c.isend(p.op, p.data, p.unfit, p.peer, p.tag, p.mode)
	}
	return nil
}

// Active tells whether p was started and not waited for.
func (p *Persistent) Active() bool { return p.active }

// Wait waits until the communication is done. Of an inactive p it returns at
// once.
func (p *Persistent) Wait(ctx context.Context) (Status, error) {
	s, err := p.r.Wait(ctx)
	p.active = err != nil && errors.Is(err, ErrProcFailedPending)
	return s, err
}

// Test is Wait without waiting: false if the communication is not done.
func (p *Persistent) Test() (Status, bool, error) {
	s, done, err := p.r.Test()
	if done {
		p.active = false
	}
	return s, done, err
}

// Cancel tries to take the communication back, as Request.Cancel does.
func (p *Persistent) Cancel() { p.r.Cancel() }

// Startall starts all of ps. The error joins those of all that failed.
func Startall(ps ...*Persistent) error {
	var errs error
	for _, p := range ps {
		errs = errors.Join(errs, p.Start())
	}
	return errs
}
