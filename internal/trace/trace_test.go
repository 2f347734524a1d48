package trace

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/trace/tracetest"
	"github.com/mpiv/mpiv/leader"
)

func some(seed uint64) Chunk {
	r := rand.New(rand.NewPCG(seed, 1))
	c := Chunk{Dropped: r.Uint64() >> r.IntN(64)}
	for range r.IntN(5) {
		rec := Record{Kind: Kind(r.IntN(3)), Op: "Send"[:r.IntN(5)], Rank: r.Int32(), Lane: uint8(r.IntN(Lanes)), Start: r.Int64() - 1<<62, Took: r.Int64()}
		if rec.Dir = Direction(r.IntN(3)); rec.Dir != None {
			rec.Peer, rec.Tag, rec.Context, rec.Bytes, rec.Seq = r.Int32(), r.Int32()-1, r.Uint32(), r.Int64(), r.Uint64()
		}
		if rec.Kind != Call {
			rec.Epoch = r.Uint32()
		}
		c.Records = append(c.Records, rec)
	}
	return c
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for seed := range uint64(1000) {
		c := some(seed)
		got, err := Parse(c.Append(nil))
		require.NoError(t, err, "seed %d", seed)
		require.Equal(t, &c, got, "seed %d", seed)
	}
}

func TestMalformedChunksAreRefused(t *testing.T) {
	c := Chunk{Records: []Record{{Op: "Send", Dir: Out, Peer: 1, Seq: 1}}}
	whole := c.Append(nil)
	for n := range len(whole) {
		if n == 3 {
			continue // a chunk without records
		}
		_, err := Parse(whole[:n])
		require.ErrorIs(t, err, ErrChunk, "the first %d bytes of %d", n, len(whole))
	}
	_, err := Parse(append([]byte{version + 1}, whole[1:]...))
	require.ErrorIs(t, err, ErrChunk)
	_, err = Parse([]byte{version, 0x80, 0x00, 0x00})
	require.ErrorIs(t, err, ErrChunk, "a number that is longer than it need be")
}

func FuzzParse(f *testing.F) {
	for seed := range uint64(20) {
		c := some(seed)
		f.Add(c.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err == nil && !bytes.Equal(c.Append(nil), b) {
			t.Fatalf("Parse(%x) is %+v, which is written as %x", b, c, c.Append(nil))
		}
	})
}

func TestRecorderCountsWhatIsBeyondItsBounds(t *testing.T) {
	r := NewRecorder()
	rec := Record{Op: strings.Repeat("x", 300)}
	n := 0
	for ; n < 2*HeldMost/opMost; n++ {
		r.Add(rec)
	}
	c, err := Parse(r.Take())
	require.NoError(t, err)
	require.Positive(t, c.Dropped)
	require.Equal(t, n, len(c.Records)+int(c.Dropped))
	require.Nil(t, r.Take(), "nothing is new")

	for range 100 * KeptMost / HeldMost {
		for range HeldMost / opMost / 4 {
			r.Add(rec)
		}
		if b := r.Take(); b != nil {
			require.Less(t, len(b), HeldMost+4<<10)
			c, err = Parse(b)
			require.NoError(t, err)
			n += len(c.Records)
		}
	}
	require.Empty(t, c.Records, "more than KeptMost was kept")
	require.LessOrEqual(t, n*opMost, 2*KeptMost)
}

func TestCallsThatOverlapHaveLanesOfTheirOwn(t *testing.T) {
	r := NewRecorder()
	k := r.Rank(3)
	a, b := k.Begin(), k.Begin()
	a.End(Record{Op: "a"})
	c := k.Begin() // a's lane is free
	c.End(Record{Op: "c"})
	b.End(Record{Op: "b"})
	var spans []Span
	for range Lanes + 1 {
		spans = append(spans, k.Begin())
	}
	for _, s := range spans {
		s.End(Record{Op: "many"})
	}
	Span{}.End(Record{Op: "none"})

	chunk, err := Parse(r.Take())
	require.NoError(t, err)
	require.EqualValues(t, 1, chunk.Dropped, "calls beyond the lanes")
	var got []string
	for _, rec := range chunk.Records[:4] {
		require.EqualValues(t, 3, rec.Rank)
		got = append(got, fmt.Sprint(rec.Op, rec.Lane))
	}
	require.Equal(t, []string{"a0", "c0", "b1", "many0"}, got)
	require.Len(t, chunk.Records, 3+Lanes)
}

