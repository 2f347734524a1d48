//go:build linux

package tcp_test

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
	"github.com/mpiv/mpiv/transport/transporttest"
)

// members makes the configurations of processes of one job.
func members(tb testing.TB) func() *tls.Config {
	a, err := identity.NewAuthority("job")
	require.NoError(tb, err)
	next := 0
	return func() *tls.Config {
		c, err := a.Issue(identity.Process, next)
		require.NoError(tb, err)
		next++
		i, err := c.Open()
		require.NoError(tb, err)
		return i.TLS()
	}
}

func TestContractOverTLS(t *testing.T) {
	member := members(t)
	transporttest.Run(t, func(t *testing.T) transport.Endpoint { return listen(t, tcp.Options{TLS: member()}) })
}
