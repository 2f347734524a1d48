package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

func TestParseHostfile(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []host
		says       string
	}{
		{"the forms of a line", "# mine\na slots=2\nb:3\n\n c # the last\n", []host{{Name: "a", Slots: 2}, {Name: "b", Slots: 3}, {Name: "c"}}, ""},
		{"without an end of line", "a", []host{{Name: "a"}}, ""},
		{"no host", "# nobody\n\n", nil, "names no host"},
		{"not a number", "a\nb slots=x\n", nil, "line 2: slots: want a number"},
		{"slots twice", "a:2 slots=3", nil, "line 1: the slots of a are given twice"},
		{"labels", "me@a:2 lan=10.0.0.1 san=10.1.0.1,10.2.0.1 trust=no max-slots=4", []host{{Name: "me@a", Slots: 2, MaxSlots: 4, Distrusted: true,
			Networks: []control.Network{{Class: topology.LAN, Address: "10.0.0.1"}, {Class: topology.SAN, Address: "10.1.0.1"}, {Class: topology.SAN, Address: "10.2.0.1"}}}}, ""},
		{"another word", "a cpus=3", nil, `line 1: "cpus" is not known here`},
		{"a label twice", "a lan=10.0.0.1 lan=10.0.0.2", nil, "the lan of a are given twice"},
		{"an address that is none", "a san=fast", nil, `san: want the host's IP address on that network, not "fast"`},
		{"more slots than at most", "a:3 max_slots=2", nil, "more than its max_slots"},
		{"trust in words", "a trust=maybe", nil, "want yes or no"},
		{"a strange name", "a/b", nil, "letters, digits"},
		{"a name that is an option", "-oProxyCommand=x", nil, "letters, digits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseHostfile(c.text)
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestIsLocal(t *testing.T) {
	for _, c := range []struct {
		name, self string
		want       bool
	}{
		{"me@n1", "n1", true}, {"10.9.0.7", "n1", true},
		{"localhost", "n1", true}, {"127.0.0.1", "n1", true}, {"::1", "n1", true}, {"n1", "n1", true},
		{"n1.lab", "n1", true}, {"n1", "n1.lab", true}, {"n1.lab", "n1.other", false}, {"n2", "n1", false}, {"192.0.2.1", "n1", false},
	} {
		m := machine{Names: []string{c.self}, Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.7")}}
		require.Equal(t, c.want, host{Name: c.name}.isLocal(m), "host %q on %q", c.name, c.self)
		labelled := host{Name: "other", Networks: []control.Network{{Class: topology.SAN, Address: "10.9.0.7"}}}
		require.True(t, labelled.isLocal(m), "by the address of a label")
	}
}

// FuzzHostfile: nothing makes the parser panic, and what it parses it prints as
// a hostfile, and as a list for --host, that parse to the same.
func FuzzHostfile(f *testing.F) {
	for _, text := range []string{"a slots=2\nb:3\n# c\nd", "a:1 # x", "", "a slots=", "a:b:c", "\r\n a\t slots=9", "u@a lan=::1 san=10.0.0.1,10.0.0.2 trust=no max_slots=7"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		hosts, err := parseHostfile(text)
		if err != nil {
			return
		}
		again, err := parseHostfile(formatHostfile(hosts))
		require.NoError(t, err)
		require.Equal(t, hosts, again)
		for _, h := range hosts {
			one, err := parseHosts(h.String())
			require.NoError(t, err)
			require.Equal(t, []host{{Name: h.Name, Slots: h.Slots}}, one)
		}
	})
}