var began = time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)

// A job is a trace of a job of two hosts, with a process of one rank each and a spare on b.
type job struct {
	t   *testing.T
	out bytes.Buffer
	w   *Writer
	seq uint64
}

func newJob(t *testing.T, since time.Time) *job {
	j := &job{t: t}
	j.w = NewWriter(&j.out, since)
	j.event(0, events.Event{Kind: events.JobStarted, Job: &events.Job{Name: "halo", Ranks: 2, Hosts: []string{"a", "b"},
		Processes: []events.Placed{{Host: "a", Ranks: []int{0}}, {Host: "b", Ranks: []int{1}}, {Host: "b"}}}})
	return j
}

func (j *job) event(at time.Duration, e events.Event) {
	j.seq++
	e.V, e.Seq, e.Time = events.Version, j.seq, began.Add(at)
	j.w.Event(e)
}

func (j *job) records(process int, skew time.Duration, all ...Record) {
	c := Chunk{Records: all}
	require.NoError(j.t, j.w.Chunk(process, skew, c.Append(nil)))
}

func (j *job) end() (*tracetest.Trace, Summary) {
	s, err := j.w.Close(0, nil)
	require.NoError(j.t, err)
	tr, err := tracetest.Read(bytes.NewReader(j.out.Bytes()))
	require.NoError(j.t, err)
	lines := bytes.SplitAfter(j.out.Bytes(), []byte("\n"))
	again, err := ParseSummary(lines[len(lines)-2])
	require.NoError(j.t, err)
	require.Equal(j.t, s, again)
	return tr, s
}

// at is a time of the job, as records have it.
func at(d time.Duration) int64 { return began.Add(d).UnixNano() }

const ms = time.Millisecond

func send(rank, peer int32, n uint64, from, to time.Duration) Record {
	return Record{Op: "Send", Rank: rank, Start: at(from), Took: int64(to - from), Dir: Out, Peer: peer, Seq: n}
}

func recv(rank, peer int32, n uint64, from, to time.Duration) Record {
	return Record{Op: "Recv", Rank: rank, Start: at(from), Took: int64(to - from), Dir: In, Peer: peer, Seq: n}
}

func TestMessagesAreArrowsBetweenSlices(t *testing.T) {
	j := newJob(t, began)
	j.records(1, 5*ms, recv(1, 0, 2, 10*ms, 12*ms), recv(1, 0, 1, 13*ms, 14*ms), recv(1, 0, 9, 15*ms, 16*ms)) // its clock is 5 ms behind
	j.records(0, 0, send(0, 1, 1, 11*ms, 11*ms), send(0, 1, 2, 12*ms, 13*ms), send(0, 1, 3, 14*ms, 15*ms))
	j.records(0, 0, recv(0, 1, 1, 20*ms, 21*ms))
	j.records(1, 5*ms, send(1, 0, 1, 20*ms, 22*ms)) // it would be received before it is sent
	tr, s := j.end()
	require.EqualValues(t, 2, s.Flows)
	require.EqualValues(t, 1, s.Back)
	require.EqualValues(t, 2, s.Unpaired, "message 3 was not received, and message 9 not sent")
	require.Len(t, tr.Flows, 2)
	for _, f := range tr.Flows {
		from, _ := tr.Slice(f[0])
		to, _ := tr.Slice(f[1])
		require.Equal(t, []string{"Send", "a", "Recv", "b"}, []string{from.Name, tr.Names[*from.PID], to.Name, tr.Names[*to.PID]})
		if *from.TS < 12000 {
			require.InDelta(t, 18000, *to.TS, 0.01, "message 1 is received second, 5 ms later than its clock says")
		}
	}
	require.Len(t, tr.Slices, 8)
}

