package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/events"
)

// A Writer writes a trace in the trace-event format: a process row for the job and
// for each host, on it a thread row for each rank in each process that it was in; calls as slices,
// messages and moves as flows, what happens in the job as instants. It needs the
// events of the job from JobStarted on, or those that tell how it stands, and the
// chunks of its processes, in any order. It keeps no more than ends of flows that wait
// for the other.
//
// After "Trace Event Format" (Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
type Writer struct {
	out    *bufio.Writer
	err    error
	begun  bool
	origin time.Time
	state  events.State
	rows   map[row]*rowState
	flows  arrows
	lost   map[int]time.Time // when processes ended
	since  time.Time         // instants before are not shown
	counts map[int]uint64    // by process: records not kept
	Slices uint64            // calls that were written
}

// A row is one of the trace.
type row struct {
	process int // -1: the job's own
	rank    int32
	lane    uint8
}

type rowState struct {
	pid, tid int
	last     int64 // when its last slice ends
}

// An event of the format. Times are in µs.
type event struct {
	Name  string `json:"name"`
	Cat   string `json:"cat,omitempty"`
	Ph    string `json:"ph"`
	TS    micros `json:"ts"`
	Dur   micros `json:"dur,omitempty"`
	PID   int    `json:"pid"`
	TID   int    `json:"tid"`
	ID    uint64 `json:"id,omitempty"`
	Bind  string `json:"bp,omitempty"`
	Scope string `json:"s,omitempty"`
	Args  any    `json:"args,omitempty"`
}

// micros is a time in ns, written in µs.
type micros int64

func (m micros) MarshalJSON() ([]byte, error) {
	sign, ns := "", uint64(m)
	if m < 0 {
		sign, ns = "-", -ns // of the least, too, which has no negative
	}
	return fmt.Appendf(nil, "%s%d.%03d", sign, ns/1000, ns%1000), nil
}

