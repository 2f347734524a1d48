package events

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/leader"
)

// log is the audit of events, in this order, 10 ms apart.
func log(all ...Event) *Audit {
	a := &Audit{}
	for i, e := range all {
		e.V, e.Seq, e.Time = Version, uint64(i+1), epoch.Add(time.Duration(i)*10*time.Millisecond)
		a.Apply(e)
	}
	return a
}

var auditJob = Event{Kind: JobStarted, Job: &Job{Name: "halo", Began: epoch, Ranks: 2, Hosts: []string{"a", "b"},
	Processes: []Placed{{Host: "a", Ranks: []int{0}}, {Host: "b", Ranks: []int{1}}}}}

func TestAuditOfARecovery(t *testing.T) {
	a := log(auditJob,
		Event{Kind: ProcessAdded, Host: "b", Process: new(2)},
		Event{Kind: ProcessExited, Host: "a", Process: new(0), Exited: &Exited{}},
		Event{Kind: RankMoved, Host: "b", Process: new(2), Rank: new(0), Text: "it was killed", Moved: &Moved{From: 0, Epoch: 2, Lost: true, Snapshot: 4}},
		Event{Kind: RankArrived, Host: "b", Process: new(2), Rank: new(0), Arrived: &Arrived{Bytes: 100}},
		Event{Kind: RankMoved, Host: "a", Process: new(3), Rank: new(0), Moved: &Moved{From: 2, Epoch: 3}},
		Event{Kind: RankArrived, Host: "a", Process: new(3), Rank: new(0), Arrived: &Arrived{Bytes: 100, Stood: 2e6}},
		Event{Kind: RankStayed, Host: "b", Process: new(1), Rank: new(1), Text: "it reached no safe point"},
	)
	require.Len(t, a.Passages, 3)
	require.Equal(t, 20*time.Millisecond, a.Passages[0].Took())
	require.Equal(t, "b", a.Passages[1].FromHost, "a process that was added later")
	require.Equal(t, `rank 0 at 0.020 s: it was lost with process 0 on host a
  seen: it was killed
  done: it goes on in process 2 on host b, from snapshot 4, by map 2, which was told after 10ms
  cost: it had its 100 bytes of state and went on after 20ms; what it had done since that snapshot it did again
rank 0 at 0.050 s: it was moved from process 2 on host b to process 3 on host a
  cost: 100 bytes of state, it stood still for 2ms
rank 1 at 0.070 s: it was to be moved, and stayed in process 1 on host b: it reached no safe point
`, a.String())
}

func TestAuditOfALostHost(t *testing.T) {
	a := log(auditJob,
		Event{Kind: HostLost, Host: "a", Text: "it was cut off"},
		Event{Kind: RankMoved, Host: "b", Process: new(2), Rank: new(0), Text: "host a is lost", Moved: &Moved{From: 0, Epoch: 2, Lost: true}},
	)
	require.Equal(t, 10*time.Millisecond, a.Passages[0].Moved.Sub(a.Passages[0].Ended))
	require.Zero(t, a.Passages[0].Took(), "it has not arrived")
	require.Contains(t, a.String(), "from the beginning")
	require.NotContains(t, a.String(), "cost:")

	a.Apply(Event{Time: a.Passages[0].Ended.Add(20 * time.Millisecond), Kind: RankArrived, Host: "b", Process: new(2), Rank: new(0), Arrived: &Arrived{}})
	require.Contains(t, a.String(), "  cost: it began after 20ms; all that it had done it did again\n")
}

