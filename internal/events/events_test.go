package events

import (
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/leader"
)

var epoch = time.Date(2026, 3, 4, 5, 6, 7, 8900, time.UTC)

// of is an event of that kind with all that it needs, of process p and its first
// rank.
func of(seq uint64, kind Kind, p int) Event {
	e := Event{V: Version, Seq: seq, Time: epoch.Add(time.Duration(seq) * time.Millisecond), Kind: kind}
	i := slices.IndexFunc(Kinds, func(d Description) bool { return d.Kind == kind })
	d := Kinds[i]
	if d.Host {
		e.Host = hostOf(p)
	}
	if d.Process {
		e.Process = new(p)
	}
	if d.Rank {
		e.Rank = new(2 * p)
	}
	switch d.Payload {
	case "job":
		e.Job = &Job{Name: "halo", Host: "a", PID: 7, Programs: []string{"halo <big> & fast"}, Ranks: 6, Hosts: []string{"a", "b"}}
		for i := range 3 {
			e.Job.Processes = append(e.Job.Processes, Placed{hostOf(i), []int{2 * i, 2*i + 1}})
		}
	case "agent":
		e.Agent = &Agent{PID: 8, Cores: 2, Address: "10.0.0.2"}
	case "started":
		e.Started = &Started{PID: 100 + p}
	case "exited":
		e.Exited, e.Text = &Exited{Code: 137, Signal: 9}, "was killed by signal 9 (killed)"
	case "failed":
		e.Failed, e.Text = &Failed{Code: 7}, "the matrix\nis singular"
	case "moved":
		e.Moved, e.Text = &Moved{From: (p + 1) % 3, Epoch: uint32(seq), Lost: true}, "rank 2 on host a was killed by signal 9 (killed)"
	case "arrived":
		e.Arrived = &Arrived{Bytes: 4 << 20, Stood: 2e6}
	case "path":
		e.Path = &Path{Peer: int(seq % 3), Class: "lan", Network: "tcp", Local: "tcp:10.0.0.1:2", Remote: "tcp:10.0.0.2:3", Since: epoch, Why: "shm is only on one host", Switches: int(seq)}
	case "refused":
		e.Refused = &Refused{Total: seq}
	case "signal":
		e.Signal, e.Text = &Signal{Number: 10}, "user defined signal 1"
	case "fault":
		e.Fault, e.Text = &Fault{Fault: "kill 2@5s", Step: "begun", PID: 100 + p}, "kill 2@5s: rank 2"
	case "verdict":
		e.Verdict = &Verdict{Code: 7}
	case "ended":
		e.Ended = &Ended{Code: 7, Lived: 1e9}
	case "decision":
		e.Decision = &leader.Record{ID: seq, At: epoch, Seen: []string{"X→Y: 1 MB/s of 12 MB/s"}, Blamed: "what host X sends", Verdict: leader.Flood, Chosen: "move one rank",
			Options: []leader.Option{{What: "nothing"}, {What: "move one rank", Benefit: 50, Cost: 0.2}}, Plans: []leader.Planned{{ID: 1, What: "move rank 0 from X/0 to Z/0", Cost: 0.2}}}
	case "breach":
		e.Breach, e.Text = &Breach{From: "a", To: "b", Promised: 12e6, Seen: 1e6, Since: epoch}, "a→b: 1 MB/s of 12 MB/s"
	case "reading":
		e.Reading = &Reading{Up: int64(seq) * 1e6, Heap: 4 << 20, Goroutines: 9,
			Ranks: []RankReading{{Rank: 2 * p, State: "waiting", Op: "Recv", Where: "main.go:12", For: "for a message from rank 0", Waits: 12345, Sent: 10 * seq, Received: seq}},
			Links: []LinkReading{{Path: Path{Peer: (p + 1) % 3, Network: "shm", Class: "host"}, RTT: 4000, Rate: 1.5e9, SentMessages: 100 * seq, SentBytes: 800 * seq,
				Candidates: []Candidate{{Class: "lan", Network: "tcp", State: "idle"}}}}}
	}
	return e
}

func hostOf(p int) string {
	if p == 2 {
		return "b"
	}
	return "a"
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for i, d := range Kinds {
		line := Append(nil, of(uint64(i+1), d.Kind, 1))
		e, err := Parse(line)
		require.NoError(t, err, "%s", line)
		require.Equal(t, of(uint64(i+1), d.Kind, 1), e)
		require.Equal(t, string(line), string(Append(nil, e)))
	}
}

