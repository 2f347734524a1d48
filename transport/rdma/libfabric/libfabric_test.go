//go:build ofi && cgo && linux

package libfabric_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
	"github.com/mpiv/mpiv/transport/transporttest"
)

// providers is those that need no hardware.
var providers = []string{"shm", "tcp;ofi_rxm"}

func listen(t testing.TB, o libfabric.Options) *rdma.Endpoint {
	d, err := libfabric.Listen(t.Context(), o)
	require.NoError(t, err)
	e := rdma.New(d)
	t.Cleanup(func() { e.Close() })
	return e
}

func TestContract(t *testing.T) {
	for _, provider := range providers {
		for _, mode := range []struct {
			name string
			opt  libfabric.Options
		}{
			{"", libfabric.Options{}},
			{", all memory registered, naps", libfabric.Options{RegisterLocal: true, Naps: true}},
		} {
			t.Run(provider+mode.name, func(t *testing.T) {
				o := mode.opt
				o.Provider = provider
				transporttest.Run(t, func(t *testing.T) transport.Endpoint { return listen(t, o) })
			})
		}
	}
}

func BenchmarkConn(b *testing.B) {
	for _, provider := range providers {
		b.Run(provider, func(b *testing.B) {
			transporttest.Bench(b, func(b *testing.B) transport.Endpoint {
				return listen(b, libfabric.Options{Provider: provider})
			})
		})
	}
}
