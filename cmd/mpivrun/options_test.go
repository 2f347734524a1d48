package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/sensors"
)

func TestParseRun(t *testing.T) {
	one := func(words ...string) []program { return []program{{Words: words}} }
	for _, c := range []struct {
		name, line string
		want       run
	}{
		{"a program alone", "prog", run{Programs: one("prog")}},
		{"what follows the program is its own", "prog -n 4 --timeout", run{Programs: one("prog", "-n", "4", "--timeout")}},
		{"-n", "-n 4 prog", run{Programs: []program{{Ranks: 4, Words: []string{"prog"}}}}},
		{"-np", "-np 4 prog", run{Programs: []program{{Ranks: 4, Words: []string{"prog"}}}}},
		{"two dashes and one", "--n 4 -timeout 3 prog", run{Timeout: 3 * time.Second, Programs: []program{{Ranks: 4, Words: []string{"prog"}}}}},
		{"an equals sign", "--timeout=1.5 --output=d prog", run{Timeout: 1500 * time.Millisecond, Output: "d", Programs: one("prog")}},
		{"variables", "-x A -x B=c=d -x E= prog", run{Programs: []program{{Env: []string{"A", "B=c=d", "E="}, Words: []string{"prog"}}}}},
		{"several programs", "--tag-output -n 1 a x : -n 2 --wdir /d b : c", run{Tag: true, Programs: []program{
			{Ranks: 1, Words: []string{"a", "x"}}, {Ranks: 2, Dir: "/d", Words: []string{"b"}}, {Words: []string{"c"}}}}},
		{"the end of options", "-n 2 -- -prog", run{Programs: []program{{Ranks: 2, Words: []string{"-prog"}}}}},
		{"a dash is a program", "-", run{Programs: one("-")}},
		{"hosts", "--host a:2,b -H c prog", run{Hosts: []host{{Name: "a", Slots: 2}, {Name: "b"}, {Name: "c"}}, Programs: one("prog")}},
		{"transports", "--transport shm,tcp prog", run{Transports: []string{"shm", "tcp"}, Programs: one("prog")}},
		{"agents", "--launch-agent ip|netns|exec --mpivrun /m --launch-timeout 5 --ppn 3 --map-by node --insecure prog", run{LaunchAgent: []string{"ip|netns|exec"},
			Mpivrun: "/m", LaunchTimeout: 5 * time.Second, PerNode: 3, MapBy: "node", Insecure: true, Programs: one("prog")}},
		{"thresholds", "--contract X>Y:8MB/s,*>Z=1Gbit/s --contract Y>X/small:9kB/s --ganglia g:8649 prog", run{Ganglia: "g:8649", Programs: one("prog"), Thresholds: []sensors.Threshold{
			{From: "X", To: "Y", AnySize: true, Rate: 8e6}, {From: "*", To: "Z", AnySize: true, Rate: 125e6}, {From: "Y", To: "X", Size: sensors.Small, Rate: 9e3}}}},
		{"a size", "--log-bytes 8MiB prog", run{LogBytes: 8 << 20, Programs: one("prog")}},
		{"switches", "-q -v --check --oversubscribe --timestamp-output prog",
			run{Quiet: true, Verbose: true, Check: true, Oversubscribe: true, Timestamp: true, Programs: one("prog")}},
		{"choices", "--bind-to core --survive none --deadlock say --stdin none --hostfile h --ranks-per-process 8 prog",
			run{Bind: "core", Survive: "none", Deadlock: "say", Stdin: "none", Hostfile: "h", RanksPerProcess: 8, Programs: one("prog")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseRun(strings.Fields(c.line))
			require.NoError(t, err)
			require.Equal(t, &c.want, got)
		})
	}
}

func TestParseRunChaos(t *testing.T) {
	got, err := parseRun([]string{"--chaos", "kill 2@5s;move 2@6s", "--chaos-history", "h", "prog"})
	require.NoError(t, err)
	require.Equal(t, &run{Chaos: chaos.Schedule{chaos.Kill(2).At(5 * time.Second), chaos.Move(2).At(6 * time.Second)},
		ChaosHistory: "h", Programs: []program{{Words: []string{"prog"}}}}, got)
	_, err = parseRun([]string{"--chaos", "kill 2@5", "prog"})
	require.ErrorContains(t, err, `--chaos kill 2@5: at character 8, in "kill 2@5": "5" is no time`)
	_, err = parseRun([]string{"--chaos", "cut X\xff@5s", "prog"})
	require.ErrorContains(t, err, `--chaos cut X`+"\ufffd"+`@5s: at character 6, in "cut X\xff@5s": the byte 0xff is no UTF-8`)
}

