package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/socket"
)

// How an agent connects to the head of its job.

// dial connects to the job's first agent, at the first of its addresses that
// answers as it should.
func (d *deputy) dial(ctx context.Context) (*line, error) {
	patience := d.boot.Patience
	if patience <= 0 || patience > dialTime {
		patience = dialTime
	}
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer stop()
	l, err := door.InTurn(ctx, d.boot.Head, d.try, func(l *line) { l.conn.Close() })
	if err != nil {
		return nil, fmt.Errorf("mpivrun cannot be reached from there at any of %s (is there a firewall between?): %w", strings.Join(d.boot.Head, ", "), err)
	}
	return l, nil
}

// dialTime is how long it may take at most to reach the first agent.
const dialTime = 30 * time.Second

// try connects to addr. A connection that ends before both know who the other is
// may have had to make room for another: it is made again.
func (d *deputy) try(ctx context.Context, addr string) (*line, error) {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		l, err := d.tryOnce(ctx, addr)
		if err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			return l, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// A line is a connection to the job's head, which has let us in.
type line struct {
	conn *patient.Conn
	from *control.Conn[control.FromAgent]
	to   *control.Conn[control.ToAgent]
	head int    // the agent at the other end
	term uint64 // of its election
}

func newLine(c *tls.Conn, head int) *line {
	conn := &patient.Conn{Conn: c, Elsewhere: new(patient.Moment)}
	return &line{conn: conn, head: head, from: control.NewConn[control.FromAgent](conn), to: control.NewConn[control.ToAgent](conn)}
}

func (d *deputy) tryOnce(ctx context.Context, addr string) (*line, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	socket.Persist(raw)
	config := d.identity.TLS()
	if d.boot.Outlive {
		config.NextProtos = []string{control.ProtocolHead}
	}
	l := newLine(tls.Client(raw, config), d.boot.Leads)
	if err := l.greet(ctx, d.identity); err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return l, nil
}

// greet makes sure that the other end is the job's first agent, and that it has
// let us in: of TLS, this side's part is over before that is decided.
func (l *line) greet(ctx context.Context, own *identity.Identity) error {
	if err := l.conn.HandshakeContext(ctx); err != nil {
		return err
	}
	name, err := own.Verify(l.conn.ConnectionState().PeerCertificates[0])
	if err == nil && (name.Role != identity.Agent || name.Index != l.head) {
		err = fmt.Errorf("%v is not the job's first agent", name)
	}
	if err != nil {
		return err
	}
	return l.admitted(ctx)
}

// admitted waits until the other end has let us in.
func (l *line) admitted(ctx context.Context) error {
	until, _ := ctx.Deadline()
	l.conn.SetReadDeadline(until)
	m, err := l.to.Receive()
	if m.Alive != nil {
		l.term = m.Alive.Term
	}
	return err
}
