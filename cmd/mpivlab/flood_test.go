//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseFlood(t *testing.T) {
	d, err := parseFlood([]string{"X"})
	require.NoError(t, err)
	require.Equal(t, deluge{host: "X", long: 10 * time.Second, connections: 200, bytes: 8_000_000}, d)
	d, err = parseFlood(strings.Fields("--for 3s X --from A --with apache --connections 5 --bytes 7 --tied"))
	require.NoError(t, err)
	require.Equal(t, deluge{host: "X", from: "A", long: 3 * time.Second, connections: 5, bytes: 7, apache: true, tied: true}, d)
	for line, says := range map[string]string{
		"": "usage", "--from A": "usage", "X Y": "one host is flooded", "X --for 0s": "must be more than 0", "X --for 1h": "at most 10m",
		"X --connections 0": "from 1 to 2000", "X --bytes 0": "from 1 to 1073741824", "X --bytes 2000000000": "from 1 to 1073741824", "X --with nginx": "there are apache", "X --fro A": "usage",
	} {
		_, err := parseFlood(strings.Fields(line))
		require.ErrorContains(t, err, says, line)
	}
}

func TestWhoFloodsWhom(t *testing.T) {
	const hostfile = "X slots=1 lan=10.1.0.1\nY slots=1 lan=10.1.0.2 san=10.2.0.2\nZ slots=1 san=10.2.0.3\n"
	for _, c := range []struct{ host, from, want string }{
		{"Y", "", "Z at 10.2.0.2"},
		{"Y", "X", "X at 10.1.0.2"},
		{"X", "Y", "Y at 10.1.0.1"},
		{"X", "Z", "on no network together"},
		{"X", "X", "cannot flood itself"},
		{"Q", "X", "no host \"Q\": there are X, Y, Z"},
		{"X", "Q", "no host \"Q\""},
	} {
		d := deluge{host: c.host, from: c.from}
		addr, err := d.choose(hostfile)
		got := d.from + " at " + addr.String()
		if err != nil {
			got = err.Error()
		}
		require.Contains(t, got, c.want)
	}
}

func TestFloodInTheLab(t *testing.T) {
	out, code := inLab(t, "--hosts", "X,A", "--lan", "50mbit", "--", "sh", "-ec", `/proc/$PPID/exe flood X --for 500ms --connections 20; echo code $?`)
	require.Zero(t, code, out)
	require.Contains(t, out, "flood of X from A: it serves at 10.1.0.1:8080, 20 connections, 500ms\n")
	require.Contains(t, out, " MB in ")
	require.Contains(t, out, "\ncode 0\n")
}

func TestAFloodThatNobodyServesFails(t *testing.T) {
	out, code := inLab(t, "--hosts", "X,A", "--", "sh", "-c", `TMPDIR=/no/such /proc/$PPID/exe flood X --for 300ms --connections 5; echo code $?`)
	require.Zero(t, code, out)
	require.Contains(t, out, "mpivlab: serve on host X: flood: open /no/such/")
	require.Contains(t, out, "\ncode 1\n")
}
