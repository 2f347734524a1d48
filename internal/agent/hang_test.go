package agent

import (
	"testing"
	"testing/synctest"
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

// A process that hangs and cannot even die is done without: its rank goes on elsewhere.
func TestWhoCannotDieIsDoneWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, n := surviving(1, 1, 0)
		a.done = make(chan struct{})
		p := a.processes[0]
		a.running, p.stop.hung = 3, "is stopped: it hangs"
		begun := time.Now()
		a.putOut(p)
		require.Equal(t, []int{0}, n.killed)
		for len(a.processes[2].ranks) == 0 {
			select {
			case f := <-a.events:
				f()
			case <-time.After(time.Minute):
				t.Fatal("its rank goes on nowhere")
			}
		}
		require.LessOrEqual(t, time.Since(begun), 2*hangEnd)
		require.True(t, p.judged)
		require.Equal(t, 2, a.running)
		for t := range a.timers {
			t.Stop()
		}
	})
}

// A process is not ended for a hang if there is no spare for each of its ranks; at level "report", only if it takes part.
func TestWhoHangsIsEndedOnlyIfThatHelps(t *testing.T) {
	a, _ := surviving(2, 1, 0)
	p := a.processes[0]
	require.False(t, a.mayReplace(p), "two ranks, and one spare process")
	a.processes = append(a.processes, &process{index: 3, host: a.hosts[2], joined: true, started: true})
	require.True(t, a.mayReplace(p))
	a.job.Options.Survive = "report"
	require.True(t, a.mayReplace(p))
	p.joined = false
	require.False(t, a.mayReplace(p))
}
