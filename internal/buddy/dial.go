package buddy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/socket"
)

// dial connects to the agent of that index.
func (k *Keeper) dial(addr string, agent int) (*tls.Conn, error) {
	ctx, stop := context.WithTimeout(k.ctx, meetTime)
	defer stop()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	socket.Persist(raw)
	conn := tls.Client(raw, k.identity.TLS())
	if err = conn.HandshakeContext(ctx); err == nil {
		var name identity.Name
		name, err = k.identity.Verify(conn.ConnectionState().PeerCertificates[0])
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

// callFor connects to an agent. The connection ends with Close, too; dismiss ends it.
func (k *Keeper) callFor(to control.Buddy) (*parcels, error) {
	var errs []error
	for _, addr := range to.Addrs {
		conn, err := k.dial(addr, to.Agent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !k.admit(conn.NetConn(), to.Agent) {
			conn.Close()
			return nil, net.ErrClosed
		}
		return newParcels(conn), nil
	}
	return nil, fmt.Errorf("agent %d cannot be reached: %w", to.Agent, errors.Join(errs...))
}
