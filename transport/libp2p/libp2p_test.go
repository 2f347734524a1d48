package libp2p_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/libp2p"
	"github.com/mpiv/mpiv/transport/transporttest"
)

func listen(tb testing.TB, o libp2p.Options) *libp2p.Endpoint {
	if o.Address == "" && len(o.Relays) == 0 {
		o.Address = "127.0.0.1"
	}
	e, err := libp2p.Listen(tb.Context(), o)
	require.NoError(tb, err)
	tb.Cleanup(func() { e.Close() })
	return e
}

func TestContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transport.Endpoint { return listen(t, libp2p.Options{}) },
		transporttest.Allocates)
}
