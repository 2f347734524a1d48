package mpiv

import (
	"context"
	"errors"
	"fmt"
)

// A Persistent is a send or a receive whose arguments are given once, and that
// is started and waited for again and again. It is made inactive; Start makes
// it active, and Wait, or a Test that finds it done, inactive again. Waitall,
// Testall and their like take Persistents as they take Requests; inactive ones
// are to them what zero Requests are. One goroutine at a time may use it.
// MPI-4.0, "Persistent Communication Requests".
type Persistent struct {
	c         *Comm
	peer, tag int
	begin     func() Request
	r         Request // zero: inactive
}

// SendInit prepares an Isend: data is its own from each Start until that has been waited for.
func SendInit[T Elem](c *Comm, data []T, to, tag int) *Persistent {
	return &Persistent{c: c, peer: to, tag: tag, begin: func() Request { return Isend(c, data, to, tag) }}
}

// SsendInit prepares an Issend.
func SsendInit[T Elem](c *Comm, data []T, to, tag int) *Persistent {
	return &Persistent{c: c, peer: to, tag: tag, begin: func() Request { return Issend(c, data, to, tag) }}
}

// BsendInit prepares an Ibsend.
func BsendInit[T Elem](c *Comm, data []T, to, tag int) *Persistent {
	return &Persistent{c: c, peer: to, tag: tag, begin: func() Request { return Ibsend(c, data, to, tag) }}
}

// RsendInit prepares an Irsend.
func RsendInit[T Elem](c *Comm, data []T, to, tag int) *Persistent {
	return &Persistent{c: c, peer: to, tag: tag, begin: func() Request { return Irsend(c, data, to, tag) }}
}

// RecvInit prepares an Irecv: into is its own from each Start until that has been waited for.
func RecvInit[T Elem](c *Comm, into []T, from, tag int) *Persistent {
	return &Persistent{c: c, peer: from, tag: tag, begin: func() Request { return Irecv(c, into, from, tag) }}
}

// Start begins the communication. ErrInactive if it is active already. What
// else is wrong, Wait reports.
func (p *Persistent) Start() error {
	if p.Active() {
		return p.c.fail("Start", p.peer, p.tag, fmt.Errorf("%w: it is active, wait for it before it is started again", ErrInactive))
	}
	p.r = p.begin()
	return nil
}

// Active tells whether p was started and not waited for.
func (p *Persistent) Active() bool { return p.r != Request{} }

// Wait waits until the communication is done. Of an inactive p it returns at
// once.
func (p *Persistent) Wait(ctx context.Context) (Status, error) { return p.r.Wait(ctx) }

// Test is Wait without waiting: false if the communication is not done.
func (p *Persistent) Test() (Status, bool, error) { return p.r.Test() }

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
