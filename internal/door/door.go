//go:build linux

// Package door is the ports where agents of a job meet, at which strangers take little.
//
// Such a port is a [gate.Gate]. Who gets through that has still to show, in a handshake
// of TLS, that it is of the job; until it has it is among the [Handshakes] of the port.
package door

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/socket"
)

const (
	// Shakes is how many handshakes there may be at a time, beside those of the job's own
	// agents, which may all come at once. Others try again.
	Shakes = 64
	// ShakeTime is how long each may take, and the first that is said after it.
	ShakeTime = 5 * time.Second
	// RefusalsTold is how many refusals of one agent are worth a line.
	RefusalsTold = 20
)

// Listen opens a port on all addresses of this host. refused is told, by the goroutine that
// accepts, of each connection that the gate turns away.
func Listen(refused func(from netip.AddrPort, why error)) (*gate.Gate, error) {
	return gate.Listen(context.Background(), ":0", gate.Options{First: gate.TLS, Waiting: Shakes, Patience: ShakeTime, Refused: refused})
}

// Dial connects to such a port of the agent of that index, for a protocol (ALPN, one of those of package
// control; empty: for copies of snapshots). Who answers has shown that it is that agent.
func Dial(ctx context.Context, own *identity.Identity, protocol, addr string, agent int) (*tls.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	socket.Persist(raw)
	config := own.TLS()
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	conn := tls.Client(raw, config)
	if err = conn.HandshakeContext(ctx); err == nil {
		var name identity.Name
		name, err = own.Verify(conn.ConnectionState().PeerCertificates[0])
		if err == nil && (name.Role != identity.Agent || name.Index != agent) {
			err = fmt.Errorf("%v is not agent %d", name, agent)
		}
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return conn, nil
}

// Handshakes are the connections of a port whose other ends have not shown who they are, the
// oldest first. There are only so many: one more, and the first of them is closed, so strangers
// who say nothing keep nobody out and hold little. Any goroutine may call the methods; the zero
// value is ready.
type Handshakes struct {
	mu   sync.Mutex
	list []net.Conn
}

// Begin notes that c is one, of at most most.
func (s *Handshakes) Begin(c net.Conn, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, c)
	if len(s.list) > most {
		s.list[0].Close()
		s.list = slices.Delete(s.list, 0, 1)
	}
}

var errCrowded = errors.New("too many others came meanwhile")

// Ended is told that c is one no more. An error says that c has been closed to make room, however
// its handshake ended.
func (s *Handshakes) Ended(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.list, c)
	if i < 0 {
		return errCrowded
	}
	s.list = slices.Delete(s.list, i, i+1)
	return nil
}
