package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseHostfile(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []host
		says       string
	}{
		{"the forms of a line", "# mine\na slots=2\nb:3\n\n c # the last\n", []host{{"a", 2}, {"b", 3}, {"c", 0}}, ""},
		{"without an end of line", "a", []host{{"a", 0}}, ""},
		{"no host", "# nobody\n\n", nil, "names no host"},
		{"not a number", "a\nb slots=x\n", nil, "line 2: slots: want a number"},
		{"slots twice", "a:2 slots=3", nil, "line 1: the slots of a are given twice"},
		{"another word", "a max_slots=3", nil, `line 1: "max_slots=3" is not known here`},
		{"a strange name", "a/b", nil, "letters, digits"},
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
		{"localhost", "n1", true}, {"127.0.0.1", "n1", true}, {"::1", "n1", true}, {"n1", "n1", true},
		{"n1.lab", "n1", true}, {"n1", "n1.lab", true}, {"n1.lab", "n1.other", false}, {"n2", "n1", false}, {"192.0.2.1", "n1", false},
	} {
		require.Equal(t, c.want, isLocal(c.name, c.self), "isLocal(%q, %q)", c.name, c.self)
	}
}

// FuzzHostfile: nothing makes the parser panic, and what it parses it prints as
// a hostfile, and as a list for --host, that parse to the same.
func FuzzHostfile(f *testing.F) {
	for _, text := range []string{"a slots=2\nb:3\n# c\nd", "a:1 # x", "", "a slots=", "a:b:c", "\r\n a\t slots=9"} {
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
			require.Equal(t, []host{h}, one)
		}
	})
}
