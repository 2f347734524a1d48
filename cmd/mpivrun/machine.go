package main

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
)

// A machine is what this host has, for the decisions of job.
type machine struct {
	Cores int
	Names []string // the first is for people
	Addrs []netip.Addr
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU()}
	name, _ := os.Hostname()
	m.Names = []string{name}
	if node := os.Getenv("SLURMD_NODENAME"); node != "" {
		m.Names = append(m.Names, node)
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				m.Addrs = append(m.Addrs, addr.Unmap())
			}
		}
	}
	return m
}

// has is true if text is an IP address of m.
func (m machine) has(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && (addr.IsLoopback() || slices.Contains(m.Addrs, addr.Unmap()))
}
