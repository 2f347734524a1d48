//go:build !ofi

package main

import "github.com/mpiv/mpiv/transport"

func ofiNetworks() []transport.Network { return nil }
