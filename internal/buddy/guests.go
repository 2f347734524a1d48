package buddy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/socket"
)

// ownMost is how many agents of the job may come at once, where nobody knows how many there are.
// Others try again.
const ownMost = 512

// refused is told of a connection that came to nothing. One that broke, from a host whose agent
// has been here, is that agent's: a cut may end them at any word.
func (k *Keeper) refused(from netip.AddrPort, err error) {
	k.mu.Lock()
	own := k.from[from.Addr().Unmap()]
	k.mu.Unlock()
	if own && gate.Broken(err) {
		return
	}
	if k.strangers.Add(1) > door.RefusalsTold {
		return
	}
	k.tell(control.FromAgent{Refused: &control.Refused{Reason: fmt.Sprintf("%v, where copies are taken: %v", from, err)}})
}

// accept takes copies from other agents until Close.
func (k *Keeper) accept() {
	for {
		c, err := k.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors; they may come back
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !k.admit(c, -1) {
			c.Close()
			return
		}
		k.shaking.Begin(c, door.Shakes+ownMost)
		k.wg.Go(func() {
			defer k.dismiss(c)
			conn, err := k.greet(c)
			if crowded := k.shaking.Ended(c); err == nil {
				err = crowded
			}
			if err != nil {
				k.refused(addrOf(c), err)
				return
			}
			k.listener.Member(c.RemoteAddr())
			k.mu.Lock()
			k.from[addrOf(c).Addr().Unmap()] = true
			k.mu.Unlock()
			k.serve(conn)
		})
	}
}

// serve is a connection of somebody who is of the job. Its end is for who made it to see.
func (k *Keeper) serve(conn *tls.Conn) {
	protocol := conn.ConnectionState().NegotiatedProtocol
	if protocol == "" {
		k.keep(conn)
		return
	}
	k.mu.Lock()
	handle := k.others[protocol]
	k.mu.Unlock()
	if name, err := k.identity.Verify(conn.ConnectionState().PeerCertificates[0]); err == nil && handle != nil {
		handle(conn, name)
	}
}

// addrOf is the address at the other end of c, which is TCP.
func addrOf(c net.Conn) netip.AddrPort {
	a, _ := c.RemoteAddr().(*net.TCPAddr)
	return a.AddrPort()
}

// Handle has connections to the port that are of another protocol (ALPN, one of those of
// package control) served by f, from now on: by a goroutine for each. The connection, which is
// of whom its certificate says, ends when f returns, and breaks with Close, which waits for f.
func (k *Keeper) Handle(protocol string, f func(c *tls.Conn, from identity.Name)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.others == nil {
		k.others = map[string]func(*tls.Conn, identity.Name){}
	}
	k.others[protocol] = f
}

// greet makes sure that another agent of the job is at the other end of c, or, for that
// protocol, who shows the job to its user.
func (k *Keeper) greet(c net.Conn) (*tls.Conn, error) {
	socket.Persist(c)
	c.SetDeadline(time.Now().Add(door.ShakeTime))
	config := k.identity.TLS()
	config.NextProtos = []string{control.ProtocolHead, control.ProtocolAwait, control.ProtocolRaft, control.ProtocolFront, control.ProtocolAlive}
	conn := tls.Server(c, config)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	name, err := k.identity.Verify(conn.ConnectionState().PeerCertificates[0])
	front := conn.ConnectionState().NegotiatedProtocol == control.ProtocolFront
	if err == nil && (front != (name.Role == identity.Front) || !front && name.Role != identity.Agent) {
		err = fmt.Errorf("%v is no agent", name)
	}
	c.SetDeadline(time.Time{})
	index := name.Index
	if front {
		index = -1
	}
	if err == nil && !k.admit(c, index) {
		err = net.ErrClosed
	}
	if err == nil { // it may have been fenced since
		_, err = k.identity.Verify(conn.ConnectionState().PeerCertificates[0])
	}
	return conn, err
}

// admit keeps c, of that agent, for fence and close; false after close.
func (k *Keeper) admit(c net.Conn, agent int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.guests[c] = agent
	}
	return !k.closed
}

func (k *Keeper) dismiss(c net.Conn) {
	c.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.guests, c)
}

// fence refuses an agent whose host was lost from now on.
func (k *Keeper) fence(agent int) {
	name := k.identity.Name()
	name.Index = agent
	k.identity.Fence(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	for c, of := range k.guests {
		if of == agent {
			c.Close()
			delete(k.guests, c) // what it has said and was not heard yet is not
		}
	}
}
