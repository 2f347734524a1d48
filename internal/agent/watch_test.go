package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
)

func init() {
	// It sends readings when it is asked to, two at a time where more are wanted,
	// until it is stopped.
	members["counts"] = func(m *member) {
		m.join()
		fmt.Println("ready")
		n := uint64(0)
		read := func(id uint64) {
			n++
			peer := (m.process + 1) % len(m.start.Processes)
			m.send(control.Message{Report: &control.Report{ID: id, Process: m.process, Reading: &events.Reading{
				Up: int64(n) * 1e9, Heap: 1 << 20, Goroutines: 5, Strangers: n - 1,
				Ranks: []events.RankReading{{Rank: m.process, State: "running", Sent: n}},
				Links: []events.LinkReading{{Path: events.Path{Peer: peer, Network: "mem", Class: "host"}, SentMessages: n}},
			}}})
		}
		for {
			msg, err := m.conn.Receive()
			if err != nil || msg.Stop != nil {
				return
			}
			if w := msg.Watch; w != nil {
				read(w.ID)
				if w.Every > 0 {
					read(w.ID)
				}
			}
		}
	}
}

// kinds is the kinds of all, but for readings.
func kinds(all []events.Event) (ks []events.Kind) {
	for _, e := range all {
		if e.Kind != events.ProcessReading {
			ks = append(ks, e.Kind)
		}
	}
	return ks
}

// A collected is what was heard of a job.
type collected struct {
	mu  sync.Mutex
	all []events.Event
}

func (c *collected) add(e events.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, e)
	return nil
}

func (c *collected) has(kind events.Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.all, func(e events.Event) bool { return e.Kind == kind })
}

// last is the number of the newest event.
func (c *collected) last() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) == 0 {
		return 0
	}
	return c.all[len(c.all)-1].Seq
}

func TestEventsOfAJobThatFails(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"here", "there"} {
		t.Run(place, func(t *testing.T) {
			j, _, errs := jobOf(t, 3, "exit 3 in 1")
			if place == "there" {
				elsewhere(t, &j, "there")
			}
			j.Events = filepath.Join(t.TempDir(), "events.jsonl")
			require.Equal(t, 3, runJob(t, j), "%s", errs)
			s, all := readEvents(t, j.Events)
			require.Equal(t, events.PhaseEnded, s.Phase)
			require.Equal(t, 3, s.Ended.Code)
			require.Contains(t, s.Verdict.Text, "rank 1 on host "+place+" exited with code 3")
			require.Equal(t, "exited with code 3", s.Processes[1].Exit)
			require.Equal(t, place, s.Processes[2].Host)
			ks := kinds(all)
			require.Equal(t, events.JobStarted, ks[0])
			require.Equal(t, events.JobEnded, ks[len(ks)-1])
			for _, kind := range []events.Kind{events.HostJoined, events.ProcessStarted, events.ProcessHello, events.ProcessReady, events.AllReady,
				events.ProcessExited, events.JobVerdict} {
				require.Contains(t, ks, kind)
			}
			for i, e := range all {
				require.Equal(t, uint64(i+1), e.Seq, "numbers have no gaps")
			}
		})
	}
}

// What is no UTF-8 is written so that it can be read.
func TestEventsOfAProgramWithAnOddName(t *testing.T) {
	j, _, _ := shell(t, 1, "exit 0")
	j.Programs[0].Args = append(j.Programs[0].Args, "\xff<&>\u2028")
	j.Events = filepath.Join(t.TempDir(), "events.jsonl")
	require.Zero(t, runJob(t, j))
	s, _ := readEvents(t, j.Events)
	require.Equal(t, []string{"sh -c exit 0 \ufffd<&>\u2028"}, s.Job.Programs)
}

// readEvents reads a file of events.
func readEvents(t *testing.T, path string) (s events.State, all []events.Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		e, err := events.Parse(line)
		require.NoError(t, err, "%s", line)
		s.Apply(e)
		all = append(all, e)
	}
	return s, all
}

func TestWatch(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"here", "there"} {
		t.Run(place, func(t *testing.T) {
			j, out, errs := jobOf(t, 2, "counts")
			dir := j.Runtime
			if place == "there" {
				elsewhere(t, &j, "there")
				dir = filepath.Join(dir, "mpiv") // its agent there
			}
			a, err := Start(j)
			require.NoError(t, err)
			out.await(t, "ready\n", 2)
			var heard collected
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			watching := make(chan error, 1)
			go func() { watching <- Watch(ctx, filepath.Join(dir, a.Name()), heard.add) }()
			require.Eventually(t, func() bool { return heard.has(events.StrangerRefused) && heard.has(events.LinkPath) }, 20*time.Second, 10*time.Millisecond,
				"each process counts one stranger more with each reading")
			a.Signal(syscall.SIGUSR1) // which Go ignores
			require.Eventually(t, func() bool { return heard.has(events.SignalPassed) }, 20*time.Second, 10*time.Millisecond)
			a.Abort("enough")
			require.Equal(t, 1, a.Wait())
			require.NoError(t, <-watching, "%s", errs)
			require.Equal(t, events.JobStarted, heard.all[0].Kind)
			require.True(t, slices.IsSortedFunc(heard.all, func(a, b events.Event) int { return int(a.Seq) - int(b.Seq) }))
			if place == "here" {
				require.Equal(t, events.JobEnded, heard.all[len(heard.all)-1].Kind)
			}
		})
	}
}

