package mem

import (
	"encoding/binary"

	"github.com/mpiv/mpiv/transport"
)

// A SharedConn is one end of a connection through memory that both ends map. It
// implements transport.Puller.
type SharedConn struct {
	Conn
	pulls []pull // done, and not reported; owned by who polls
}

type pull struct {
	id  uint64
	err error
}

func (c *SharedConn) Stable() bool { return true }

const longestSent = 8 << 10 // of the bodies that are not to be pulled

func (c *SharedConn) PrefersPull(n int) bool { return n > longestSent }

func (c *SharedConn) Offer(body []byte) (t transport.Ticket, ok bool) {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ticket++
	p.offers[p.ticket] = body
	binary.LittleEndian.PutUint64(t[:], p.ticket)
	return t, true
}

func (c *SharedConn) Withdraw(t transport.Ticket) {
	c.pipe.mu.Lock()
	defer c.pipe.mu.Unlock()
	delete(c.pipe.offers, binary.LittleEndian.Uint64(t[:]))
}

func (c *SharedConn) Pull(t transport.Ticket, into []byte, id uint64) error {
	p := c.pipe
	p.mu.Lock()
	defer p.mu.Unlock()
	body, ok := p.offers[binary.LittleEndian.Uint64(t[:])]
	if err := p.errLocked(c.side); err != nil {
		return err
	}
	var err error
	if !ok {
		err = transport.ErrBroken
	}
	copy(into, body)
	c.pulls = append(c.pulls, pull{id, err})
	return nil
}

func (c *SharedConn) Poll(in transport.Receiver) (moved bool, err error) {
	for len(c.pulls) > 0 {
		p := c.pulls[0]
		c.pulls = c.pulls[1:]
		in.Pulled(p.id, p.err)
		moved = true
	}
	m, err := c.Conn.Poll(in)
	return moved || m, err
}