func TestParseRunRefuses(t *testing.T) {
	for _, c := range []struct{ line, says string }{
		{"", "no program is given"},
		{"-n 4", "no program is given"},
		{"-n", "-n needs a value"},
		{"-n four prog", "want a number from 1"},
		{"-n 0 prog", "want a number from 1"},
		{"-n -1 prog", "want a number from 1"},
		{"-n4 prog", "did you mean -n 4?"},
		{"-np8 prog", "did you mean -n 8?"},
		{"--tmeout 3 prog", "did you mean --timeout?"},
		{"--tag_output prog", "did you mean --tag-output?"},
		{"--frobnicate prog", "mpivrun help lists them"},
		{"--map-by core prog", "one of slot, node"},
		{"--mca btl tcp prog", "Open MPI"},
		{"--check=yes prog", "takes no value"},
		{"--timeout 0 prog", "want seconds"},
		{"--timeout NaN prog", "want seconds"},
		{"--timeout 1e300 prog", "want seconds"},
		{"--survive all prog", "want one of none, moves, crashes, report"},
		{"--transport udp prog", "want one of shm, tcp"},
		{"--transport tcp,tcp prog", "named twice"},
		{"--log-bytes 8Mib prog", "such as 8MiB"},
		{"--host a:b prog", "slots of host a"},
		{"--host , prog", "no name"},
		{"--contract X prog", "in quotes"},
		{"--contract X>Y:8 prog", "is no rate: want a number and B/s"},
		{"--contract X>Y:8mb/s prog", "is no rate"},
		{"--contract , prog", "in quotes"},
		{"--ganglia 8649 prog", "want HOST:PORT"},
		{"--ganglia g:0 prog", "want HOST:PORT"},
		{"--ganglia :8649 prog", "want HOST:PORT"},
		{"--stdin all prog", "number of a rank"},
		{"-x =v prog", "has no name"},
		{"--output= prog", "empty"},
		{"a : ", "no program follows"},
		{": a", "no program is given"},
		{"a : : b", "no program is given"},
		{"a : --timeout 3 b", "before the first program"},
	} {
		t.Run(c.line, func(t *testing.T) {
			r, err := parseRun(strings.Fields(c.line))
			require.ErrorContains(t, err, c.says, "parsed to %+v", r)
		})
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int{"1": 1, "100B": 100, "4k": 0, "4K": 4096, "4KiB": 4096, "4kB": 4000, "1.5MiB": 3 << 19, "2G": 2 << 30, "1TiB": 1 << 40, "": 0, "-1": 0, "MiB": 0, "0x10": 0, "9999999G": 0} {
		got, err := size(text)
		if want == 0 {
			require.Error(t, err, text)
		} else {
			require.NoError(t, err, text)
			require.Equal(t, want, got, text)
		}
	}
}

// FuzzParseRun: nothing makes the parser panic, and what it parses has programs.
func FuzzParseRun(f *testing.F) {
	for _, line := range []string{
		"-n 4 prog arg", "--timeout=1.5 -x A=b -- -p : -np 2 q", "--host a:2,b --hostfile f p", "--log-bytes 8MiB -v -q p : r",
		"--survive none --transport tcp --stdin 3 p", "--contract X>Y=8MB/s,*>Z/large:1Gbit/s --ganglia g:8649 p", "--timeout 3ms p", "--log-bytes 1.5KiB p", "-- : p", "p : -- q : r",
	} {
		f.Add(strings.ReplaceAll(line, " ", "\x00"))
	}
	f.Add("--chaos\x00kill 2@5s; random seed=7 stops=1 every=2s; cut X|Y@1m for 5s\x00p")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseRun(strings.Split(line, "\x00"))
		if err != nil {
			require.Nil(t, r)
			return
		}
		require.NotEmpty(t, r.Programs)
		for _, p := range r.Programs {
			require.NotEmpty(t, p.Words)
		}
	})
}
