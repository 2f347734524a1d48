package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
)

// The head before has written that a rank came to its new process; the deputy there, who
// does not know whether it has, says so again to the next head.
func TestAMoveThatCameUnderTheHeadBefore(t *testing.T) {
	j, _, _ := lossy(t, "ring", 2, 2, 0)
	j = j.withDefaults()
	text, err := json.Marshal(plan{Job: j.portable()})
	require.NoError(t, err)
	job := ledger.Job{Name: "j", Plan: text}
	for _, h := range j.Hosts {
		job.Hosts = append(job.Hosts, h.Name)
	}
	job.Processes = []ledger.Added{{Host: 0, Slot: 0, Ranks: []int{0}}, {Host: 1, Slot: 0, Ranks: []int{1}}, {Host: 1, Slot: 1}}
	state := new(ledger.State)
	for _, e := range []ledger.Entry{{Job: &job}, {Started: &ledger.Started{}}, {Moving: &ledger.Moving{Rank: 0, From: 0, To: 2, Epoch: 2}}, {Came: &ledger.Came{Epoch: 2}}} {
		require.NoError(t, state.Apply(e))
	}

	a := newAgent(j)
	require.NoError(t, a.recall(state))
	a.pen = &pen{Pen: ledger.NewPen(state)}
	a.emitJob()
	to := a.processes[2]
	require.Equal(t, []int{0}, to.ranks)
	a.arrived(to, control.Arrived{Rank: 0, Epoch: 2})
	require.Contains(t, a.survival.moving, 0, "its state is not there yet")
	require.Equal(t, []uint32{2}, a.survival.past[0])
	a.arrived(to, control.Arrived{Rank: 0, Epoch: 2, Whole: true, Bytes: 100})
	require.Empty(t, a.survival.moving)
	require.True(t, a.pen.State.Change(2).Ended)
	require.Equal(t, []int{0}, to.ranks)
}

// A process that ended under the head before had spoken: the job is not ended since the next
// has not heard it.
func TestAProcessThatEndedUnderTheHeadBefore(t *testing.T) {
	j, _, _ := lossy(t, "ring", 2, 2, 0)
	j = j.withDefaults()
	text, err := json.Marshal(plan{Job: j.portable()})
	require.NoError(t, err)
	job := ledger.Job{Name: "j", Plan: text, Processes: []ledger.Added{{Host: 0, Slot: 0, Ranks: []int{0}}, {Host: 1, Slot: 0, Ranks: []int{1}}, {Host: 1, Slot: 1}}}
	for _, h := range j.Hosts {
		job.Hosts = append(job.Hosts, h.Name)
	}
	state := new(ledger.State)
	for _, e := range []ledger.Entry{{Job: &job}, {Started: &ledger.Started{}}, {Recovered: &ledger.Recovered{Epoch: 2, Lost: []int{0}, Ranks: []ledger.Revived{{Rank: 0, Process: 2}}}}} {
		require.NoError(t, state.Apply(e))
	}
	a := newAgent(j)
	require.NoError(t, a.recall(state))
	a.pen = &pen{Pen: ledger.NewPen(state)}
	a.emitJob()
	a.emitGone()
	require.True(t, a.processes[0].judged)
	a.first, a.ready = len(job.Processes), 2 // by what the deputies say
	a.mixed()
	require.False(t, a.ending)

	// Who asks for the processes is told what they are.
	said := control.Rejoined{}
	for _, i := range []int{1, 2} {
		said.Processes = append(said.Processes, control.Account{Process: i, PID: 70 + i, Hello: &control.Hello{PID: 70 + i}, Ready: &control.Ready{}, Start: 1})
	}
	a.believe(a.hosts[1], said)
	a.emit(events.Event{Kind: events.AllReady})
	var seen []string
	for _, p := range a.news.state.Processes {
		seen = append(seen, fmt.Sprintf("%d %v", p.PID, p.Phase))
	}
	require.Equal(t, []string{"0 exited", "71 running", "72 running"}, seen)
}

