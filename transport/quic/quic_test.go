package quic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/quic"
	"github.com/mpiv/mpiv/transport/transporttest"
)

func listen(tb testing.TB, o quic.Options) *quic.Endpoint {
	e, err := quic.Listen(tb.Context(), o)
	require.NoError(tb, err)
	tb.Cleanup(func() { e.Close() })
	return e
}

// pair is two connected ends, of endpoints with options a and b.
func pair(tb testing.TB, a, b quic.Options) (near, far transport.Conn) {
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
	transporttest.Run(t, func(t *testing.T) transport.Endpoint { return listen(t, quic.Options{}) },
		transporttest.Allocates)
}
