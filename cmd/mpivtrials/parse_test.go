//go:build linux

package main

import (
	"context"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestInterfaces(t *testing.T) {
	got, err := parseInterfaces(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
   san:    1000      10    0    0    0     0          0         0      234       2    0    0    0     0       0          0
`)
	require.NoError(t, err)
	require.Equal(t, map[string]load{"lo": {}, "san": {1000, 234}}, got)
	for _, bad := range []string{"lan: 1 2 3\n", "lan: x 0 0 0 0 0 0 0 1\n", "lan: 1 0 0 0 0 0 0 0 -1\n"} {
		_, err := parseInterfaces(bad)
		require.Error(t, err, bad)
	}
}

func TestSockets(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100020A:A14B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100020A:89E9 0200020A:8B4D 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 00000000000000000000000000000000:1451 00000000000000000000000000000000:0000 0A 0 0 0 0 0 0 0
`
	got, err := parseSockets(text, stateListen)
	require.NoError(t, err)
	require.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("10.2.0.1:41291"), netip.MustParseAddrPort("[::]:5201")}, got)
	for _, bad := range []string{"heading\n 0: 01:02 0A\n", "heading\n 0: 0100:1 0:0 0A\n", "heading\n 0: 0100020A:XX 0:0 0A\n"} {
		_, err := parseSockets(bad, stateListen)
		require.Error(t, err, bad)
	}
}

func TestRSS(t *testing.T) {
	mb, err := parseRSS("Name:\tmpivrun\nVmRSS:\t   12500 kB\nThreads:\t3\n")
	require.NoError(t, err)
	require.Equal(t, 12.5, mb)
	mb, err = parseRSS("Name:\tmpivrun\nState:\tZ (zombie)\n")
	require.NoError(t, err)
	require.Zero(t, mb)
}

func TestCPU(t *testing.T) {
	s, err := parseCPU("7 (a (b) c) S 1 7 7 0 -1 4194304 90 0 0 0 150 50 0 0 20 0 3 0\n")
	require.NoError(t, err)
	require.Equal(t, 2.0, s)
	for _, bad := range []string{"", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4194304 90 0 0 0 x 50 0 0"} {
		_, err := parseCPU(bad)
		require.Error(t, err, bad)
	}
}

func TestHaulIsReadAsItIsWritten(t *testing.T) {
	want := haul{5, 4, 3, 2, 1.25}
	got, err := parseHaul(want.String() + "\nthe last error: none")
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = parseHaul("nothing")
	require.Error(t, err)
}

func TestFiguresOfOthers(t *testing.T) {
	x, err := parseBench("# OSU-style MPI Bandwidth Test\n# Size        Bandwidth (MB/s)\n1048576                11.95\n")
	require.NoError(t, err)
	require.Equal(t, 11.95, x)
	_, err = parseBench("# Size        Bandwidth (MB/s)\n")
	require.Error(t, err)
	x, err = parseIperf([]byte(`{"end":{"sum_sent":{"bits_per_second":9e7},"sum_received":{"bits_per_second":8e7}}}`))
	require.NoError(t, err)
	require.Equal(t, 10.0, x)
	_, err = parseIperf([]byte(`{"end":{},"error":"unable to connect"}`))
	require.ErrorContains(t, err, "unable to connect")
}

func TestOptions(t *testing.T) {
	o, err := parseOptions([]string{"-for", "10m", "-seed", "7", "cuts", "shaped"})
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, o.long)
	require.EqualValues(t, 7, o.seed)
	require.Len(t, o.trials, 2)
	o, err = parseOptions([]string{"all", "experiments"})
	require.NoError(t, err)
	require.Len(t, o.trials, len(trials))
	o, err = parseOptions([]string{"-with", "apache", "-lab", "-outlive", "M2", "survive"})
	require.NoError(t, err)
	require.Equal(t, []string{"m2", "survive"}, []string{o.trials[0].name, o.trials[1].name})
	for _, bad := range [][]string{{}, {"nothing"}, {"-rounds", "0", "all"}, {"-for", "-1s", "cuts"}, {"-attacker", "0", "strangers"}, {"-attacker", "NaN", "strangers"}, {"-attacker", "Inf", "strangers"}, {"-queue", "-1", "m1"}, {"-attacks", "kindness", "strangers"}, {"-kills", "0", "survive"}, {"-transport", "ip", "survive"}, {"-program", "none", "survive"}, {"cuts", "-seed", "3"}, {"-outlive", "survive"}, {"-lab", "-transport", "shm", "survive"}, {"-with", "nginx", "m2"}} {
		_, err := parseOptions(bad)
		require.Error(t, err, "%q", bad)
	}
}

func TestAWrongOptionIsSaidOnce(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	stderr := os.Stderr
	os.Stderr = w
	_, misspelt := parseOptions([]string{"surive"})
	require.ErrorContains(t, misspelt, `no trial is called "surive"; did you mean survive?`)
	_, unknown := parseOptions([]string{"m12"})
	require.ErrorContains(t, unknown, `no trial is called "m12" (options come before the trial`)
	_, wrong := parseOptions([]string{"-no-such-option", "cuts"})
	_, odd := parseOptions([]string{"-seed", "x", "cuts"})
	os.Stderr = stderr
	w.Close()
	said, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Empty(t, string(said), "main says the error")
	require.ErrorContains(t, wrong, "-no-such-option; mpivtrials -h shows the options")
	require.ErrorContains(t, odd, "-seed")
}

func TestTrialsThatAreNotDoneAreNoSuccess(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var done []string
	try := func(name string) trial {
		return trial{name: name, run: func(context.Context, *desk) error {
			done = append(done, name)
			interrupt()
			return nil
		}}
	}
	_, err := options{out: t.TempDir(), trials: []trial{try("first"), try("second")}}.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "second: ")
	require.Equal(t, []string{"first"}, done)
}