func TestNobodyWatchesNobodyReads(t *testing.T) {
	j, out, _ := jobOf(t, 1, "counts")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 1)
	reading := func() bool {
		is := make(chan bool)
		a.post(func() { is <- a.reader.reading })
		return <-is
	}
	require.False(t, reading())
	ctx, stop := context.WithCancel(t.Context())
	var heard collected
	watching := make(chan error, 1)
	go func() { watching <- Watch(ctx, filepath.Join(j.Runtime, a.Name()), heard.add) }()
	require.Eventually(t, func() bool { return heard.has(events.ProcessReading) }, 20*time.Second, time.Millisecond)
	require.True(t, reading())
	stop()
	require.NoError(t, <-watching)
	require.Eventually(t, func() bool { return !reading() }, 20*time.Second, time.Millisecond)
	a.Abort("enough")
	a.Wait()
}

// Who does not read loses its subscription; the job and the others go on.
func TestASlowSubscriberIsCut(t *testing.T) {
	j, out, _ := jobOf(t, 1, "counts")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 1)
	slow, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: rundir.AskSocket(filepath.Join(j.Runtime, a.Name())), Net: "unix"})
	require.NoError(t, err)
	defer slow.Close()
	fmt.Fprintln(slow, `{"Op":"watch"}`)
	first := make([]byte, 1)
	_, err = io.ReadFull(slow, first) // it is subscribed
	require.NoError(t, err)
	var heard collected
	watching := make(chan error, 1)
	go func() { watching <- Watch(t.Context(), filepath.Join(j.Runtime, a.Name()), heard.add) }()
	require.Eventually(t, func() bool { return heard.has(events.JobStarted) }, 20*time.Second, time.Millisecond)
	cuts := func() uint64 { // after 100 events more, which the one who reads has then read
		type now struct{ cuts, seq uint64 }
		got := make(chan now)
		a.post(func() {
			for range 100 {
				a.emitSignal(syscall.SIGUSR2)
			}
			got <- now{a.news.cuts, a.news.state.Seq}
		})
		n := <-got
		require.Eventually(t, func() bool { return heard.last() >= n.seq }, 20*time.Second, time.Millisecond)
		return n.cuts
	}
	for n := 0; cuts() == 0; n++ {
		require.Less(t, n, 10_000, "it is never too slow")
	}
	text, err := io.ReadAll(slow)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last, err := events.Parse([]byte(lines[len(lines)-1]))
	require.NoError(t, err, "what was not sent in time is cut off at a line, when who reads comes back")
	require.Equal(t, events.StreamCut, last.Kind)
	require.Contains(t, last.Text, "4096 events behind")
	require.EqualValues(t, 1, cuts(), "who reads is not cut")
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	require.NoError(t, <-watching)
	require.True(t, heard.has(events.JobEnded), "who reads hears it to the end")
}

// Who has asked for a trace and is stopped does not keep the job from its end.
func TestWhoAskedForATraceIsStopped(t *testing.T) {
	j, out, errs := jobOf(t, 2, "wait")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 2)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: a.asked.Addr().String(), Net: "unix"})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, json.NewEncoder(c).Encode(Question{Op: "trace", For: time.Hour}))
	var begun Answer
	require.NoError(t, json.NewDecoder(c).Decode(&begun))
	require.Empty(t, begun.Error)
	long := strings.Repeat("x", 1000)
	for range 1000 { // more than the connection holds
		a.post(func() {
			a.emitOf(a.processes[0], events.Event{Kind: events.RankStayed, Rank: new(0), Text: long})
		})
	}
	a.Abort("enough")
	ended := make(chan int, 1)
	go func() { ended <- a.Wait() }()
	select {
	case code := <-ended:
		require.Equal(t, 1, code, "%s", errs)
	case <-time.After(4 * traceParting):
		t.Errorf("the job has not ended: %s", errs)
		c.Close()
		<-ended
	}
}

func TestADiskThatIsFullIsOneWarning(t *testing.T) {
	j, _, errs := jobOf(t, 2, "finish")
	j.Events = "/dev/full"
	require.Zero(t, runJob(t, j))
	require.Equal(t, 1, strings.Count(errs.String(), "mpivrun: "), "%s", errs)
	require.Contains(t, errs.String(), "events could not be written, and end somewhere: write /dev/full: no space left on device")
}

func TestAFileForEventsThatCannotBe(t *testing.T) {
	j, _, _ := jobOf(t, 1, "finish")
	j.Events = filepath.Join(t.TempDir(), "there", "is", "none")
	_, err := Start(j)
	require.ErrorContains(t, err, "open the file for events")
}