// A spare process that ended before it had joined, on a host that was lost later, does not make the next head take
// the host for lost once more.
func TestAHostThatWasLostUnderTheHeadBefore(t *testing.T) {
	j, _, _ := lossy(t, "ring", 2, 2, 0)
	j = j.withDefaults()
	text, err := json.Marshal(plan{Job: j.portable()})
	require.NoError(t, err)
	job := ledger.Job{Name: "j", Plan: text, Processes: []ledger.Added{{Host: 0, Slot: 0, Ranks: []int{0}}, {Host: 1, Slot: 0, Ranks: []int{1}}, {Host: 0, Slot: 1}}}
	for _, h := range j.Hosts {
		job.Hosts = append(job.Hosts, h.Name)
	}
	state := new(ledger.State)
	entries := []ledger.Entry{{Job: &job}, {Started: &ledger.Started{}}, {Added: &ledger.Added{Host: 1, Slot: 1}}, {HostLost: &ledger.HostLost{Host: 1}}}
	unjudged := func() (all []int) {
		a := newAgent(j)
		require.NoError(t, a.recall(state))
		for _, i := range a.hosts[1].processes {
			if !a.processes[i].judged {
				all = append(all, i)
			}
		}
		require.Equal(t, []int{3}, a.survival.lost, "the others hear of it with the next map")
		return all
	}
	for _, e := range entries {
		require.NoError(t, state.Apply(e))
	}
	require.Equal(t, []int{1}, unjudged(), "its rank has not gone on elsewhere")
	require.NoError(t, state.Apply(ledger.Entry{Recovered: &ledger.Recovered{Epoch: 2, Lost: []int{1}, Ranks: []ledger.Revived{{Rank: 1, Process: 2}}}}))
	require.Empty(t, unjudged())
}

// A host whose agent was there, and which had not joined, when the head died is lost to the next, which does not know
// where it is reached.
func TestAHostThatWasBeingAddedUnderTheHeadBefore(t *testing.T) {
	j, _, _ := lossy(t, "ring", 2, 2, 0)
	j = j.withDefaults()
	text, err := json.Marshal(plan{Job: j.portable()})
	require.NoError(t, err)
	job := ledger.Job{Name: "j", Plan: text, Processes: []ledger.Added{{Host: 0, Slot: 0, Ranks: []int{0}}, {Host: 1, Slot: 0, Ranks: []int{1}}}}
	for _, h := range j.Hosts {
		job.Hosts = append(job.Hosts, h.Name)
	}
	for _, joined := range []bool{false, true} {
		state := new(ledger.State)
		entries := []ledger.Entry{{Job: &job}, {Started: &ledger.Started{}}, {HostAdded: &ledger.HostAdded{Name: "z", Host: json.RawMessage(`{"Name":"z"}`)}}, {Added: &ledger.Added{Host: 2}}}
		if joined {
			entries = append(entries, ledger.Entry{Joined: &ledger.Joined{Host: 2, Agent: json.RawMessage(`{}`)}})
		}
		for _, e := range entries {
			require.NoError(t, state.Apply(e))
		}
		a := newAgent(j)
		require.NoError(t, a.recall(state))
		a.pen = &pen{Pen: ledger.NewPen(state)}
		a.forsake()
		require.NotEqual(t, joined, a.hosts[2].lost)
		require.NotEqual(t, joined, a.processes[2].judged)
		require.NotEqual(t, joined, a.pen.State.Hosts[2].Lost && a.pen.State.Processes[2].Gone)
		require.False(t, a.hosts[1].lost)
	}
}

// What the first head wrote is kept if it leads no more before others have it.
func TestDraftOfTheFirstHead(t *testing.T) {
	state := new(ledger.State)
	require.NoError(t, state.Apply(ledger.Entry{Job: &ledger.Job{Name: "j", Hosts: []string{"a"}}}))
	for _, known := range []bool{true, false} {
		s := new(office)
		require.Nil(t, s.drafted())
		s.keep(&pen{Pen: ledger.NewPen(state), known: known})
		if known {
			require.Nil(t, s.drafted(), "others have it: what it says may have changed")
			continue
		}
		require.Equal(t, "j", s.drafted().Job.Name)
	}
}

// A new head waits for agents that are seen to be there, and for most of those who vote, but for nobody for ever.
func TestWhoIsWaitedFor(t *testing.T) {
	const silence = time.Second
	for name, c := range map[string]struct {
		come, seen []int // hosts
		most       time.Duration
	}{
		"one is lost":               {come: []int{1, 2}, most: silence},
		"one is seen":               {come: []int{1, 2}, seen: []int{0}, most: control.AlivePatient},
		"two are seen":              {come: []int{1}, seen: []int{0, 2}, most: control.AlivePatient},
		"most have not come":        {come: []int{1}, most: control.AlivePatient},
		"one that does not vote is": {come: []int{0, 1, 2}, most: silence},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAgent(Job{})
				a.voters = []int{0, 1, 2}
				for i := range 4 {
					a.hosts = append(a.hosts, &host{index: i, processes: []int{i}})
				}
				ctx, end := context.WithCancel(t.Context())
				a.back = &reconvention{came: map[*host]returned{}, there: map[*host]time.Time{}, time: silence, since: time.Now(), over: ctx, end: end}
				for _, i := range c.come {
					a.back.came[a.hosts[i]] = returned{}
				}
				begun := time.Now()
				for ; a.waitsOn(); time.Sleep(silence / patient.Waits) {
					for _, i := range c.seen {
						a.back.there[a.hosts[i]] = time.Now()
					}
				}
				require.InDelta(t, c.most, time.Since(begun), float64(silence/5))
			})
		})
	}
}