func TestMovedRankHasARowInEachProcess(t *testing.T) {
	j := newJob(t, began)
	safe := Record{Op: "SafePoint", Rank: 0, Start: at(10 * ms), Took: int64(4 * ms)}
	left := Record{Kind: Left, Op: "Leave", Rank: 0, Start: at(11 * ms), Took: int64(2 * ms), Epoch: 2}
	came := Record{Kind: Came, Op: "Restore", Rank: 0, Start: at(12 * ms), Took: int64(3 * ms), Epoch: 2}
	j.records(2, 0, came)
	j.event(13*ms, events.Event{Kind: events.RankMoved, Host: "b", Process: new(2), Rank: new(0), Moved: &events.Moved{From: 0, Epoch: 2}})
	j.records(0, 0, left, safe)
	tr, s := j.end()
	require.EqualValues(t, 1, s.Flows)
	for _, f := range tr.Flows {
		from, _ := tr.Slice(f[0])
		to, _ := tr.Slice(f[1])
		require.Equal(t, "move of rank 0", f[0].Name)
		require.Equal(t, []string{"Leave", "a", "rank 0"}, []string{from.Name, tr.Names[*from.PID], tr.Threads[[2]int{*from.PID, *from.TID}]})
		require.Equal(t, []string{"Restore", "b", "rank 0, process 2"}, []string{to.Name, tr.Names[*to.PID], tr.Threads[[2]int{*to.PID, *to.TID}]})
	}
}

func TestLostRankGoesOnWithAnArrow(t *testing.T) {
	j := newJob(t, began)
	j.records(0, 0, send(0, 1, 1, 11*ms, 12*ms))
	j.event(20*ms, events.Event{Kind: events.ProcessExited, Host: "a", Process: new(0), Text: "was killed", Exited: &events.Exited{Code: 137, Signal: 9}})
	j.event(25*ms, events.Event{Kind: events.RankMoved, Host: "b", Process: new(2), Rank: new(0), Text: "rank 0 was killed", Moved: &events.Moved{From: 0, Epoch: 2, Lost: true, Snapshot: 4}})
	j.records(2, 0, Record{Kind: Came, Op: "Restore", Rank: 0, Start: at(26 * ms), Took: int64(3 * ms), Epoch: 2}, send(0, 1, 1, 31*ms, 32*ms))
	j.event(40*ms, events.Event{Kind: events.LinkBreach, Text: "a→b is slow", Breach: &events.Breach{From: "a", To: "b"}})
	j.event(41*ms, events.Event{Kind: events.Decided, Text: "decision 1", Decision: &leader.Record{ID: 1, Chosen: "nothing"}})
	tr, s := j.end()
	require.EqualValues(t, 1, s.Flows)
	require.EqualValues(t, 2, s.Unpaired, "a message that is sent again is no second arrow")
	var lost *tracetest.Event
	instants := map[string]string{}
	for i, e := range tr.Events {
		if e.Name == "lost" {
			lost = &tr.Events[i]
		}
		if e.Ph == "i" {
			instants[e.Name] = tr.Names[*e.PID] + ", " + tr.Threads[[2]int{*e.PID, *e.TID}]
		}
	}
	require.NotNil(t, lost)
	require.InDelta(t, 20000, *lost.TS, 0.01)
	require.InDelta(t, 5000, *lost.Dur, 0.01)
	require.Equal(t, map[string]string{
		"rank 0: its process was killed":                         "a, rank 0",
		"rank 0 goes on here from snapshot 4: rank 0 was killed": "b, rank 0, process 2",
		"a→b is slow": "job halo, what happens",
		"decision 1":  "job halo, what happens",
	}, instants)
}

// A rank is lost from when its host was, whose processes' ends nobody tells.
func TestRankOfALostHost(t *testing.T) {
	j := newJob(t, began)
	j.event(20*ms, events.Event{Kind: events.HostLost, Host: "a", Text: "host a: its agent has ended"})
	j.event(25*ms, events.Event{Kind: events.RankMoved, Host: "b", Process: new(2), Rank: new(0), Text: "its host was lost", Moved: &events.Moved{From: 0, Epoch: 2, Lost: true, Snapshot: 4}})
	tr, _ := j.end()
	told := false
	for _, e := range tr.Events {
		if e.Name == "lost" {
			require.InDelta(t, 20000, *e.TS, 0.01)
			require.InDelta(t, 5000, *e.Dur, 0.01)
		}
		told = told || e.Name == "host a: its agent has ended"
	}
	require.True(t, told)
}

