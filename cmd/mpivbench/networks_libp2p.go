//go:build libp2p

package main

import (
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/libp2p"
)

func libp2pNetworks() []transport.Network { return []transport.Network{libp2p.Network()} }
