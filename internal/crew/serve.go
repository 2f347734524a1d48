package crew

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
)

// Accept begins to have serve called for each connection to l from a process of this user or of
// root, in a goroutine for each, until l is closed, which the caller does before Close. What serve
// reads ends with Close, which waits for it; the connection is closed when serve returns.
func (c *Crew) Accept(l *net.UnixListener, serve func(*net.UnixConn)) {
	c.wg.Go(func() { c.accept(l, serve) })
}

func (c *Crew) accept(l *net.UnixListener, serve func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors; they may come back
			select {
			case <-c.stopping:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		if !sameUser(conn) || !c.keep(conn) {
			conn.Close()
			continue
		}
		c.wg.Go(func() {
			defer c.forget(conn)
			serve(conn)
		})
	}
}

// keep and forget let Close end what serves conn.
func (c *Crew) keep(conn *net.UnixConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.conns[conn] = true
	return true
}

func (c *Crew) forget(conn *net.UnixConn) {
	conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

// sameUser is true if c's other end is a process of this user, or of root.
func sameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Getuid()
}

// serve is one process's connection.
func (c *Crew) serve(unixConn *net.UnixConn) {
	conn := control.NewConn[control.Message](unixConn)
	first, err := conn.Receive()
	if err != nil || first.Hello == nil {
		return
	}
	l := newLink()
	m, reason := c.greet(*first.Hello, l)
	if reason != "" {
		conn.Send(control.Message{Stop: &control.Stop{Reason: reason}})
		if m == nil {
			c.owner.Refused(reason)
		}
		return
	}
	if conn.Send(control.Message{Welcome: &control.Welcome{
		Token: c.job.Token, Credentials: m.Credentials, Networks: c.job.Networks, Options: c.job.Options,
	}}) != nil {
		return
	}
	m.spoken(peerOf(unixConn))
	c.owner.Said(m.Index, &first)
	over := make(chan struct{})
	c.wg.Go(func() {
		for {
			select {
			case <-l.due:
				for _, msg := range l.take() {
					if conn.Send(msg) != nil {
						return // it has ended its connection, which is read to its end
					}
				}
			case <-over:
				return
			case <-c.stopping:
				return
			}
		}
	})
	for {
		msg, err := conn.Receive()
		if err != nil {
			break
		}
		if msg.Pong != nil {
			m.pong(msg.Pong.ID)
			continue
		}
		if !c.scrapes.answered(m.Index, msg.Report) {
			c.owner.Said(m.Index, &msg)
		}
	}
	close(over)
	m.leave()
	c.scrapes.ended(m.Index)
	c.owner.Said(m.Index, nil)
}

// greet finds whose connection l is. A reason says why the process is refused;
// its child is known where its owner has to judge that.
func (c *Crew) greet(h control.Hello, l *link) (m *child, reason string) {
	if m = c.child(h.Process); m == nil {
		return nil, fmt.Sprintf("process %d is none of the job's on this host", h.Process)
	}
	if h.Version != control.Version {
		c.owner.Said(m.Index, &control.Message{Hello: &h})
		return m, fmt.Sprintf("mpivrun speaks version %d of the control protocol", control.Version)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link != nil {
		return nil, fmt.Sprintf("%s has said Hello already: was the program started a second time, by a script or by itself?", Who(m.Ranks))
	}
	m.link = l
	return m, ""
}
