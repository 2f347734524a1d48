package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// halo is a job of n processes of two ranks on two hosts, which has been read twice.
func halo(n int) *events.State {
	s, seq := new(events.State), uint64(0)
	apply := func(e events.Event) {
		seq++
		e.V, e.Seq, e.Time = events.Version, seq, noon
		if !s.Apply(e) {
			panic(fmt.Sprintf("%s tells nothing", events.Append(nil, e)))
		}
	}
	host := func(p int) string { return []string{"a", "b.example.org"}[p%2] }
	j := events.Job{Name: "halo-4711", Began: noon, Host: "a", PID: 7, Programs: []string{"halo"}, Ranks: 2 * n, Hosts: []string{"a", "b.example.org"}}
	for p := range n {
		j.Processes = append(j.Processes, events.Placed{Host: host(p), Ranks: []int{2 * p, 2*p + 1}})
	}
	apply(events.Event{Kind: events.JobStarted, Job: &j})
	for i := range 2 {
		apply(events.Event{Kind: events.HostJoined, Host: j.Hosts[i], Agent: &events.Agent{PID: 7, Cores: 4}})
	}
	for p := range n {
		apply(events.Event{Kind: events.ProcessStarted, Host: host(p), Process: new(p), Started: &events.Started{PID: 100 + p}})
	}
	apply(events.Event{Kind: events.AllReady})
	for read := range uint64(2) {
		for p := range n {
			r := &events.Reading{Up: int64(read+1) * 1e9, Heap: 5 << 20, Goroutines: 12, Parked: 1,
				Ranks: []events.RankReading{
					{Rank: 2 * p, State: "running", Sent: 1000 * read, Received: 900 * read},
					{Rank: 2*p + 1, State: "waiting", Op: "Recv", Where: "halo.go:40", For: "for a message from rank 0, tag 5, on world", Waits: 63e8, Sent: 5, Received: 6},
				},
				Links: []events.LinkReading{{Path: events.Path{Peer: (p + 1) % n, Class: "lan", Network: "tcp"}, RTT: 123e3,
					SentMessages: 1000 * read, SentBytes: 1234567 * read * uint64(p+1), ReceivedMessages: 900 * read, ReceivedBytes: 77 * read, Resent: 3, Log: 4096}},
			}
			apply(events.Event{Kind: events.ProcessReading, Host: host(p), Process: new(p), Reading: r})
		}
	}
	apply(events.Event{Kind: events.RankFinished, Host: "a", Process: new(0), Rank: new(0)})
	return s
}

func shown(v screen, s *events.State) string {
	lines := v.lines(s, noon.Add(64*time.Second))
	for i, l := range lines {
		lines[i] = strings.TrimRight(ansi.Strip(l), " ")
	}
	return strings.Join(lines, "\n")
}

func TestTopOnASmallTerminal(t *testing.T) {
	require.Equal(t, ` halo-4711  running 1m04s   4 ranks in 2 processes on 2 hosts          12:01:04
 2.00k msg/s  3.70 MB/s between processes   2 waiting, 1 finished of 4, 6 resent

HOST           IS     CORES  PROCESSES  RANKS  MSG/s    OUT/s  IN/s  REFUSED
a              there      4          1      2  1.00k  1.23 MB  77 B        0
b.example.org  there      4          1      2  1.00k  2.47 MB  77 B        0

RANK  IS        OUT/s  IN/s  IN CALL                                       HOST
   0  finished  1.00k   900                                                a
   1  waiting       0     0    6.3 s Recv (halo.go:40) from rank 0, tag 5  a
   2  running   1.00k   900                                                b
   3  waiting       0     0    6.3 s Recv (halo.go:40) from rank 0, tag 5  b

RANKS  WITH  PATH     MSG/s    OUT/s  IN/s     RTT      LOG  QUEUE  RESENT
2-3    0-1   tcp lan  1.90k  2.47 MB  77 B  123 µs  4.10 kB      0       3
0-1    2-3   tcp lan  1.90k  1.23 MB  77 B  123 µs  4.10 kB      0       3







q quit  1 [all]  2 ranks  3 processes  4 links  5 hosts  s sort: number`, shown(screen{width: 80, height: 24}, halo(2)))
}

func TestTopFitsEveryTerminal(t *testing.T) {
	for _, n := range []int{1, 20} {
		s := halo(n)
		for width := 1; width < 130; width += 21 {
			for height := 1; height < 60; height += 11 {
				for v := (screen{width: width, height: height}); v.page < pages; v.page++ {
					for _, v.skip = range []int{0, 1000} {
						lines := v.lines(s, noon)
						require.Len(t, lines, height, "%+v", v)
						for _, l := range lines {
							require.LessOrEqual(t, ansi.StringWidth(l), width, "%+v: %q", v, l)
						}
					}
				}
			}
		}
	}
}

