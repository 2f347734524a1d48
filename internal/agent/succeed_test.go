package agent

import (
	"bytes"
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

// twoHosts is a job of two ranks, each on a host of its own, and of spare processes, and what a head has written of it.
func twoHosts(t *testing.T, spare ...ledger.Added) (Job, ledger.Job) {
	j, _, _ := lossy(t, "ring", 2, 2, 0)
	j = j.withDefaults()
	text, err := json.Marshal(plan{Job: j.portable()})
	require.NoError(t, err)
	job := ledger.Job{Name: "j", Plan: text, Processes: append([]ledger.Added{{Host: 0, Slot: 0, Ranks: []int{0}}, {Host: 1, Slot: 0, Ranks: []int{1}}}, spare...)}
	for _, h := range j.Hosts {
		job.Hosts = append(job.Hosts, h.Name)
	}
	return j, job
}

// The head before has written that a rank came to its new process; the deputy there, who
// does not know whether it has, says so again to the next head.
func TestAMoveThatCameUnderTheHeadBefore(t *testing.T) {
	j, job := twoHosts(t, ledger.Added{Host: 1, Slot: 1})
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
	j, job := twoHosts(t, ledger.Added{Host: 1, Slot: 1})
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
	j, job := twoHosts(t, ledger.Added{Host: 0, Slot: 1})
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
	j, job := twoHosts(t)
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

// secondHead is the head after one that wrote much: rank 0 has moved to process 2 and is to go on to process 5, rank 1 was recovered
// in process 3 from a snapshot that nobody had called covered, and process 4 was condemned.
func secondHead(t *testing.T) (*Agent, *notebook) {
	j, _, _ := lossy(t, "ring", 3, 2, 0)
	j = j.withDefaults()
	j.Quiet = true
	text, err := json.Marshal(plan{Job: j.portable()})
	require.NoError(t, err)
	job := ledger.Job{Name: "j", Plan: text, Processes: []ledger.Added{{Host: 0, Ranks: []int{0}}, {Host: 1, Ranks: []int{1}}, {Host: 2}, {Host: 0, Slot: 1}}}
	for _, h := range j.Hosts {
		job.Hosts = append(job.Hosts, h.Name)
	}
	state := new(ledger.State)
	for _, e := range []ledger.Entry{
		{Job: &job}, {Started: &ledger.Started{Copied: true}}, {Added: &ledger.Added{Host: 1, Slot: 1}}, {Added: &ledger.Added{Host: 1, Slot: 2}},
		{Moving: &ledger.Moving{Rank: 0, From: 0, To: 2, Epoch: 2}}, {Came: &ledger.Came{Epoch: 2}}, {MoveEnded: &ledger.MoveEnded{Epoch: 2}},
		{Covered: &ledger.Covered{Rank: 1, Version: ledger.Version{Epoch: 1, Number: 5}}},
		{Recovered: &ledger.Recovered{Epoch: 3, Lost: []int{1}, Ranks: []ledger.Revived{{Rank: 1, Process: 3, From: ledger.Version{Epoch: 1, Number: 6}, File: "f"}}}},
		{Condemned: &ledger.Condemned{Process: 4}}, {Moving: &ledger.Moving{Rank: 0, From: 2, To: 5, Epoch: 4}},
	} {
		require.NoError(t, state.Apply(e))
	}
	a, n := newAgent(j), &notebook{sent: map[int][]control.Message{}}
	require.NoError(t, a.recall(state))
	a.first = len(job.Processes)
	a.pen = &pen{Pen: ledger.NewPen(state)}
	a.emitJob()
	for _, h := range a.hosts {
		h.place = n
	}
	return a, n
}

func TestWhatTheNextHeadKnows(t *testing.T) {
	a, _ := secondHead(t)
	s, h, p := a.survival, a.hosts, a.processes
	require.True(t, s.copied && p[4].condemned && p[1].judged)
	require.Equal(t, []int{4}, s.lost)
	require.Equal(t, map[int]version{1: {1, 5}}, s.covered)
	require.Equal(t, map[control.Life]*host{{Rank: 0, Epoch: 1}: h[0], {Rank: 1, Epoch: 1}: h[1], {Rank: 0, Epoch: 2}: h[2], {Rank: 1, Epoch: 3}: h[0]}, s.homes)
	require.Equal(t, map[int]since{1: {3, version{1, 6}}}, s.since)
	require.Len(t, s.moving, 1)
	require.Equal(t, []any{p[2], p[5], false}, []any{s.moving[0].from, s.moving[0].to, s.moving[0].came})

	require.NoError(t, a.pen.State.Apply(ledger.Entry{Void: &ledger.Void{Epoch: 4}}))
	third := newAgent(a.job)
	require.NoError(t, third.recall(a.pen.State))
	require.Empty(t, third.survival.moving, "one has ended, one came to nothing")

	adopt := a.recovery(p[3], a.pen.State.Change(3).Recovered).Adopt
	require.False(t, adopt.Covered, "it was not known to be")
	require.Equal(t, []uint32{3, 1}, adopt.Lives)
	require.Nil(t, a.recovery(p[2], a.pen.State.Change(3).Recovered).Adopt)
}

// What the deputies say is believed, and what has happened meanwhile is seen to: who was to be killed is, a move that came to nothing is void.
func TestWhatTheNextHeadIsTold(t *testing.T) {
	a, n := secondHead(t)
	h, p := a.hosts, a.processes
	a.draining = 5
	of := control.Rejoined{Processes: []control.Account{
		{Process: 2, Hello: &control.Hello{}, Start: 1, Maps: []uint32{3}, Ready: &control.Ready{Addrs: []control.Addr{{}}}, Saved: []control.Saved{{Rank: 0, Epoch: 2, Number: 3, File: "g"}}, Stayed: []control.Stayed{{Rank: 0, Epoch: 4}}, Drained: true},
	}}
	on := control.Rejoined{Processes: []control.Account{{Process: 1, Start: 1}, {Process: 4, Start: 2, Ready: &control.Ready{Addrs: []control.Addr{{}}}}, {Process: 5, Start: 2}}, Heard: []control.Life{{Rank: 0, Epoch: 2}}}
	a.believe(h[2], of)
	a.believe(h[1], on)
	require.Equal(t, 2, a.ready)
	require.Equal(t, []stored{{version{2, 3}, h[2], "g"}}, a.storedOf(0))
	require.True(t, p[2].drained && !p[1].drained)
	require.Equal(t, 5, a.draining, "of one the output has been passed on, of one that is gone it has not")
	require.Equal(t, []*host{h[1]}, a.survival.witnesses[h[2]])

	a.retell(p[2], &of.Processes[0])
	require.NotNil(t, n.sent[2][0].Meet)
	require.Equal(t, 4, n.sent[2][0].Meet.Index)
	require.EqualValues(t, 4, n.sent[2][len(n.sent[2])-1].Depart.Epoch)
	a.catchUp(h[1], on, len(p))
	require.ElementsMatch(t, []int{1, 4}, n.killed)
	a.catchUp(h[2], of, len(p))
	require.Empty(t, a.survival.moving)
	require.Equal(t, ledger.Voided, a.pen.State.Change(4).Kind)
}

// The agent of a host that was given up is not listened to, nor are its ranks.
func TestWhoWasGivenUpDoesNotComeBack(t *testing.T) {
	for _, lost := range []bool{false, true} {
		a, _ := secondHead(t)
		a.back = &reconvention{came: map[*host]returned{}, there: map[*host]time.Time{}}
		r := &remote{a: a, host: a.hosts[1], out: make(chan control.ToAgent, 1)}
		r.host.lost = lost
		a.rejoined(r, control.Rejoined{}, "there", make(chan bool, 1))
		_, came := a.back.came[r.host]
		require.Equal(t, !lost, came)
		if lost {
			require.NotNil(t, (<-r.out).Over)
		}
		for timer := range a.timers {
			timer.Stop()
		}
	}
}

// Why the job ends the next head says: the one before may have been lost before its words were shown.
func TestAVerdictOfTheHeadBefore(t *testing.T) {
	j, job := twoHosts(t)
	state := new(ledger.State)
	for _, e := range []ledger.Entry{{Job: &job}, {Started: &ledger.Started{}}, {Verdict: &ledger.Verdict{Code: 7, Text: "rank 1: it is over"}}} {
		require.NoError(t, state.Apply(e))
	}
	a := newAgent(j)
	require.NoError(t, a.recall(state))
	a.pen = &pen{Pen: ledger.NewPen(state)}
	var errs bytes.Buffer
	a.speaker = newSpeaker(&stream{screen: new(screen), w: &errs})
	a.emitJob()
	for _, p := range a.processes {
		p.judged, p.exited = true, true // nobody is left to be told
	}
	a.conclude(*state.Verdict)
	for timer := range a.timers {
		timer.Stop()
	}
	a.speaker.close()
	require.Contains(t, errs.String(), "rank 1: it is over")
	require.Equal(t, 7, a.code)
	require.Equal(t, 7, a.news.state.Verdict.Verdict.Code)
}