func TestWhatJSONHasNotIsLeftOut(t *testing.T) {
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		e, want := of(1, ProcessReading, 1), of(1, ProcessReading, 1)
		e.Reading.Links[0].Rate, want.Reading.Links[0].Rate = x, 0
		line := Append([]byte("before\n"), e)
		require.Equal(t, "before\n"+string(Append(nil, want)), string(line))
		require.NotContains(t, string(line), `"rate"`)

		e, want = of(2, Decided, 0), of(2, Decided, 0)
		e.Decision.Options[1].Cost, want.Decision.Options[1].Cost = x, 0
		e.Decision.Seen, want.Decision.Seen = []string{}, []string{}
		e.Decision.Measured, want.Decision.Measured = &leader.Measured{Before: x, Now: 2}, &leader.Measured{Now: 2}
		line = Append(nil, e)
		require.Equal(t, string(Append(nil, want)), string(line))
		_, err := Parse(line)
		require.NoError(t, err)
		require.NotZero(t, e.Decision.Options[1].Cost, "it is the event of others, too")
	}
	e, want := of(1, LinkBreach, 0), of(1, LinkBreach, 0)
	e.Breach.Since, want.Breach.Since = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}
	require.Equal(t, string(Append(nil, want)), string(Append(nil, e)))
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, line, says string }{
		{"nothing", "", "no event"},
		{"another version", `{"v":2,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"all-ready"}`, "version 2; this mpivrun reads version 1"},
		{"a field that is not known", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"all-ready","wind":3}`, "another version"},
		{"a kind that is not known", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"all-steady"}`, "no known kind"},
		{"no number", `{"v":1,"seq":0,"time":"2026-03-04T05:06:07Z","kind":"all-ready"}`, "no number"},
		{"no host", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"host-lost"}`, "names no host"},
		{"no process", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"process-ready","host":"a"}`, "of whom"},
		{"no payload", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"job-ended"}`, `not "ended"`},
		{"another payload", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"all-ready","ended":{"code":0,"lived_ns":1}}`, `"ended"`},
		{"two in a line", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07Z","kind":"all-ready"} {}`, "no event"},
		{"other order", `{"seq":1,"v":1,"time":"2026-03-04T05:06:07Z","kind":"all-ready"}`, "not written as mpivrun does"},
		{"another zone", `{"v":1,"seq":1,"time":"2026-03-04T05:06:07+00:00","kind":"all-ready"}`, "not written as mpivrun does"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.line))
			require.ErrorContains(t, err, c.says)
		})
	}
}

func FuzzParse(f *testing.F) {
	for i, d := range Kinds {
		f.Add(Append(nil, of(uint64(i+1), d.Kind, 1)))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Parse(line)
		if err != nil {
			return
		}
		if again := Append(nil, e); string(again) != string(line) && string(again) != string(line)+"\n" {
			t.Fatalf("Parse(%q) prints %q", line, again)
		}
		s := State{}
		s.Apply(of(1, JobStarted, 0))
		s.Apply(e) // whatever it says, it breaks nothing
	})
}

// run is a State of the events of seed, in a random order but for the first.
func run(seed uint64) (s State, n int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	s.Apply(of(1, JobStarted, 0))
	for _, seq := range rng.Perm(rng.IntN(80)) { // as if several streams were read
		d := Kinds[1+rng.IntN(len(Kinds)-2)] // not JobStarted, not StreamCut
		if d.Kind == ProcessAdded {          // it comes before all others of the process
			continue
		}
		if s.Apply(of(uint64(2+seq), d.Kind, rng.IntN(4))) {
			n++
		}
	}
	return s, n
}

// plain is s without what Events does not tell.
func plain(s State) State {
	s.Seq, s.At = 0, time.Time{}
	s.Processes = slices.Clone(s.Processes)
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Reading != nil {
			p.Refused = max(p.Refused, p.Reading.Strangers)
		}
		p.Reading, p.Before, p.ReadAt, p.readSeq = nil, nil, time.Time{}, 0
	}
	return s
}

func TestEventsTellTheState(t *testing.T) {
	applied := 0
	for seed := range uint64(2000) {
		s, n := run(seed)
		applied += n
		var again State
		for _, e := range s.Events() {
			if !again.Apply(e) {
				t.Fatalf("seed %d: %s tells nothing", seed, Append(nil, e))
			}
		}
		if a, b := plain(s), plain(again); !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d: the events of a state tell of\n%+v %+v, want\n%+v %+v", seed, b.Hosts, b.Processes, a.Hosts, a.Processes)
		}
		for _, e := range s.Events() {
			require.False(t, again.Apply(e), "seed %d: %s was applied twice", seed, e.Kind)
		}
	}
	require.Greater(t, applied, 20000)
}

