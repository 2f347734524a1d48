package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/ganglia"
	"github.com/mpiv/mpiv/sensors/ganglia/gmondtest"
	"github.com/mpiv/mpiv/sensors/path"
)

// A trickler says that its path to the next process delivers 1 MB/s, until the file of
// this variable is there.
const envTrickle = "MPIV_TEST_TRICKLE"

func init() {
	members["trickle"] = func(m *member) {
		m.join()
		fmt.Println("ready")
		go func() {
			const every = 100 * time.Millisecond
			for sent := uint64(0); ; sent += 100_000 {
				var slots sensors.Slots
				slots.Mark(time.Now(), time.Now().Add(every-sensors.SlotTime))
				time.Sleep(every)
				if _, err := os.Stat(os.Getenv(envTrickle)); err == nil {
					m.finish()
					return
				}
				m.send(control.Message{Paths: &control.Paths{Links: []control.PathReading{{Peer: (m.process + 1) % len(m.start.Processes), Size: sensors.Large, Sent: sent,
					Reading: path.Reading{Over: every, Busy: every, Slots: slots, Bytes: 100_000, Limited: true, RTT: time.Millisecond}}}}})
			}
		}()
		for {
			msg, err := m.conn.Receive()
			if err != nil {
				os.Exit(9)
			}
			if msg.Stop != nil {
				return
			}
		}
	}
}

// trickling is a job of three hosts, each of which sends 1 MB/s to the next, and what
// ends it.
func trickling(t *testing.T, thresholds string) (j Job, errs *buffer, end func()) {
	t.Helper()
	j, _, errs = lossy(t, "trickle", 3, 0, 0)
	path := filepath.Join(j.Runtime, "end")
	j.Programs[0].Env = append(j.Programs[0].Env, envTrickle+"="+path)
	var err error
	j.Thresholds, err = sensors.ParseThresholds(thresholds)
	require.NoError(t, err)
	return j, errs, func() { require.NoError(t, os.WriteFile(path, nil, 0o600)) }
}

// A link that delivers less than is demanded by hand breaks its contract, though nothing was
// learned; and that is what views and a gmond are told.
func TestThreshold(t *testing.T) {
	gmond, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer gmond.Close()
	j, errs, end := trickling(t, "b>c:8MB/s,c>*:500kB/s")
	j.Ganglia = gmond.LocalAddr().String()
	a, err := Start(j)
	require.NoError(t, err)
	errs.await(t, "contract broken: b>c large: 1 MB/s", 1)
	ans, err := Ask(a.dir.Path, Question{Op: "contracts"})
	require.NoError(t, err)
	told := map[string]float64{}
	gmond.SetReadDeadline(time.Now().Add(20 * time.Second))
	for _, known := told["c mpiv_to_here_large_broken"]; !known || told["b mpiv_to_c_large_broken"] == 0; _, known = told["c mpiv_to_here_large_broken"] {
		packet := make([]byte, 2048)
		n, _, err := gmond.ReadFrom(packet)
		require.NoError(t, err, "gmond was told %v", told)
		if host, name, value, ok := gmondValue(packet[:n]); ok {
			told[host+" "+name] = value
		}
	}
	time.Sleep(time.Second) // as many readings again
	end()
	require.Zero(t, a.Wait(), "%s", errs)

	require.Equal(t, 1, strings.Count(errs.String(), "contract broken: "), "it is said once: %s", errs)
	require.Contains(t, errs.String(), "where 8 MB/s are demanded")
	require.Equal(t, "enforce", ans.Contracts.Mode)
	var links []string
	for _, s := range ans.Contracts.Links {
		links = append(links, fmt.Sprintf("%v %v %v %v", s.Link, s.Rate, s.ByHand, !s.Broken.IsZero()))
	}
	require.Contains(t, links, "b>c 8e+06 true true")
	require.Contains(t, links, "c>here 500000 true false")

	require.Equal(t, 8e6, told["b mpiv_to_c_large_promised"])
	require.InEpsilon(t, 1e6, told["b mpiv_to_c_large_rate"], 0.01)
	require.Equal(t, 1., told["c mpiv_ranks"])
	require.Positive(t, told["c mpiv_memory_free"])
	require.Zero(t, told["c mpiv_to_here_large_broken"])
}