// Nor is there more to skip where a terminal has no room for rows.
func TestTopScrollsOnALowTerminal(t *testing.T) {
	for height := range 12 {
		for v := (screen{width: 80, height: height, skip: 1000}); v.page < pages; v.page++ {
			require.NotPanics(t, func() { require.Len(t, v.lines(halo(3), time.Now()), max(height, 1)) }, "page %d of %d lines", v.page, height)
		}
	}
}

func TestTopScrollsAndSorts(t *testing.T) {
	s := halo(40)
	text := shown(screen{page: pageRanks, width: 80, height: 24, skip: 10}, s)
	require.Contains(t, text, "\n  10  running")
	require.Contains(t, text, "11 to 28 of 80")
	text = shown(screen{page: pageRanks, width: 80, height: 24, skip: 1000}, s)
	require.Contains(t, text, "\n  79  waiting", "the end can be seen")
	text = shown(screen{page: pageLinks, order: byRate, width: 80, height: 24}, s)
	require.Less(t, strings.Index(text, "\n78-79  0-1 "), strings.Index(text, "\n76-77  78-79 "))
	text = shown(screen{page: pageRanks, order: byWait, width: 80, height: 24}, s)
	require.Contains(t, strings.Split(text, "\n")[4], "   1  waiting")
}

func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		n    float64
		want string
	}{{0, "0"}, {7, "7"}, {0.25, "0.25"}, {999, "999"}, {999.6, "1.00k"}, {34210, "34.2k"}, {99960, "100k"}, {999600, "1.00M"}, {1.5e15, "1500T"}} {
		require.Equal(t, c.want, amount(c.n), "%v", c.n)
	}
	require.Equal(t, "812 B", ofBytes(812))
	require.Equal(t, "34.2 kB", ofBytes(34210))
	require.Equal(t, "1.00 MB", ofBytes(999600))
}

// A job that runs, seen in every way that there is.
var shmInUse = regexp.MustCompile(`\n0 +1 +shm host +`)

func TestViewsOfARunningJob(t *testing.T) {
	dir := t.TempDir()
	file, targets := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "targets.json")
	stop := filepath.Join(dir, "stop")
	c := mpivrun(t, "-n", "2", "--events", file, "--metrics", "127.0.0.1:0", "--metrics-targets", targets, "-x", envProgram+"="+stop, self(t))
	require.NoError(t, c.Start())
	var links string
	require.Eventually(t, func() bool {
		_, links, _ = result(t, mpivrun(t, "ps", "--links"))
		return shmInUse.MatchString(links) // the engine has a connection a moment before it is told
	}, 20*time.Second, 50*time.Millisecond, "%s", &links)
	_, text, _ := result(t, mpivrun(t, "ps", "--links", "--json"))
	require.Contains(t, text, `"sent_bytes": `)

	address, err := os.ReadFile(targets)
	require.NoError(t, err)
	at := strings.Split(string(address), `"`)[3]
	text = get(t, "http://"+at+"/metrics")
	require.Regexp(t, `\nmpiv_link_sent_messages_total{host="[^"]+",mpiv_job="[^"]+",peer="1",process="0"} [1-9]`, text)
	require.Regexp(t, `\nmpiv_rank_received_messages_total{host="[^"]+",mpiv_job="[^"]+",process="1",rank="1"} [1-9]`, text)

	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	var errs bytes.Buffer
	unwritten := mpivrun(t, "top")
	unwritten.Stdout, unwritten.Stderr = full, &errs
	require.Error(t, unwritten.Run())
	require.Contains(t, errs.String(), "no space left on device")

	top := mpivrun(t, "top")
	lines, err := top.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, top.Start())
	buf := make([]byte, 200)
	n, err := lines.Read(buf)
	require.NoError(t, err)
	require.Regexp(t, `^\d\d:\d\d:\d\d \S+ running [\d.]+ \S+: `, string(buf[:n]))
	stream := mpivrun(t, "events")
	streamed := make(chan string, 1)
	go func() { out, _ := stream.Output(); streamed <- string(out) }()
	time.Sleep(100 * time.Millisecond) // it has begun, most likely; if not it says that there is no job
	require.NoError(t, os.WriteFile(stop, nil, 0o600))
	require.NoError(t, c.Wait())
	rest := make([]byte, 64<<10)
	all := ""
	for n, err := lines.Read(rest); err == nil; n, err = lines.Read(rest) {
		all += string(rest[:n])
	}
	require.NoError(t, top.Wait())
	require.Contains(t, all, "has ended after ")
	require.Contains(t, all, "with exit code 0")
	if text := <-streamed; text != "" {
		require.Contains(t, text, `"kind":"job-ended","ended":{"code":0,`)
	}

	var s events.State
	for _, line := range fileLines(t, file) {
		e, err := events.Parse([]byte(line))
		require.NoError(t, err)
		s.Apply(e)
	}
	require.Equal(t, events.PhaseEnded, s.Phase)
	require.Equal(t, 2, s.FinishedRanks())
	require.NotZero(t, s.Processes[0].Reading.Links[0].SentMessages)
	require.Equal(t, "shm", s.Processes[0].Paths[1].Network)
}
