package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/sensors"
)

// all is a snapshot that has every metric.
func all(context.Context) Snapshot {
	return Snapshot{
		Refused: 1, Cut: 2,
		Processes: map[int]*events.Reading{
			0: nil,
			1: {Up: 1e9, Heap: 1 << 20, Goroutines: 7, Parked: 1, Strangers: 3,
				Ranks: []events.RankReading{{Rank: 4, State: "waiting", Waits: 5e8, Sent: 6, Received: 7}},
				Links: []events.LinkReading{{Path: events.Path{Peer: 0, Class: "lan", Network: "tcp", Switches: 2}, RTT: 2e6, Rate: 1e9,
					SentMessages: 8, SentBytes: 9, ReceivedMessages: 10, ReceivedBytes: 11, Resent: 12, Retransmits: 13, Queued: 14, Log: 15, Unexpected: 16}}},
		},
		Contracts: []sensors.Standing{
			{Promise: sensors.Promise{Link: sensors.Link{From: "X", To: "Y"}, Size: sensors.Large, Rate: 12e6}, Seen: 1e6, SeenAt: time.Unix(1e9, 0), Breaches: 2, Broken: time.Unix(1e9, 0)},
			{Promise: sensors.Promise{Link: sensors.Link{From: "Y", To: "X"}}, Learning: 3},
		},
		State: &Standing{Began: time.Unix(1e9, 0), Ranks: 8, Finished: 1, Hosts: 2, Lost: 1, Suspected: true},
	}
}

func TestEveryMetricIsServedAndNamedAsPrometheusWants(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(all))
	families, err := registry.Gather()
	require.NoError(t, err)
	served := map[string]bool{}
	for _, f := range families {
		served[f.GetName()] = true
	}
	for _, m := range Table {
		require.True(t, served[m.Name], m.Name)
	}
	require.Len(t, families, len(Table))
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	for _, m := range Table {
		for _, l := range m.Labels {
			require.NotContains(t, []string{"job", "instance", "host", "mpiv_job"}, l, m.Name)
		}
	}
}

// The documentation has every metric, with its type, labels and meaning.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/mpivrun.md")
	require.NoError(t, err)
	for _, m := range Table {
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			labels[i] = "`" + l + "`"
		}
		require.Contains(t, string(text), fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(labels, ", "), m.Means))
	}
}

func TestServer(t *testing.T) {
	s, err := Serve("127.0.0.1:0", "halo", "a", NewCollector(all))
	require.NoError(t, err)
	defer s.Close()
	get := func(path string) (int, string) {
		r, err := http.Get("http://" + s.Addr().String() + path)
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(text)
	}
	defer http.DefaultClient.CloseIdleConnections()
	code, text := get("/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, `mpiv_link_round_trip_seconds{class="lan",host="a",mpiv_job="halo",network="tcp",peer="0",process="1"} 0.002`)
	require.Contains(t, text, `mpiv_contract_promised_bytes_per_second{from="X",host="a",mpiv_job="halo",size="large",to="Y"} 1.2e+07`)
	require.Contains(t, text, `mpiv_contract_broken{from="X",host="a",mpiv_job="halo",size="large",to="Y"} 1`)
	require.NotContains(t, text, `from="Y"`, "nothing is promised")
	require.Contains(t, text, `go_goroutines{host="a",mpiv_job="halo"}`)
	code, _ = get("/debug/pprof/")
	require.Equal(t, http.StatusNotFound, code)

	_, err = Serve(s.Addr().String(), "halo", "a", NewCollector(all))
	require.ErrorContains(t, err, "the port is taken on this host")

	c, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: a\r\nX: %s\r\n\r\n", strings.Repeat("x", 2*headerBytes))
	c.SetDeadline(time.Now().Add(10 * time.Second))
	answer, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, answer, "431 Request Header Fields Too Large")

	slow, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer slow.Close()
	fmt.Fprint(slow, "GET /metrics HTTP/1.1\r\n") // and no more
	slow.SetDeadline(time.Now().Add(headerTime + 20*time.Second))
	_, err = io.ReadAll(slow)
	require.NoError(t, err, "the server ends it")
}

// Those who hold connections, with a request now and then or without any, keep no scrape out, and are few.
func TestWhoHoldsConnectionsKeepsNoScrapeOut(t *testing.T) {
	s, err := Serve("127.0.0.1:0", "job", "host", NewCollector(all))
	require.NoError(t, err)
	defer s.Close()
	var held []net.Conn
	for i := range 3 * connections {
		c, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		if i%2 == 0 {
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			c.SetReadDeadline(time.Now().Add(10 * time.Second)) // those before are not waited for
			_, err := bufio.NewReader(c).ReadString('\n')
			require.NoError(t, err)
		}
		held = append(held, c)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + s.Addr().String() + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "mpiv_job_ranks")
	open := 0
	for _, c := range held {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	require.LessOrEqual(t, open, connections)
}

func TestTargets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "targets.json")
	require.NoError(t, WriteTargets(path, []string{"b:9400", "a:9400", "b:9400"}))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `[{"targets": ["a:9400", "b:9400"]}]`, string(text))
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.ErrorContains(t, WriteTargets("/nowhere/at/all", nil), "write the targets for Prometheus")
}
