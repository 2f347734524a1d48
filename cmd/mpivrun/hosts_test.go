package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
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
		{"as Open MPI has it", "a slots = 2 max-slots=3\nb slots=1 max_slots=1\nc cpu=4\nd count=2 username=me\ne slots=2 slots_max=5", []host{{Name: "a", Slots: 2, MaxSlots: 3}, {Name: "b", Slots: 1, MaxSlots: 1},
			{Name: "c", Slots: 4}, {Name: "me@d", Slots: 2}, {Name: "e", Slots: 2, MaxSlots: 5}}, ""},
		{"as MPICH has it", "a:2\nb:3 # the fast one\n", []host{{Name: "a", Slots: 2}, {Name: "b", Slots: 3}}, ""},
		{"what MPICH has more", "a:2 binding=user:0,1", nil, "here --bind-to core"},
		{"two users", "me@a user=you", nil, "want one user for host me@a"},
		{"IPv6", "[::1]\nme@[fe80::1%eth0]:2\n[2001:db8::7] slots=3", []host{{Name: "::1"}, {Name: "me@fe80::1%eth0", Slots: 2}, {Name: "2001:db8::7", Slots: 3}}, ""},
		{"IPv6 without brackets", "2001:db8::7", nil, "written in brackets, [2001:db8::7]"},
		{"brackets around a name", "[a]:2", nil, "want an IPv6 address in the brackets"},
		{"brackets that do not close", "[::1", nil, "want an IPv6 address in the brackets"},
		{"something after brackets", "[::1]2", nil, "want an IPv6 address in the brackets"},
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
	for _, text := range []string{"a slots=2\nb:3\n# c\nd", "a:1 # x", "", "a slots=", "a:b:c", "\r\n a\t slots=9", "u@a lan=::1 san=10.0.0.1,10.0.0.2 trust=no max_slots=7", "u@[::1]:3 cpu = 4", "[fe80::1%e]"} {
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
			require.Equal(t, []host{{Name: h.Name, Slots: h.Slots}}, one, "%q", h)
		}
	})
}

func TestHostsOfAHostfileThatAreChosen(t *testing.T) {
	file := t.TempDir() + "/hosts"
	require.NoError(t, os.WriteFile(file, []byte("n1 slots=2 lan=10.0.0.1\nn2 slots=3\nn3.lab\nn2\n"), 0o644))
	for line, want := range map[string][]host{
		"":               {{Name: "n1", Slots: 2, Networks: []control.Network{{Class: topology.LAN, Address: "10.0.0.1"}}}, {Name: "n2", Slots: 3}, {Name: "n3.lab"}, {Name: "n2"}},
		"--host n3,n1":   {{Name: "n3.lab"}, {Name: "n1", Slots: 2, Networks: []control.Network{{Class: topology.LAN, Address: "10.0.0.1"}}}},
		"--host n2":      {{Name: "n2", Slots: 4}},
		"--host n2:1":    {{Name: "n2", Slots: 1}},
		"--host n2:2,n2": {{Name: "n2", Slots: 3}},
		"--host n2,n2:2": {{Name: "n2", Slots: 3}},
		"--host me@n2":   {{Name: "me@n2", Slots: 4}},
		"--host n4":      nil,
		"--host n3.net":  nil,
	} {
		r, err := parseRun(append(append(strings.Fields(line), "--hostfile", file), "p"))
		require.NoError(t, err)
		got, err := r.hosts()
		if want == nil {
			require.ErrorContains(t, err, "is not in --hostfile "+file)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, got, line)
	}
}

// A name that begins with a dash would be an option to the command that is given it.
func TestHostsThatLookLikeOptions(t *testing.T) {
	for _, word := range []string{"-v", "-v:2", "me@-v", "-me@h"} {
		_, err := parseHost(word)
		require.ErrorContains(t, err, "a name is letters, digits, dots and dashes", word)
	}
}

// Two lines of a host of which one has no max_slots let it take any number.
func TestMaxSlotsOfOneLineOnly(t *testing.T) {
	for _, h := range [][2]host{{{MaxSlots: 2}, {}}, {{}, {MaxSlots: 2}}} {
		h[0].add(h[1])
		require.Zero(t, h[0].MaxSlots)
	}
}

