//go:build linux

package tcp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
	"github.com/mpiv/mpiv/transport/transporttest"
)

func listen(tb testing.TB, o tcp.Options) *tcp.Endpoint {
	e, err := tcp.Listen(tb.Context(), o)
	require.NoError(tb, err)
	tb.Cleanup(func() { e.Close() })
	return e
}

// pair is two connected ends, of endpoints with options a and b.
func pair(tb testing.TB, a, b tcp.Options) (near, far transport.Conn) {
	x, y := listen(tb, a), listen(tb, b)
	near, err := x.Dial(tb.Context(), y.Addr())
	require.NoError(tb, err)
	far, err = y.Accept(tb.Context())
	require.NoError(tb, err)
	require.Equal(tb, y.Addr(), near.Peer())
	require.Equal(tb, x.Addr(), far.Peer())
	return near, far
}

func TestContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transport.Endpoint { return listen(t, tcp.Options{}) })
}