func TestWhatWasBeforeATraceIsNotInIt(t *testing.T) {
	j := newJob(t, began.Add(time.Second))
	j.event(20*ms, events.Event{Kind: events.LinkBreach, Text: "before", Breach: &events.Breach{}})
	j.event(2*time.Second, events.Event{Kind: events.LinkBreach, Text: "after", Breach: &events.Breach{}})
	tr, _ := j.end()
	var names []string
	for _, e := range tr.Events {
		if e.Ph == "i" {
			names = append(names, e.Name)
		}
	}
	require.Equal(t, []string{"after"}, names)
}

func TestRecordsOfNoProcessAreRefused(t *testing.T) {
	j := newJob(t, began)
	c := Chunk{Records: []Record{send(0, 1, 1, 0, ms)}}
	require.Error(t, j.w.Chunk(7, 0, c.Append(nil)))
	require.ErrorIs(t, j.w.Chunk(0, 0, []byte("x")), ErrChunk)
	tr, _ := j.end()
	require.Empty(t, tr.Slices)
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	row := `{"name":"process_name","ph":"M","ts":0,"pid":1,"tid":1,"args":{"name":"p"}},{"name":"thread_name","ph":"M","ts":0,"pid":1,"tid":1,"args":{"name":"t"}},`
	a, b := `{"name":"a","ph":"X","ts":0,"dur":2,"pid":1,"tid":1}`, `{"name":"b","ph":"X","ts":1,"dur":2,"pid":1,"tid":1}`
	flow := func(ph string, ts int) string {
		return fmt.Sprintf(`,{"name":"m","ph":%q,"ts":%d,"id":1,"pid":1,"tid":1}`, ph, ts)
	}
	for want, text := range map[string]string{
		"":                    row + a + flow("s", 0) + flow("f", 1),
		"overlap":             row + a + "," + b,
		"does not end":        row + a + flow("s", 0),
		"does not begin":      row + a + flow("f", 0),
		"before it begins":    row + a + flow("s", 1) + flow("f", 0),
		"is in no slice":      row + a + flow("s", 1) + flow("f", 7),
		"two events":          row + a + flow("s", 0) + flow("s", 1),
		"has no name":         a,
		"no ts, pid, tid":     row + `{"name":"a","ph":"X","dur":2}`,
		"is of kind \"Q\"":    row + `{"name":"a","ph":"Q","ts":1,"pid":1,"tid":1}`,
		"has the scope \"q\"": row + `{"name":"a","ph":"i","s":"q","ts":1,"pid":1,"tid":1}`,
	} {
		_, err := tracetest.Read(strings.NewReader(`{"displayTimeUnit":"ns","traceEvents":[` + text + `],"otherData":{}}`))
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

// What a call costs while it is recorded.
func BenchmarkRecord(b *testing.B) {
	r := NewRecorder()
	k := r.Rank(0)
	b.ReportAllocs()
	for b.Loop() {
		k.Begin().End(Record{Op: "Send", Dir: Out, Peer: 1, Seq: 7})
		if len(r.buf) > HeldMost/2 {
			r.Take()
			r.kept = 0
		}
	}
}

func TestRecordsOfRanksThatTheJobHasNotAreRefused(t *testing.T) {
	j := newJob(t, began)
	for rank := int32(2); rank < 1000; rank++ {
		c := Chunk{Records: []Record{{Op: "Send", Rank: rank, Start: at(ms)}}}
		require.ErrorContains(t, j.w.Chunk(0, 0, c.Append(nil)), "which the job has not")
	}
	require.Empty(t, j.w.rows, "each would have a row")
	j.records(0, 0, Record{Op: "Send", Rank: 1, Start: at(ms)})
	_, s := j.end()
	require.EqualValues(t, 1, s.Slices)
}

// TestTimesThatCannotBe: a process whose clock says nonsense is not the end of its job.
func TestTimesThatCannotBe(t *testing.T) {
	j := newJob(t, began)
	least := int64(math.MinInt64) // the one of which the negative is none
	j.records(0, 0, Record{Op: "Send", Start: least + began.UnixNano(), Took: 5})
	require.NoError(t, j.w.Flush())
	require.Contains(t, j.out.String(), `"ts":-9223372036854775.808,`)
}