// A pipe that nobody reads does not keep the job from ending.
func TestEventsIntoAPipeThatIsFull(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	j, _, errs := shell(t, 1, "exit 0")
	j.Events = path
	_, err := Start(j)
	require.ErrorContains(t, err, "no such device or address", "nobody reads it")
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer reader.Close()
	j.Programs[0].Args = []string{"-c", "exit 0", strings.Repeat("x", 100<<10)} // more than a pipe holds
	require.Zero(t, runJob(t, j))
	require.Contains(t, errs.String(), "events could not be written")
}

// A flood of strangers is an event a second.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	j, out, _ := jobOf(t, 1, "wait")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 1)
	var heard collected
	watching := make(chan error, 1)
	go func() { watching <- Watch(t.Context(), filepath.Join(j.Runtime, a.Name()), heard.add) }()
	for range 1000 {
		a.post(func() { a.refusedOne("here", "it has no certificate") })
	}
	total := func() (n uint64, events_ int) {
		heard.mu.Lock()
		defer heard.mu.Unlock()
		for _, e := range heard.all {
			if e.Kind == events.StrangerRefused {
				n = e.Refused.Total
				events_++
			}
		}
		return n, events_
	}
	require.Eventually(t, func() bool { n, _ := total(); return n == 1000 }, 20*time.Second, time.Millisecond)
	_, n := total()
	require.LessOrEqual(t, n, 3)
	a.Abort("enough")
	a.Wait()
	require.NoError(t, <-watching)
}

func TestMetricsOfEveryHost(t *testing.T) {
	j, out, errs := jobOf(t, 2, "counts")
	elsewhere(t, &j, "b@127.0.0.1")
	j.Hosts = append([]Host{{Name: "here", Here: true, Slots: 1}}, j.Hosts...)
	j.Metrics, j.Targets = ":0", filepath.Join(t.TempDir(), "targets.json")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 2)
	errs.await(t, "mpivrun: metrics of host ", 2)
	targets, err := os.ReadFile(j.Targets)
	require.NoError(t, err)
	require.Regexp(t, `^\[\n  {\n    "targets": \[\n      "127.0.0.1:\d+",\n      "here:\d+"\n    \]\n  }\n\]\n$`, string(targets))
	_, rest, _ := strings.Cut(string(targets), "here:")
	port, _, _ := strings.Cut(rest, `"`)
	here := scrapeOf(t, "127.0.0.1:"+port)
	require.Contains(t, here, `mpiv_process_up{host="here",mpiv_job="test",process="0"} 1`)
	require.Contains(t, here, `mpiv_job_ranks{host="here",mpiv_job="test"} 2`)
	require.NotContains(t, here, `process="1"}`)
	_, rest, _ = strings.Cut(string(targets), "127.0.0.1:")
	port, _, _ = strings.Cut(rest, `"`)
	there := scrapeOf(t, "127.0.0.1:"+port)
	require.Contains(t, there, `mpiv_process_up{host="b@127.0.0.1",mpiv_job="test",process="1"} 1`)
	require.Contains(t, there, `mpiv_link_sent_messages_total{host="b@127.0.0.1",mpiv_job="test",peer="0",process="1"} `)
	require.NotContains(t, there, "mpiv_job_ranks", "the first agent tells of the job")
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	targets, err = os.ReadFile(j.Targets)
	require.NoError(t, err)
	require.Equal(t, "[]\n", string(targets), "nothing is left to scrape")
}

func scrapeOf(t *testing.T, addr string) string {
	t.Helper()
	r, err := http.Get("http://" + addr + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode, "%s", text)
	http.DefaultClient.CloseIdleConnections()
	return string(text)
}

func TestMetricsAtAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	j, _, _ := jobOf(t, 1, "finish")
	j.Metrics = l.Addr().String()
	_, err = Start(j)
	require.ErrorContains(t, err, "the port is taken on this host; give another, or port 0")
	// On another host it is a warning: this one has the same address.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	j, _, errs := jobOf(t, 2, "finish")
	elsewhere(t, &j, "b")
	j.Hosts = append([]Host{{Name: "here", Here: true, Slots: 1}}, j.Hosts...)
	j.Metrics = free.Addr().String()
	free.Close()
	require.Zero(t, runJob(t, j))
	require.Contains(t, errs.String(), "mpivrun: host b serves no metrics: --metrics "+j.Metrics+": the port is taken on this host")
}

// A process that does not answer is not up, and does not hold up the scrape for long.
func TestScrapeOfAProcessThatIsSilent(t *testing.T) {
	t.Parallel()
	j, out, _ := jobOf(t, 1, "wait")
	j.Metrics = "127.0.0.1:0"
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 1)
	require.Contains(t, scrapeOf(t, a.metrics.Addr().String()), `mpiv_process_up{host="here",mpiv_job="test",process="0"} 0`)
	a.Abort("enough")
	a.Wait()
}
