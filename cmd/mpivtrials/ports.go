//go:build linux

package main

import (
	"net/netip"
	"os"

	"github.com/mpiv/mpiv/chaos/lab"
)

// ports is where a host can be talked to.
type ports struct{ tcp, udp []netip.AddrPort }

// sockets finds what listens on a host, on other addresses than its loopback.
func sockets(l *lab.Lab, host string) (p ports, err error) {
	err = l.Do(host, func() error {
		for _, from := range []struct {
			file  string
			state uint64
			to    *[]netip.AddrPort
		}{{"tcp", stateListen, &p.tcp}, {"tcp6", stateListen, &p.tcp}, {"udp", stateUnbound, &p.udp}, {"udp6", stateUnbound, &p.udp}} {
			text, err := os.ReadFile("/proc/thread-self/net/" + from.file)
			if os.IsNotExist(err) {
				continue // no IPv6
			}
			if err != nil {
				return err
			}
			all, err := parseSockets(string(text), from.state)
			if err != nil {
				return err
			}
			for _, a := range all {
				if !a.Addr().IsLoopback() {
					*from.to = append(*from.to, a)
				}
			}
		}
		return nil
	})
	return p, err
}
