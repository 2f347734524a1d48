//go:build !libp2p

package main

import "github.com/mpiv/mpiv/transport"

func libp2pNetworks() []transport.Network { return nil }