func TestHostsNamedTwice(t *testing.T) {
	m := machine{Names: []string{"n1"}}
	lan := []control.Network{{Class: topology.LAN, Address: "10.0.0.2"}}
	hosts, err := parseHostfile("n1:2\nn2 slots=1 max_slots=2\nlocalhost\nn2 slots=2 max_slots=2 lan=10.0.0.2 trust=no\n127.0.0.1:3")
	require.NoError(t, err)
	require.Equal(t, []agent.Host{
		{Name: "n1", Slots: 6, Here: true},
		{Name: "n2", Slots: 3, MaxSlots: 4, Networks: lan, Distrusted: true},
	}, jobHosts(hosts, m))
}

// Who chooses a host of a hostfile gets what all its lines say.
func TestHostOnSeveralLinesThatIsChosen(t *testing.T) {
	file := t.TempDir() + "/hosts"
	require.NoError(t, os.WriteFile(file, []byte("n1\nn2 slots=2 max_slots=2\nn2 slots=2 max_slots=2 san=10.0.0.2 trust=no\n"), 0o644))
	r, err := parseRun([]string{"--host", "n2", "--hostfile", file, "p"})
	require.NoError(t, err)
	got, err := r.hosts()
	require.NoError(t, err)
	require.Equal(t, []host{{
		Name: "n2", Slots: 4, MaxSlots: 4, Networks: []control.Network{{Class: topology.SAN, Address: "10.0.0.2"}}, Distrusted: true,
	}}, got)
}

// FuzzPerNode: what Slurm says of its nodes is counts, as many as there are
// nodes, or an error.
func FuzzPerNode(f *testing.F) {
	for _, text := range []string{"4", "2(x3),1", "1(x1048576)", "1(x", "-1", "2(x0)", "1(x1048577)", ",", "3(x2)(x2)"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := perNode(text)
		if err != nil {
			return
		}
		require.NotEmpty(t, all)
		require.LessOrEqual(t, len(all), maxSlots)
		require.Positive(t, slices.Min(all))
	})
}

func TestPerNode(t *testing.T) {
	all, err := perNode("2(x3),1")
	require.NoError(t, err)
	require.Equal(t, []int{2, 2, 2, 1}, all)
	for _, text := range []string{"", "x", "2(x)", "2(x3", "0", "2(x0)", "1(x9999999)"} {
		_, err := perNode(text)
		require.Error(t, err, text)
	}
}

// String is h as --host takes it: without its labels.
func (h host) String() string {
	if h.Slots == 0 {
		return h.written()
	}
	return h.written() + ":" + strconv.Itoa(h.Slots)
}

// written is h's name as it is written: an IPv6 address in brackets.
func (h host) written() string {
	user, place, with := strings.Cut(h.Name, "@")
	if !with {
		user, place = "", h.Name
	} else {
		user += "@"
	}
	if strings.Contains(place, ":") {
		place = "[" + place + "]"
	}
	return user + place
}

// formatHostfile is hosts as a hostfile.
func formatHostfile(hosts []host) string {
	var b strings.Builder
	for _, h := range hosts {
		b.WriteString(h.written())
		if h.Slots > 0 {
			fmt.Fprintf(&b, " slots=%d", h.Slots)
		}
		if h.MaxSlots > 0 {
			fmt.Fprintf(&b, " max_slots=%d", h.MaxSlots)
		}
		for i, n := range h.Networks {
			if i > 0 && h.Networks[i-1].Class == n.Class {
				fmt.Fprintf(&b, ",%s", n.Address)
				continue
			}
			fmt.Fprintf(&b, " %s=%s", n.Class, n.Address)
		}
		if h.Distrusted {
			b.WriteString(" trust=no")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// What is said of a file is short, however long its lines are.
func TestLongLinesOfFilesAreNotQuotedWhole(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	path := filepath.Join(t.TempDir(), "file")
	said := func(text string, read func() error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		err := read()
		require.Error(t, err)
		require.Less(t, len(err.Error()), 4096, text[:20])
	}
	hosts := func() error { _, err := (&run{Hostfile: path}).hosts(); return err }
	for _, line := range []string{long, long + "!", "h " + long, "h lan=" + long, "h user=!" + long, long + ":x", "[" + long + "]"} {
		said(line, hosts)
	}
	said(`{"v":1,"`+long+`":1}`+"\n", func() error { _, err := auditOf(path); return err })
	said(`{"format":"`+long+`"}`, func() error { _, err := loadContract(path); return err })
}