// NewWriter writes to w. Events before since are not shown.
func NewWriter(w io.Writer, since time.Time) *Writer {
	t := &Writer{out: bufio.NewWriterSize(w, 256<<10), since: since, rows: map[row]*rowState{}, lost: map[int]time.Time{}, counts: map[int]uint64{}}
	t.flows.waiting = map[flow]end{}
	_, t.err = t.out.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`)
	return t
}

// Chunk writes what a process recorded, on a host whose clock is behind that of the
// events by skew.
func (t *Writer) Chunk(process int, skew time.Duration, b []byte) error {
	c, err := Parse(b)
	if err != nil {
		return err
	}
	if process < 0 || process >= len(t.state.Processes) {
		return fmt.Errorf("trace records of process %d, which is none of the job's", process)
	}
	for i := range c.Records { // each would have a row
		if rank := c.Records[i].Rank; int(rank) >= t.state.Job.Ranks {
			return fmt.Errorf("trace records of process %d are of rank %d, which the job has not", process, rank)
		}
	}
	t.counts[process] = max(t.counts[process], c.Dropped)
	for i := range c.Records {
		t.record(process, skew, &c.Records[i])
	}
	return nil
}

func (t *Writer) record(process int, skew time.Duration, r *Record) {
	at := row{process, r.Rank, r.Lane}
	start := r.Start + int64(skew) - t.origin.UnixNano()
	took := max(r.Took, 2) // an arrow begins or ends within
	e := event{Name: r.Op, Cat: "call", Ph: "X", TS: micros(start), Dur: micros(took)}
	switch {
	case r.Kind != Call:
		e.Cat, e.Args = "move", map[string]any{"rank": r.Rank, "epoch": r.Epoch}
	case r.Dir == Out:
		e.Args = map[string]any{"to": r.Peer, "tag": r.Tag, "bytes": r.Bytes, "context": r.Context}
	case r.Dir == In:
		e.Args = map[string]any{"from": r.Peer, "tag": r.Tag, "bytes": r.Bytes, "context": r.Context}
	}
	t.slice(at, e)
	t.Slices++
	switch {
	case r.Kind == Left:
		t.flow(flow{move: true, from: r.Rank, n: uint64(r.Epoch)}, end{true, start, at})
	case r.Kind == Came:
		t.flow(flow{move: true, from: r.Rank, n: uint64(r.Epoch)}, end{false, start + took - 1, at})
	case r.Dir == Out:
		t.flow(flow{from: r.Rank, to: r.Peer, n: r.Seq}, end{true, start, at})
	case r.Dir == In:
		t.flow(flow{from: r.Peer, to: r.Rank, n: r.Seq}, end{false, start + took - 1, at})
	}
}

func (t *Writer) flow(f flow, e end) {
	from, to, ok := t.flows.meet(f, e)
	if !ok {
		return
	}
	name := "message"
	if f.move {
		name = fmt.Sprintf("move of rank %d", f.from)
	}
	t.write(from.row, event{Name: name, Cat: "flow", Ph: "s", TS: micros(from.at), ID: t.flows.drawn})
	t.write(to.row, event{Name: name, Cat: "flow", Ph: "f", TS: micros(to.at), ID: t.flows.drawn, Bind: "e"})
}

// Event has the writer know of e, and writes what it tells.
func (t *Writer) Event(e events.Event) {
	before := []int(nil)
	if e.Process != nil && *e.Process >= 0 && *e.Process < len(t.state.Processes) {
		before = slices.Clone(t.state.Processes[*e.Process].Ranks)
	}
	if !t.state.Apply(e) {
		return
	}
	if e.Kind == events.JobStarted {
		t.origin = e.Time
		return
	}
	switch e.Kind {
	case events.ProcessExited:
		t.lost[*e.Process] = e.Time
	case events.HostLost: // nobody tells of its processes
		for _, p := range t.state.On(e.Host) {
			if _, known := t.lost[p.Index]; !known {
				t.lost[p.Index] = e.Time
			}
		}
	}
	if e.Time.Before(t.since) {
		return
	}
	text, args := e.Text, any(nil)
	switch e.Kind {
	case events.ProcessExited:
		for _, r := range before {
			if p := t.state.Processes[*e.Process]; !p.Finished[r] {
				t.instant(row{*e.Process, int32(r), 0}, "t", e, fmt.Sprintf("rank %d: its process %s", r, e.Text), nil)
			}
		}
		return
	case events.RankMoved:
		if e.Moved.Lost {
			t.recovered(e)
		}
		return
	case events.RankStayed, events.RankFailed:
		t.instant(row{*e.Process, int32(*e.Rank), 0}, "t", e, fmt.Sprintf("%s: %s", e.Kind, e.Text), nil)
		return
	case events.Decided:
		args = e.Decision
	case events.LinkBreach:
		args = e.Breach
	case events.HostLost:
		if !strings.HasPrefix(text, "host "+e.Host) {
			text = fmt.Sprintf("host %s: %s", e.Host, e.Text)
		}
	case events.FaultOrdered, events.HostsCut, events.DeadlockProven, events.DeadlockSuspected, events.DeadlockOver, events.SignalPassed, events.JobVerdict:
		if text == "" {
			return // nothing failed
		}
	default:
		return
	}
	t.instant(row{process: -1}, "g", e, text, args)
}

// recovered draws that a rank goes on elsewhere, since its process was lost.
func (t *Writer) recovered(e events.Event) {
	rank := int32(*e.Rank)
	if e.Moved.From >= 0 && e.Moved.From < len(t.state.Processes) {
		old := row{e.Moved.From, rank, 0}
		began := e.Time
		if at, known := t.lost[e.Moved.From]; known && at.Before(began) {
			began = at
		}
		start := max(int64(began.Sub(t.origin)), t.row(old).last)
		took := max(int64(e.Time.Sub(t.origin))-start, 2)
		t.slice(old, event{Name: "lost", Cat: "move", Ph: "X", TS: micros(start), Dur: micros(took), Args: map[string]any{"why": e.Text}})
		t.flow(flow{move: true, from: rank, n: uint64(e.Moved.Epoch)}, end{true, start, old})
	}
	t.instant(row{*e.Process, rank, 0}, "t", e, fmt.Sprintf("rank %d goes on here %s: %s", rank, e.Moved.Origin(), e.Text), nil)
}

func (t *Writer) instant(at row, scope string, e events.Event, text string, args any) {
	line, _, _ := strings.Cut(text, "\n")
	if args == nil {
		args = map[string]any{"text": text}
	}
	t.write(at, event{Name: line, Cat: string(e.Kind), Ph: "i", TS: micros(e.Time.Sub(t.origin)), Scope: scope, Args: args})
}

func (t *Writer) slice(at row, e event) {
	r := t.row(at)
	r.last = max(r.last, int64(e.TS+e.Dur))
	t.write(at, e)
}

// row is what is known of a row, which is named when it is first used.
func (t *Writer) row(at row) *rowState {
	r := t.rows[at]
	if r != nil {
		return r
	}
	r = &rowState{pid: 1, tid: 1}
	t.rows[at] = r
	process, thread := "job", "what happens"
	if t.state.Job != nil {
		process = "job " + t.state.Job.Name
	}
	if at.process >= 0 {
		process = t.state.Processes[at.process].Host
		r.pid = 2 + slices.IndexFunc(t.state.Hosts, func(h events.Host) bool { return h.Name == process })
		stride := 1000
		for stride < t.state.Job.Ranks {
			stride *= 10
		}
		r.tid = (1+at.process*Lanes+int(at.lane))*stride + int(at.rank)
		thread = t.threadName(at)
	}
	for _, m := range []event{
		{Name: "process_name", Args: map[string]any{"name": process}},
		{Name: "process_sort_index", Args: map[string]any{"sort_index": r.pid}},
		{Name: "thread_name", Args: map[string]any{"name": thread}},
		{Name: "thread_sort_index", Args: map[string]any{"sort_index": int(at.rank)*Lanes + int(at.lane)}},
	} {
		m.Ph, m.PID, m.TID = "M", r.pid, r.tid
		t.put(m)
	}
	return r
}

// threadName is what the row of a rank is called: of a rank that has come here, with
// the process.
func (t *Writer) threadName(at row) string {
	name := fmt.Sprintf("rank %d", at.rank)
	if first := t.state.Job.Processes; at.process >= len(first) || !slices.Contains(first[at.process].Ranks, int(at.rank)) {
		name += fmt.Sprintf(", process %d", at.process)
	}
	if at.lane > 0 {
		name += fmt.Sprintf(", call %d at a time", at.lane+1)
	}
	return name
}

func (t *Writer) write(at row, e event) {
	r := t.row(at)
	e.PID, e.TID = r.pid, r.tid
	t.put(e)
}

func (t *Writer) put(e event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("trace: an event that is no JSON: %v", err))
	}
	if t.begun {
		b = append([]byte(",\n"), b...)
	}
	t.begun = true
	if t.err == nil {
		_, t.err = t.out.Write(b)
	}
}

// Flush hands on what was written. The error is the first of all.
func (t *Writer) Flush() error {
	if t.err == nil {
		t.err = t.out.Flush()
	}
	return t.err
}

// A Summary is what a trace has, and has not.
type Summary struct {
	Slices   uint64            `json:"slices"`
	Flows    uint64            `json:"flows"`              // arrows of messages and moves
	Dropped  map[int]uint64    `json:"dropped,omitempty"`  // by process: calls beyond the bounds
	Lost     uint64            `json:"lost,omitempty"`     // chunks that came faster than they could be written
	Unpaired uint64            `json:"unpaired,omitempty"` // ends of arrows of which the other was not recorded
	Back     uint64            `json:"back,omitempty"`     // arrows that the clocks of hosts would have go back in time
	Clocks   map[string]string `json:"clocks,omitempty"`   // by host: by how much times there were corrected
}

// Close writes the end. lost is how many chunks the caller could not hand in, clocks
// by how much it had times of hosts corrected.
func (t *Writer) Close(lost uint64, clocks map[string]string) (Summary, error) {
	s := Summary{Slices: t.Slices, Flows: t.flows.drawn, Lost: lost, Unpaired: t.flows.unpaired + uint64(len(t.flows.waiting)), Back: t.flows.back, Clocks: clocks}
	for p, n := range t.counts {
		if n > 0 {
			if s.Dropped == nil {
				s.Dropped = map[int]uint64{}
			}
			s.Dropped[p] = n
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("trace: a summary that is no JSON: %v", err))
	}
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.out, "],\n\"otherData\":%s}\n", b)
	}
	return s, t.Flush()
}

// String is s for people: what is missing, and why. Empty: nothing that need be said.
func (s Summary) String() string {
	var all []string
	if len(s.Dropped) > 0 {
		n := uint64(0)
		for _, d := range s.Dropped {
			n += d
		}
		all = append(all, fmt.Sprintf("%d calls of %d processes are not in it: each keeps %d MiB of records, and %d KiB that wait to be sent", n, len(s.Dropped), KeptMost>>20, HeldMost>>10))
	}
	if s.Lost > 0 {
		all = append(all, fmt.Sprintf("%d parts came faster than they could be written, and are not in it", s.Lost))
	}
	if s.Back > 0 {
		all = append(all, fmt.Sprintf("%d arrows would go back in time and are not drawn: the clocks of the hosts differ, or what was sent was sent again", s.Back))
	}
	return strings.Join(all, "; ")
}

// ParseSummary is what the last line of a trace says.
func ParseSummary(line []byte) (s Summary, err error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(string(line)), `"otherData":`)
	if !ok {
		return s, errors.New("it has no end")
	}
	return s, json.Unmarshal([]byte(strings.TrimSuffix(text, "}")), &s)
}