func TestPhases(t *testing.T) {
	var s State
	seq := uint64(0)
	apply := func(kind Kind, p int, change ...func(*Event)) {
		seq++
		e := of(seq, kind, p)
		for _, c := range change {
			c(&e)
		}
		require.True(t, s.Apply(e), "%s", Append(nil, e))
	}
	rank := func(r int) func(*Event) { return func(e *Event) { e.Rank = &r } }
	require.False(t, s.Apply(of(1, AllReady, 0)), "there is no job yet")
	apply(JobStarted, 0)
	require.Equal(t, PhaseStarting, s.Phase)
	apply(ProcessStarted, 0)
	require.Equal(t, PhaseRunning, s.Processes[0].Phase, "it may be no mpiv program")
	apply(ProcessHello, 0)
	require.Equal(t, PhaseStarting, s.Processes[0].Phase)
	apply(AllReady, 0)
	require.Equal(t, PhaseRunning, s.Processes[0].Phase)
	require.Equal(t, PhaseRunning, s.Phase)
	apply(RankFinished, 0)
	require.Equal(t, PhaseRunning, s.Processes[0].Phase)
	apply(RankFinished, 0, rank(1))
	require.Equal(t, PhaseFinished, s.Processes[0].Phase)
	require.Equal(t, 2, s.FinishedRanks())
	apply(JobVerdict, 0)
	require.Equal(t, PhaseEnding, s.Phase)
	apply(ProcessExited, 0)
	require.Equal(t, PhaseExited, s.Processes[0].Phase)
	apply(JobEnded, 0)
	require.Equal(t, PhaseEnded, s.Phase)
	require.False(t, s.Apply(of(100, ProcessReady, 3)), "there is no process 3")
	odd := of(101, RankFinished, 0)
	odd.Rank = new(6)
	require.False(t, s.Apply(odd), "there is no rank 6")
}

func TestRanksMoveAndProcessesCome(t *testing.T) {
	var s State
	require.True(t, s.Apply(of(1, JobStarted, 0)))
	require.True(t, s.Apply(of(2, ProcessAdded, 3)))
	require.False(t, s.Apply(of(3, ProcessAdded, 5)), "4 is next")
	e := of(4, RankMoved, 3)
	e.Rank = new(1)
	require.True(t, s.Apply(e))
	require.Equal(t, []int{0}, s.Processes[0].Ranks)
	require.Equal(t, []int{1}, s.Processes[3].Ranks)
}

// A rank may finish, and be needed again: it goes on elsewhere, and finishes there.
func TestARankThatFinishesTwiceIsOne(t *testing.T) {
	var s State
	for i, c := range []struct {
		kind       Kind
		process, n int
	}{{JobStarted, 0, 0}, {ProcessAdded, 3, 0}, {RankFinished, 0, 1}, {RankMoved, 3, 0}, {RankFinished, 3, 1}} {
		e := of(uint64(i+1), c.kind, c.process)
		if e.Rank != nil {
			e.Rank = new(0)
		}
		require.True(t, s.Apply(e))
		require.Equal(t, c.n, s.FinishedRanks(), "after %s", c.kind)
	}
	require.Equal(t, PhaseFinished, s.Processes[3].Phase)
}

func TestRates(t *testing.T) {
	var s State
	s.Apply(of(1, JobStarted, 0))
	p := &s.Processes[1]
	_, ok := p.Rate()
	require.False(t, ok)
	require.True(t, s.Apply(of(1000, ProcessReading, 1)))
	_, ok = p.Rate()
	require.False(t, ok, "one reading has no rate")
	require.False(t, s.Apply(of(1000, ProcessReading, 1)), "the same again")
	require.True(t, s.Apply(of(1500, ProcessReading, 1))) // half a second later
	r, ok := p.LinkRate(2)
	require.True(t, ok)
	require.Equal(t, Rate{SentMessages: 100 * 500 / 0.5, SentBytes: 800 * 500 / 0.5}, r)
	sent, got, ok := p.RankRate(2)
	require.True(t, ok)
	require.Equal(t, []float64{10000, 1000}, []float64{sent, got})
	_, ok = p.LinkRate(0)
	require.False(t, ok)
	require.True(t, s.Apply(of(50000, ProcessReading, 1)))
	_, ok = p.Rate()
	require.False(t, ok, "nobody watched for a while")
}

// The documentation has every kind, with what it always has and its meaning.
func TestKindsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/mpivrun.md")
	require.NoError(t, err)
	for _, d := range Kinds {
		var has []string
		for _, f := range []struct {
			name string
			set  bool
		}{{"host", d.Host}, {"process", d.Process}, {"rank", d.Rank}, {d.Payload, d.Payload != ""}} {
			if f.set {
				has = append(has, "`"+f.name+"`")
			}
		}
		row := "| `" + string(d.Kind) + "` | " + strings.Join(has, ", ") + " | " + d.Means + " |\n"
		require.True(t, strings.Contains(string(text), row), "docs/mpivrun.md lacks the row %s", row) // and not all of it
	}
}