func TestAuditKeepsTheLastOfEachDecision(t *testing.T) {
	first := leader.Record{ID: 1, At: epoch, Seen: []string{"a→b: 1 MB/s of 12 MB/s"}, Blamed: "what host a sends", Verdict: leader.Flood, Reasons: []string{"it sends 11 MB/s that are not the job's"},
		Chosen: "move one rank", Options: []leader.Option{{What: "nothing"}, {What: "move one rank", Benefit: 27, Surely: 27, Cost: 0.21}, {What: "empty the host", Refused: "there is no room"}},
		Plans: []leader.Planned{{ID: 1, What: "move rank 0 from a/0 to b/1", Cost: 0.21}}}
	ended := first
	ended.Plans = []leader.Planned{{ID: 1, What: "move rank 0 from a/0 to b/1", Cost: 0.21, End: "finished", Took: 0.16, Stood: 0.09}}
	ended.Measured = &leader.Measured{After: 5, Before: 1e6, Now: 10.5e6, Predicted: 12e6, Flows: 2, Limited: true}
	a := log(auditJob, Event{Kind: Decided, Decision: &first}, Event{Kind: Decided, Decision: &leader.Record{ID: 2, At: epoch.Add(time.Second), Chosen: "nothing"}}, Event{Kind: Decided, Decision: &ended})
	require.Len(t, a.Decisions, 2)
	require.Equal(t, `decision 1 at 0.000 s: move one rank
  seen: a→b: 1 MB/s of 12 MB/s
  blamed: what host a sends, flood: it sends 11 MB/s that are not the job's
  could be done: nothing: brings 0 s for 0 s
  chosen: move one rank: brings 27 s for 0.21 s
  could be done: empty the host: no, there is no room
  plan: move rank 0 from a/0 to b/1, predicted to cost 0.21 s: finished after 0.16 s, and did cost 0.09 s, in which the rank stood still
  brought: measured 5 s later: 10.5 MB/s where 1 MB/s were seen, 10.5 times as much; predicted 12 MB/s; the program had no more to send
`, a.TextOf(a.Decision(1)))
	require.Nil(t, a.Decision(3))
	text, err := json.Marshal(a)
	require.NoError(t, err)
	var again Audit
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, a.String(), again.String())
}

func TestAuditIsBounded(t *testing.T) {
	a := log(auditJob)
	for i := range AuditMost + 5 {
		a.Apply(Event{Kind: Decided, Decision: &leader.Record{ID: uint64(i + 1)}})
	}
	require.Len(t, a.Decisions, AuditMost)
	require.Equal(t, 5, a.Left)
	require.Contains(t, a.String(), "5 older ones are not kept")
}

func TestAuditHasALineForEachThing(t *testing.T) {
	const why = "\x1b[2Jit is bad\nrank 9 at 1 s: it was moved\u009b\r\n"
	a := log(auditJob,
		Event{Kind: RankStayed, Host: "b", Process: new(1), Rank: new(1), Text: why},
		Event{Kind: RankMoved, Host: "b", Process: new(2), Rank: new(0), Text: why, Moved: &Moved{From: 0, Epoch: 2, Lost: true}},
		Event{Kind: Decided, Decision: &leader.Record{ID: 1, Chosen: "nothing", Why: why, Seen: []string{why}, Reasons: []string{why}, Blamed: "host a",
			Plans: []leader.Planned{{What: "move rank 0", End: "undone", Why: why}}}},
	)
	text := a.String()
	require.Equal(t, 9, strings.Count(text, "\n"), text)
	require.Equal(t, -1, strings.IndexFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }), "%q", text)
	require.Contains(t, text, "stayed in process 1 on host b: ?[2Jit is bad; rank 9 at 1 s: it was moved?\n")
}

// A job is as old as its first head says, whoever tells it later; where none says so, as its first event.
func TestWhenAJobBegan(t *testing.T) {
	later := epoch.Add(time.Hour)
	for began, want := range map[time.Time]time.Time{epoch: epoch, {}: later} {
		job := *auditJob.Job
		job.Began = began
		e := Event{V: Version, Seq: 1, Time: later, Kind: JobStarted, Job: &job}
		var a Audit
		a.Apply(e)
		require.Equal(t, want, a.Began)
		var s State
		require.True(t, s.Apply(e))
		require.Equal(t, want, s.Began)
		require.Equal(t, later, s.Leads)
	}
}
