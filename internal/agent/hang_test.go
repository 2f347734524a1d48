package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// still is an agent with n processes that run, and have told Start, and no clock but ours.
func still(n int) *Agent {
	a := &Agent{job: Job{}, timers: map[*time.Timer]bool{}, events: make(chan func()), done: make(chan struct{}), toldStart: true, survival: newSurvival()}
	close(a.done) // what timers post is dropped: the test looks itself
	for i := range n {
		a.processes = append(a.processes, &process{index: i, ranks: []int{i}, started: true, joined: true, ready: true, host: &host{name: "h"}})
	}
	return a
}

// lookFor has the agent look at what stands still for that long.
func (a *Agent) lookFor(d time.Duration) {
	for range d / hangJudge {
		a.stops.last = time.Now().Add(-hangJudge)
		a.judgeStops()
	}
}

func TestWhoStandsStillAloneCounts(t *testing.T) {
	a := still(3)
	a.stopped(a.processes[1], "is stopped")
	a.lookFor(300 * time.Millisecond)
	require.InDelta(t, 300, a.processes[1].stop.alone.Milliseconds(), 50)

	// Now all are: the job is stopped as a whole, for however long.
	a.stopped(a.processes[0], "is stopped")
	a.stopped(a.processes[2], "is stopped")
	a.lookFor(10 * time.Second)
	for _, p := range a.processes {
		require.Zero(t, p.stop.alone)
	}

	// They go on one after the other.
	a.stopped(a.processes[0], "")
	a.lookFor(200 * time.Millisecond)
	a.stopped(a.processes[1], "")
	a.stopped(a.processes[2], "")
	require.Zero(t, a.processes[2].stop.alone)
}

func TestTheAgentsOwnPauseDoesNotCount(t *testing.T) {
	a := still(2)
	a.stopped(a.processes[1], "is stopped")
	a.stops.last = time.Now().Add(-time.Hour)
	a.judgeStops()
	require.LessOrEqual(t, a.processes[1].stop.alone, 2*hangJudge)
}
