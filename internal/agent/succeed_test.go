package agent

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/ledger"
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
	require.True(t, a.processes[0].judged)
	a.first, a.ready = len(job.Processes), 2 // by what the deputies say
	a.mixed()
	require.False(t, a.ending)
}
