package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
	"github.com/mpiv/mpiv/sensors"
)

// withSpares is halo of two processes and two spares. The second process was killed: its
// ranks had gone to the first and to one of the spares.
func withSpares() *events.State {
	s := vacated()
	tell(s, events.Event{Kind: events.ProcessExited, Host: "b.example.org", Process: new(1), Exited: &events.Exited{Code: 137, Signal: 9}, Text: "was killed by signal 9 (killed)"})
	return s
}

// vacated is that before the second process was killed.
func vacated() *events.State {
	s := halo(2)
	tell(s,
		events.Event{Kind: events.ProcessAdded, Host: "a", Process: new(2)},
		events.Event{Kind: events.ProcessStarted, Host: "a", Process: new(2), Started: &events.Started{PID: 102}},
		events.Event{Kind: events.ProcessAdded, Host: "a", Process: new(3)},
		events.Event{Kind: events.RankMoved, Host: "a", Process: new(2), Rank: new(3), Moved: &events.Moved{From: 1, Epoch: 2}},
		events.Event{Kind: events.RankMoved, Host: "a", Process: new(0), Rank: new(2), Moved: &events.Moved{From: 1, Epoch: 3}})
	return s
}

func tell(s *events.State, all ...events.Event) {
	for _, e := range all {
		e.V, e.Seq, e.Time = events.Version, s.Seq+1, noon
		if !s.Apply(e) {
			panic(string(events.Append(nil, e)) + " tells nothing")
		}
	}
}

func TestPsShowsProcessesWithoutRanks(t *testing.T) {
	var b strings.Builder
	require.NoError(t, psRanks(&b, withSpares(), []int{3}))
	require.Equal(t, `RANK  HOST           PID  PROCESS   RANK IS
0     a              100  running   finished
1     a              100  running   in Recv (halo.go:40) for 6.3 s
2     a              100  running   -
3     a              102  running   (does not answer)
-     b.example.org  101  exited    process 1: was killed by signal 9 (killed)
-     a              0    starting  process 3: spare
`, b.String())
}

// Processes that have ended are no longer counted among those that there are.
func TestPsCountsProcessesThatLive(t *testing.T) {
	var b strings.Builder
	require.NoError(t, psJobs(&b, []jobStatus{statusOf("halo-12", vacated(), false, nil), statusOf("halo-12", withSpares(), false, nil)}))
	require.Regexp(t, `(?m)^JOB +RANKS +PROCESSES +STATE`, b.String())
	require.Regexp(t, `(?m)^halo-\d+ +4 +4 +running`, b.String())
	require.Regexp(t, `(?m)^halo-\d+ +4 +3, 1 ended +running`, b.String())

	v := screen{page: pageHosts, width: 100, height: 20}
	require.Regexp(t, `(?m)^b\.example\.org +\S+ +\d+ +0, 1 ended `, strings.Join(v.hosts(withSpares()), "\n"))
}

// The directory of a job that has ended is there for a moment longer than its socket.
func TestPsLeavesOutWhatHasEnded(t *testing.T) {
	d, err := rundir.Make(filepath.Join(t.TempDir(), "run"), "job-1")
	require.NoError(t, err)
	defer d.Remove()
	require.Empty(t, askAll([]rundir.Job{{Name: "job-1", Dir: d.Path}}))
}

// A program's words may be anything; a job is one line, of which a terminal obeys nothing.
func TestPsIsALineForAJob(t *testing.T) {
	var b strings.Builder
	j := statusOf("halo-12", halo(2), false, nil)
	j.Program = "evil\x1b[31m\n\tx"
	require.NoError(t, psJobs(&b, []jobStatus{j}))
	require.Equal(t, 2, strings.Count(b.String(), "\n"), "%q", b.String())
	require.NotContains(t, b.String(), "\x1b")
}

func TestLinksOfProcessesWithoutRanks(t *testing.T) {
	var b strings.Builder
	require.NoError(t, psLinks(&b, vacated(), nil))
	require.Contains(t, b.String(), "0-2        process 1  tcp lan  1.00k")
	require.Contains(t, b.String(), "process 1  0-2        tcp lan  1.00k")
}

// What was last read of a process that has ended, or of others' links to it, is no news.
func TestLinksOfAProcessThatHasEnded(t *testing.T) {
	var b strings.Builder
	require.NoError(t, psLinks(&b, withSpares(), nil))
	require.NotContains(t, b.String(), "process 1")
}

// Programs are told all that people are: what links promise, too.
func TestPromisesForPrograms(t *testing.T) {
	c := &agent.Contracts{Links: []sensors.Standing{
		{Promise: sensors.Promise{Link: sensors.Link{From: "a", To: "b.example.org"}, Size: sensors.Large, Rate: 8e6}, Broken: noon}}}
	text, err := json.Marshal(statusOf("halo-12", vacated(), true, c))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), `"promised":8000000,"broken":true`), "%s", text)
}

// Ranks is a list where there are none, too.
func TestRanksOfNoneForPrograms(t *testing.T) {
	text, err := json.Marshal(statusOf("halo-12", withSpares(), false, nil))
	require.NoError(t, err)
	require.Contains(t, string(text), `"ranks":[],"state":"exited"`)
	require.Contains(t, string(text), `"ranks":[],"state":"starting"`)
}
