package fabric_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A member that connects and says nothing takes no more than a few descriptors.
func TestAMemberThatSaysNothingHoldsLittle(t *testing.T) {
	a, err := identity.NewAuthority("job")
	require.NoError(t, err)
	var eps [2]transport.Endpoint
	var ids [2]*identity.Identity
	for i := range eps {
		c, err := a.Issue(identity.Process, i)
		require.NoError(t, err)
		ids[i], err = c.Open()
		require.NoError(t, err)
		eps[i], err = tcp.Network().Listen(t.Context(), transport.Site{Address: "127.0.0.1", TLS: ids[i].TLS()})
		require.NoError(t, err)
	}
	defer eps[1].Close()
	f := fabric.New(2, fabric.Options{Process: 0, Networks: []fabric.Network{{Class: topology.LAN, Endpoint: eps[0]}}, Log: slog.New(slog.DiscardHandler),
		Authenticate: func(c *x509.Certificate) (int, error) { n, err := ids[0].Verify(c); return n.Index, err }})
	e := engine.New(engine.Config{Keep: true, Processes: [][]topology.Rank{{0}, {1}}, Process: 0, Connect: f.Connect, Fail: func(err error) { t.Error(err) }})
	f.Start(e, [][]fabric.Addr{f.Addrs(), {{Class: topology.LAN, Addr: eps[1].Addr()}}})
	defer func() { e.Close(); f.Close() }()
	var all []transport.Conn
	for range 100 {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		c, err := eps[1].Dial(ctx, eps[0].Addr())
		stop()
		require.NoError(t, err)
		all = append(all, c)
	}
	open := func() (n int) {
		for _, c := range all {
			if _, err := c.Poll(nil); err == nil {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return open() <= 32 }, 8*time.Second, 50*time.Millisecond, "they stay for 10 s by themselves")
	for _, c := range all {
		c.Close()
	}
	require.Eventually(t, func() bool {
		c, err := eps[1].Dial(t.Context(), eps[0].Addr())
		if err != nil {
			return false
		}
		defer c.Close()
		time.Sleep(100 * time.Millisecond)
		_, err = c.Poll(nil)
		return err == nil
	}, 8*time.Second, time.Millisecond, "their places are not free again")
}