// What is demanded is demanded by the next head, too, beside what was learned before it.
func TestThresholdUnderAnotherHead(t *testing.T) {
	j, _, _ := trickling(t, "b>c:8MB/s")
	text, err := json.Marshal(plan{Job: j.withDefaults().portable()})
	require.NoError(t, err)
	var p plan
	require.NoError(t, json.Unmarshal(text, &p))
	a := newAgent(p.Job)
	a.hosts, a.processes, err = layout(a.job)
	require.NoError(t, err)
	var learned bytes.Buffer
	back := sensors.Promise{Link: sensors.Link{From: "c", To: "b"}, Size: sensors.Large, Rate: 5e6, Best: 5e6, Spread: 0.1, Samples: 100}
	require.NoError(t, sensors.Contract{Promises: []sensors.Promise{back}}.Store(&learned))
	require.NoError(t, a.recallPromises(learned.Bytes()))
	r := sensors.Reading{At: time.Now(), Over: readingEvery, Busy: readingEvery, Bytes: 200_000, Limited: true, Link: sensors.Link{From: "b", To: "c"}, Size: sensors.Large}
	for range 20 {
		a.contracts.Observe(r)
		r.At = r.At.Add(readingEvery)
	}
	broken := slices.DeleteFunc(a.contracts.Standings(r.At), func(s sensors.Standing) bool { return s.Broken.IsZero() })
	require.Len(t, broken, 1)
	require.True(t, broken[0].ByHand)
	require.Equal(t, 8e6, broken[0].Rate)
	kept := a.contracts.Contract().Promises
	require.Len(t, kept, 1)
	require.Equal(t, back.Link, kept[0].Link)
	require.Equal(t, back.Rate, kept[0].Rate)
}

func TestThresholdsThatMakeNoSense(t *testing.T) {
	for text, c := range map[string]struct {
		change func(*Job)
		says   string
	}{
		"b>d:1MB/s":     {nil, "--contract b>d:1MB/s: the job has no host d: its hosts are here, b, me@c"},
		"b>b:1MB/s":     {nil, "want two hosts"},
		"b>c@lan:1MB/s": {nil, "leave out @lan"},
		"b>c:1MB/s":     {func(j *Job) { j.Contracts = "off" }, "leave one of the two out"},
		"*>c:1MB/s":     {func(j *Job) { j.Options.Survive = "none" }, "nothing watches the links of a job with --survive none"},
		"c>*:1MB/s":     {func(j *Job) { j.Hosts = j.Hosts[:1] }, "the job is on one host"},
		"":              {func(j *Job) { j.Options.Survive, j.Ganglia = "none", "127.0.0.1:8649" }, "--ganglia: nothing watches the links"},
	} {
		j, _, _ := trickling(t, text)
		j.Hosts[2].Name = "me@c"
		if c.change != nil {
			c.change(&j)
		}
		_, err := Start(j)
		require.ErrorContains(t, err, c.says, text)
		var ee *exit.Error
		require.ErrorAs(t, err, &ee, text)
		require.Equal(t, codeUsage, ee.Code)
	}
	j, errs, _ := trickling(t, "c>*:1MB/s")
	j.Hosts[2].Name = "me@c" // without the user it is found
	a := newAgent(j.withDefaults())
	var err error
	a.hosts, a.processes, err = layout(a.job)
	require.NoError(t, err)
	all, err := a.thresholds(sensors.Enforce)
	require.NoError(t, err, "%s", errs)
	require.Equal(t, "me@c", all[0].From)
}

