//go:build ofi

package main

import (
	"os"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
)

// The provider is that of FI_PROVIDER, as with all programs of libfabric.
func ofiNetworks() []transport.Network {
	return []transport.Network{libfabric.Network(os.Getenv("FI_PROVIDER"))}
}
