package buddy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
)

// dial connects to the agent of that index.
func (k *Keeper) dial(addr string, agent int) (*tls.Conn, error) {
	ctx, stop := context.WithTimeout(k.ctx, meetTime)
	defer stop()
	return door.Dial(ctx, k.identity, "", addr, agent)
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
