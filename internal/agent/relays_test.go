package agent

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

// Processes behind an address translation begin when the others are there, and are told of one of each host first.
func TestWhoIsApartBeginsLast(t *testing.T) {
	a, _ := surviving(1, 1, 1, 1)
	p := a.processes
	p[3].host.router = "10.0.0.1"
	require.Equal(t, p[:3], a.open())
	for _, q := range p {
		q.ready = true
	}
	p[0].addrs = []control.Addr{{Class: topology.SameHost, Addr: "tcp:127.0.0.1:1"}, {Class: topology.LAN, Addr: "libp2p:a"}}
	p[1].addrs, p[1].slot = []control.Addr{{Class: topology.LAN, Addr: "libp2p:b"}}, 1
	p[2].addrs = []control.Addr{{Class: topology.WAN, Addr: "libp2p:c"}}
	require.Equal(t, []string{"libp2p:a", "libp2p:c", "libp2p:b"}, a.relays())
	p[0].judged, p[2].ready = true, false
	require.Equal(t, []string{"libp2p:b"}, a.relays())
}

// A job that is interrupted before they have begun does not wait for their end.
func TestWhoIsApartIsForgotten(t *testing.T) {
	a, _ := surviving(1, 1)
	p := a.processes
	p[1].host.router, p[1].started = "10.0.0.1", false
	a.toldRun, a.awaitsOpen, a.running = true, true, 2
	a.signal(syscall.SIGTERM)
	require.Equal(t, 1, a.running)
	require.True(t, p[1].judged)
	a.signal(syscall.SIGTERM)
	require.Equal(t, 1, a.running)
}

// A host whose agent speaks from another address than it seems to is behind an address translation, unless the user
// has said where it is: then it takes copies there, too.
func TestWhoIsTranslated(t *testing.T) {
	named := &host{Host: Host{Networks: []control.Network{{Class: topology.LAN, Address: "10.0.0.9"}}}}
	for _, c := range []struct {
		h          *host
		speaks     string
		there      string
		translated bool
	}{
		{new(host), "10.3.0.3", "10.1.0.5", true},
		{new(host), "10.1.0.5", "10.1.0.5", false},
		{new(host), "", "10.1.0.5", false},
		{new(host), "fd00::1", "fd00::1", false},
		{named, "10.3.0.3", "10.1.0.5", false},
	} {
		require.Equal(t, c.translated, c.h.translated(control.Joined{Address: c.speaks}, c.there), "%+v", c)
	}
}
