package sensors

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const promise = `{"link": {"from": "X", "to": "Y", "network": "lan"}, "size": "large", "rate_bytes_per_second": 12e6,
	"best_bytes_per_second": 12e6, "spread": 0.2, "wander": 0.1, "samples": 20, "busy_seconds": 2, "rtt_seconds": 0.001}`

func file(promises ...string) string {
	return `{"format": "mpiv contract", "version": 1, "promises": [` + strings.Join(promises, ",") + `]}`
}

func TestLoad(t *testing.T) {
	c, err := Load(strings.NewReader(file(promise)))
	require.NoError(t, err)
	require.Equal(t, []Promise{{Link: there, Size: Large, Rate: 12e6, Best: 12e6, Spread: 0.2, Wander: 0.1, Samples: 20, Busy: 2, RTT: 0.001}}, c.Promises)
	tests := []struct{ name, text, want string }{
		{"empty", "", "no file of contracts"},
		{"another format", `{"format": "wine list", "version": 1}`, "format"},
		{"a later version", `{"format": "mpiv contract", "version": 2}`, "learn the contracts anew"},
		{"a later version that says more", `{"format": "mpiv contract", "version": 2, "promises": [{"link": "X>Y"}], "learned_by": "Z"}`, "version 2 and this program reads version 1"},
		{"another format that says more", `{"format": "wine list", "version": 1, "wines": []}`, "wine list"},
		{"half a file", file(promise)[:100], "no file of contracts"},
		{"more behind it", file() + "{}", "follows"},
		{"a field that nobody knows", file(strings.Replace(promise, "spread", "sprad", 1)), "sprad"},
		{"a rate of nothing", file(strings.Replace(promise, "12e6", "0", 1)), "X>Y@lan for large messages: its rates"},
		{"a size that is none", file(strings.Replace(promise, "large", "huge", 1)), "huge"},
		{"no host", file(strings.Replace(promise, `"X"`, `""`, 1)), "host"},
		{"no spread", file(strings.Replace(promise, "0.2", "0", 1)), "spread"},
		{"a wander below nothing", file(strings.Replace(promise, "0.1", "-1", 1)), "wander"},
		{"samples below nothing", file(strings.Replace(promise, "20", "-1", 1)), "samples"},
		{"a round trip of a year", file(strings.Replace(promise, "0.001", "3e7", 1)), "round trip"},
		{"one link twice", file(promise, promise), "two promises"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(strings.NewReader(tt.text))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestCompare(t *testing.T) {
	p := func(from string, rate float64) Promise {
		return Promise{Link: Link{from, "Y", ""}, Size: Large, Rate: rate, Best: rate, Spread: 0.2}
	}
	before := Contract{[]Promise{p("C", 10e6), p("A", 10e6), p("B", 1e3)}}
	after := Contract{[]Promise{p("A", 11e6), p("C", 4e6), p("D", 2e9)}}
	var lines []string
	for _, d := range Compare(before, after) {
		lines = append(lines, d.String())
	}
	require.Equal(t, []string{
		"B>Y large: gone, was 1 kB/s",
		"C>Y large: 4 MB/s, was 10 MB/s (×0.40)",
		"D>Y large: new, 2 GB/s",
	}, lines)
	require.Empty(t, Compare(before, before))
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(file(promise)))
	f.Add([]byte(file()))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Load(bytes.NewReader(data))
		if err != nil {
			return
		}
		var once, twice bytes.Buffer
		require.NoError(t, c.Store(&once))
		again, err := Load(bytes.NewReader(once.Bytes()))
		require.NoError(t, err)
		require.NoError(t, again.Store(&twice))
		require.Equal(t, once.String(), twice.String())
		_, err = NewWatch(WatchOptions{Mode: Enforce, Contract: c})
		require.NoError(t, err)
	})
}

func TestParseThresholds(t *testing.T) {
	tests := []struct {
		text string
		want []Threshold
	}{
		{"", nil},
		{"X>Y:5MB/s", []Threshold{{From: "X", To: "Y", AnySize: true, Rate: 5e6}}},
		{" X>*:100Mbit/s,\n*>fe80::1@san/small:1.5kB/s ", []Threshold{
			{From: "X", To: "*", AnySize: true, Rate: 12.5e6},
			{From: "*", To: "fe80::1", Network: "san", Size: Small, Rate: 1500}}},
		{"X>Y=8MB/s", []Threshold{{From: "X", To: "Y", AnySize: true, Rate: 8e6}}},
		{"X>Y:1GiB/s", []Threshold{{From: "X", To: "Y", AnySize: true, Rate: 1 << 30}}},
	}
	for _, tt := range tests {
		got, err := ParseThresholds(tt.text)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, got, tt.text)
	}
	for text, want := range map[string]string{
		"X>Y":           "want FROM>TO:RATE",
		"XY:5MB/s":      "no link",
		">Y:5MB/s":      "no link",
		"X>Y>Z:5MB/s":   "no link",
		"X>Y:5MB":       "no rate",
		"X>Y:5/s":       "no rate",
		"X>Y:-5MB/s":    "no rate",
		"X>Y:0MB/s":     "no rate",
		"X>Y:1e400MB/s": "no rate",
		"X>Y:NaNMB/s":   "no rate",
		"X>Y/big:5MB/s": "big",
		"X>Y@:5MB/s":    "no network",
	} {
		_, err := ParseThresholds(text)
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzParseThresholds(f *testing.F) {
	f.Add("X>Y:5MB/s, *>Z@lan/large:0.3Gbit/s")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseThresholds(text)
		if err != nil {
			return
		}
		for _, x := range all {
			again, err := ParseThresholds(x.String())
			require.NoError(t, err, x.String())
			require.Equal(t, []Threshold{x}, again)
		}
	})
}
