// Package rdma is a network in the words of RDMA verbs: queue pairs, registered
// memory, one-sided reads and writes, completion queues. What moves the bytes is a provider
// ([Domain], [QueuePair]); package shm is the one for processes of one host.
// What a NIC does by itself, a provider without one does in PollCQ.
package rdma

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"fmt"

	"github.com/mpiv/mpiv/transport"
)

// An Endpoint implements transport.Endpoint over a provider's domain.
type Endpoint struct {
	domain Domain
}

// New is the endpoint whose address is the domain's. It owns the domain.
func New(d Domain) *Endpoint { return &Endpoint{domain: d} }

func (e *Endpoint) Addr() transport.Addr { return e.domain.Addr() }

// Close closes the domain and with it all connections.
func (e *Endpoint) Close() error { return e.domain.Close() }

func (e *Endpoint) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	qp, err := e.domain.Connect(ctx, a)
	if err != nil {
		return nil, err
	}
	return newConn(qp), nil
}

func (e *Endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	qp, err := e.domain.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return newConn(qp), nil
}

var (
	_ transport.Puller        = (*Conn)(nil)
	_ transport.Authenticated = (*Conn)(nil)
)

// A Conn implements transport.Conn and transport.Puller over a queue pair.
type Conn struct {
	qp      QueuePair
	maxBody int
}

func newConn(qp QueuePair) *Conn { return &Conn{qp: qp, maxBody: qp.MaxSend()} }

func (c *Conn) Peer() transport.Addr { return c.qp.Peer() }
func (c *Conn) MaxBody() int         { return c.maxBody }
func (c *Conn) Stable() bool         { return c.qp.Stable() }
func (c *Conn) Flush() error         { return c.qp.Err() }
func (c *Conn) Arm(wake func())      { c.qp.NotifyCQ(wake) }
func (c *Conn) Close() error         { return c.qp.Close() }

// Certificate is the peer's; nil where the provider does not ask for one.
func (c *Conn) Certificate() *x509.Certificate {
	if a, ok := c.qp.(transport.Authenticated); ok {
		return a.Certificate()
	}
	return nil
}

func (c *Conn) Send(m transport.Message) error {
	if len(m.Body) > c.maxBody {
		return fmt.Errorf("send %d bytes to %s: %w (%d)", len(m.Body), c.Peer(), transport.ErrTooLong, c.maxBody)
	}
	lane := Eager
	if m.Bulk {
		lane = Bulk
	}
	return c.qp.PostSend(lane, (*[transport.HeaderLen]byte)(m.Header), m.Body)
}

func (c *Conn) Poll(in transport.Receiver) (moved bool, err error) { return c.qp.PollCQ(in) }

// PrefersPull asks the provider, which may have measured it.
func (c *Conn) PrefersPull(n int) bool { return n > c.maxBody || c.qp.PrefersRead(n) }

// Offer registers body for the peer's Pull.
func (c *Conn) Offer(body []byte) (transport.Ticket, bool) {
	return ticket(c.qp.Register(body, RemoteRead))
}

// Expose registers buf for the peer's Put, until Withdraw.
func (c *Conn) Expose(buf []byte) (transport.Ticket, bool) {
	return ticket(c.qp.Register(buf, RemoteWrite))
}

func (c *Conn) Withdraw(t transport.Ticket) { c.qp.Deregister(key(t)) }

func (c *Conn) Pull(t transport.Ticket, into []byte, id uint64) error {
	k, err := c.check(t, into)
	if err != nil {
		return fmt.Errorf("pull %d bytes from %s: %w", len(into), c.Peer(), err)
	}
	return c.qp.PostRead(into, k, id)
}

// Put copies data to the beginning of what the peer exposed. Data must not
// change until the Receiver is told Pulled(id, …), as with Pull.
func (c *Conn) Put(t transport.Ticket, data []byte, id uint64) error {
	k, err := c.check(t, data)
	if err != nil {
		return fmt.Errorf("put %d bytes to %s: %w", len(data), c.Peer(), err)
	}
	return c.qp.PostWrite(k, data, id)
}

func (c *Conn) check(t transport.Ticket, here []byte) (Key, error) {
	k := key(t)
	if uint64(len(here)) > k.Len {
		return k, fmt.Errorf("the ticket is for %d", k.Len)
	}
	return k, nil
}

// A ticket is a key's four words.
func ticket(k Key, ok bool) (t transport.Ticket, _ bool) {
	for i, word := range [...]uint64{k.Addr, k.Len, k.Remote[0], k.Remote[1]} {
		binary.LittleEndian.PutUint64(t[8*i:], word)
	}
	return t, ok
}

func key(t transport.Ticket) (k Key) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(t[8*i:]) }
	k.Addr, k.Len = word(0), word(1)
	k.Remote = [2]uint64{word(2), word(3)}
	return k
}