// The real thing: a gmond knows of a broken contract.
func TestReportsToAGmond(t *testing.T) {
	t.Parallel()
	gmond := gmondtest.Start(t)
	j, errs, end := trickling(t, "b>c:8MB/s")
	j.Ganglia = gmond.UDP
	a, err := Start(j)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		all, _ := gmond.Metrics(t)
		return slices.ContainsFunc(all, func(m ganglia.Metric) bool {
			return m.Name == "mpiv_to_c_large_broken" && m.Value == 1
		})
	}, 30*time.Second, 50*time.Millisecond, "%s", errs)
	end()
	require.Zero(t, a.Wait(), "%s", errs)
}

// Where no gmond listens it is said once, and what comes later is sent nevertheless.
func TestNoGmond(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.LocalAddr().String()
	l.Close()
	in, done, ended, told := make(chan []ganglia.Metric), make(chan struct{}), make(chan struct{}), []error{}
	go func() {
		defer close(ended)
		reportTo(addr, in, done, func(err error) { told = append(told, err) })
	}()
	some := []ganglia.Metric{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	for range 5 {
		in <- some
	}
	l, err = net.ListenPacket("udp", addr)
	require.NoError(t, err)
	defer l.Close()
	l.SetReadDeadline(time.Now().Add(10 * time.Second))
	in <- some
	packet := make([]byte, 2048)
	n, _, err := l.ReadFrom(packet)
	require.NoError(t, err)
	require.NotZero(t, n)
	close(done)
	<-ended
	require.Len(t, told, 1)
	require.ErrorContains(t, told[0], "connection refused")
}

// gmondValue reads a packet that carries a value, and of the host the name.
func gmondValue(p []byte) (host, name string, value float64, ok bool) {
	number := func() (n uint32) {
		for _, b := range p[:4] {
			n = n<<8 | uint32(b)
		}
		p = p[4:]
		return n
	}
	text := func() string {
		n := number()
		s := string(p[:n])
		p = p[(n+3)&^3:]
		return s
	}
	if number() != 133 {
		return "", "", 0, false
	}
	_, host, _ = strings.Cut(text(), ":")
	name = text()
	number()
	text()
	_, err := fmt.Sscan(text(), &value)
	return host, name, value, err == nil
}

// A file of contracts that several use is written as it was: for whom it was, and where a link
// to it leads.
func TestContractsFileStaysWhatItWas(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "contracts"), filepath.Join(t.TempDir(), "link")
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, sensors.Contract{}.Store(f))
	require.NoError(t, f.Close())
	require.NoError(t, os.Chmod(file, 0o664))
	require.NoError(t, os.Symlink(file, link))
	w, err := sensors.NewWatch(sensors.WatchOptions{Mode: sensors.Learn})
	require.NoError(t, err)
	a := &Agent{job: Job{ContractsFile: link}, contracts: w}
	a.storeContracts()
	is, err := os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, is.Mode().Type(), "the link is still one")
	is, err = os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o664), is.Mode())
	f, err = os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	_, err = sensors.Load(f)
	require.NoError(t, err, "it is written")
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{file}, names)
}

// Jobs that end at the same time do not take each other's promises away.
func TestContractsOfJobsThatEndAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "contracts")
	const jobs = 20
	var all sync.WaitGroup
	for i := range jobs {
		p := sensors.Promise{Link: sensors.Link{From: "a", To: fmt.Sprint(i)}, Rate: 1e6, Best: 1e6, Spread: 0.1}
		w, err := sensors.NewWatch(sensors.WatchOptions{Mode: sensors.Learn, Contract: sensors.Contract{Promises: []sensors.Promise{p}}})
		require.NoError(t, err)
		all.Go(func() { (&Agent{job: Job{ContractsFile: file}, contracts: w}).storeContracts() })
	}
	all.Wait()
	c, err := loadContracts(file)
	require.NoError(t, err)
	require.Len(t, c.Promises, jobs)
}

func TestContractsFileInNoDirectory(t *testing.T) {
	j, _, _ := trickling(t, "")
	j.ContractsFile = filepath.Join(t.TempDir(), "none", "file")
	_, err := Start(j)
	require.ErrorContains(t, err, "--contracts-file: stat ")
}
