//go:build !(ofi && cgo && linux)

package libfabric_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
)

func TestWithoutLibfabricListenSaysWhatToDo(t *testing.T) {
	_, err := libfabric.Network("shm").Listen(t.Context(), transport.Site{Address: "127.0.0.1"})
	require.ErrorContains(t, err, "-tags ofi")
	ok, why := libfabric.Available()
	require.False(t, ok)
	require.Contains(t, why, "-tags ofi")
}
