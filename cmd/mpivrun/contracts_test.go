package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/sensors"
)

// promised is a promise from X to a host.
func promised(to string, rate float64) sensors.Promise {
	return sensors.Promise{Link: sensors.Link{From: "X", To: to}, Size: sensors.Large, Rate: rate, Best: rate, Spread: 0.1, Samples: 40, RTT: 0.002,
		Learned: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
}

func stored(t *testing.T, all ...sensors.Promise) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "contracts")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, sensors.Contract{Promises: all}.Store(f))
	require.NoError(t, f.Close())
	return path
}

func TestContractsOfFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("TMPDIR", dir)
	said := func(args ...string) string {
		var b strings.Builder
		require.NoError(t, contracts(&b, args), "%v", args)
		return b.String()
	}
	before := stored(t, promised("Y", 12e6), promised("Z", 5e6), promised("W", 1e6))
	after := stored(t, promised("Y", 12.3e6), promised("Z", 2e6), promised("V", 1e6))

	text := said(before)
	require.Contains(t, text, "LINK  SIZE   PROMISED   ROUND TRIP  SURE")
	require.Contains(t, text, "X>Y   large  12.0 MB/s  2.0 ms      ±11 %, 40 readings  2026-03-04 ")
	require.Equal(t, "nothing is promised\n", said(stored(t)))
	var promises []sensors.Promise
	require.NoError(t, json.Unmarshal([]byte(said("--json", before)), &promises))
	require.Len(t, promises, 3)

	require.Equal(t, "X>V large: new, 1 MB/s\nX>W large: gone, was 1 MB/s\nX>Z large: 2 MB/s, was 5 MB/s (×0.40)\n1 promise is the same, within what each scatters\n", said(before, after))
	require.Equal(t, "3 promises are the same, within what each scatters\n", said(before, before))
	var differences []sensors.Difference
	require.NoError(t, json.Unmarshal([]byte(said("--json", before, after)), &differences))
	require.Len(t, differences, 3)
	require.Nil(t, differences[0].Before)
	require.Equal(t, "[]\n", said("--json", before, before))

	none := filepath.Join(t.TempDir(), "none")
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("{}"), 0o600))
	for says, args := range map[string][]string{
		"no such file":                       {none},
		"the format is":                      {other},
		"no job of yours is running":         {"prog-1"},
		"prog-1 is no file here, and no job": {before, "prog-1"},
		"knows no option --jsno":             {"--jsno"},
		"two files at most":                  {before, before, before},
	} {
		require.ErrorContains(t, contracts(new(strings.Builder), args), says, "%v", args)
	}
}

func TestContractsOfAJob(t *testing.T) {
	now := time.Now()
	learned := promised("Y", 12e6)
	learned.Learned = now.Add(-90 * time.Second)
	doubted := promised("Z", 1e6)
	doubted.Doubt, doubted.Learned = "it fell", now.Add(-300*time.Hour)
	c := &agent.Contracts{Mode: "enforce", Links: []sensors.Standing{
		{Promise: learned, Least: 6e6, Seen: 11.5e6, SeenAt: now},
		{Promise: doubted, Least: 5e5, Breaches: 2},
		{Promise: sensors.Promise{Link: sensors.Link{From: "Y", To: "X"}, Size: sensors.Small}, Learning: 7},
		{Promise: sensors.Promise{Link: sensors.Link{From: "Y", To: "Z"}}},
		{Promise: sensors.Promise{Link: sensors.Link{From: "Z", To: "X"}, Size: sensors.Large, Rate: 8e6}, ByHand: true, Least: 8e6, Seen: 1e6, Broken: now.Add(-3 * time.Second)},
		{Promise: sensors.Promise{Link: sensors.Link{From: "Z", To: "Y"}, Size: sensors.Large, Rate: 8e6}, ByHand: true, Least: 8e6},
	}}
	var b strings.Builder
	require.NoError(t, printStandings(&b, c, now))
	for _, line := range []string{
		"X>Y   large  12.0 MB/s  6.00 MB/s  11.5 MB/s  2.0 ms      ±11 %, 40 readings  1m30s    kept\n",
		"12 days  kept again, after 2 breaches; in doubt: it fell\n",
		"Y>X   small  -          -          -          -           -                   -        learned, from 7 readings so far\n",
		"not known: too little was sent\n",
		"not judged yet: it was never the limit, set by hand\n",
		"8.00 MB/s  8.00 MB/s  1.00 MB/s  -           -                   -        broken for 3.0 s, set by hand\n",
	} {
		require.Contains(t, b.String(), line)
	}
	require.Equal(t, "8.00 MB/s, broken", promiseOf(c, "Z", "X"))
	require.Equal(t, "12.0 MB/s", promiseOf(c, "X", "Y"))
	require.Equal(t, "-", promiseOf(c, "Y", "X"))
	require.Equal(t, "-", promiseOf(nil, "X", "Y"))
}

// Of a link that nobody uses any more it is not known that it is still broken.
func TestABreachThatWasSeenLongAgo(t *testing.T) {
	now := time.Now()
	s := sensors.Standing{ByHand: true, Broken: now.Add(-time.Minute), SeenAt: now.Add(-time.Second)}
	require.Equal(t, "broken for 1m00s, set by hand", standing(s, now))
	s.SeenAt = now.Add(-50 * time.Second)
	require.Equal(t, "broken when it was seen last, 50.0 s ago, set by hand", standing(s, now))
}
