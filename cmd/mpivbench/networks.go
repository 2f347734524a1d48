package main

import (
	"slices"

	"github.com/mpiv/mpiv/transport"
)

// networks is those that this build measures beside the usual ones: the build
// tags libp2p and ofi add to it.
func networks() []transport.Network { return slices.Concat(libp2pNetworks(), ofiNetworks()) }
