//go:build ofi && cgo && linux

package libfabric_test

import (
	"os"
	"os/exec"
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

// Buffers of ofi_rxm that are too small for a message would have it wait for its sender to poll.
func TestSmallBuffersInTheEnvironment(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.run", "^TestContract$/^tcp;ofi_rxm$/^an_armed_end_is_woken_by_a_message$")
	cmd.Env = append(os.Environ(), "FI_OFI_RXM_BUFFER_SIZE=4096")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestContract/tcp;ofi_rxm/an_armed_end_is_woken_by_a_message")
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
