//go:build linux

package door

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
)

// Reach is Dial of an agent by the first of its addresses that answers: one may be of a network that is cut.
func Reach(ctx context.Context, own *identity.Identity, protocol string, to control.Voter) (*tls.Conn, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c, err := InTurn(ctx, to.Addrs, func(ctx context.Context, addr string) (*tls.Conn, error) {
		return Dial(ctx, own, protocol, addr, to.Agent)
	}, func(c *tls.Conn) { c.Close() })
	if err != nil {
		return nil, fmt.Errorf("agent %d cannot be reached: %w", to.Agent, err)
	}
	return c, nil
}

// headStart is how long an address of the head is ahead of the next.
const headStart = 300 * time.Millisecond

// InTurn is what try makes of the first address with which it succeeds, until ctx ends. One is
// tried headStart after the one before, or when all before it have failed; what comes too late is
// given back. The processes of a host listen where its agent came from, so agents are to come
// by the same network, where all have it, and by the same version of IP.
func InTurn[T any](ctx context.Context, addrs []string, try func(context.Context, string) (T, error), giveBack func(T)) (first T, err error) {
	type result struct {
		got T
		err error
	}
	results := make(chan result)
	left := slices.Clone(addrs)
	slices.SortStableFunc(left, func(a, b string) int {
		other := func(addr string) int {
			if ipVersion(addr) != ipVersion(addrs[0]) {
				return 1
			}
			return 0
		}
		return other(a) - other(b)
	})
	if len(left) == 0 {
		return first, errors.New("no address is known")
	}
	next := time.NewTimer(0)
	defer next.Stop()
	var errs []error
	for under := 0; under > 0 || len(left) > 0; {
		select {
		case <-next.C:
			addr := left[0]
			left = left[1:]
			under++
			go func() { // ends soon after ctx
				got, err := try(ctx, addr)
				select {
				case results <- result{got, err}:
				case <-ctx.Done():
					if err == nil {
						giveBack(got)
					}
				}
			}()
			if len(left) > 0 {
				next.Reset(headStart)
			}
		case r := <-results:
			if r.err == nil {
				return r.got, nil
			}
			errs = append(errs, r.err)
			if under--; under == 0 && len(left) > 0 {
				next.Reset(0)
			}
		case <-ctx.Done():
			return first, errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return first, errors.Join(errs...)
}

// ipVersion is that of an address with a port; 0 if it is a name.
func ipVersion(addr string) int {
	at, err := netip.ParseAddrPort(addr)
	switch {
	case err != nil:
		return 0
	case at.Addr().Unmap().Is4():
		return 4
	}
	return 6
}
