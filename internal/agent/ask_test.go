package agent

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
)

// receiving is a rank's report that it waits for a message from peer.
func receiving(rank, peer int, id uint64) control.RankReport {
	return control.RankReport{Rank: rank, State: "waiting", Waits: []control.Wait{{
		ID: id, Op: "Recv", Where: "main.go:17", Since: time.Now().Add(-500 * time.Millisecond).UnixNano(),
		Needs: []control.Need{{Peer: peer, What: "message", Comm: "world", Tag: 5}},
	}}}
}

// answer reports what the ranks do whenever it is asked, until Stop comes, or
// over is closed.
func (m *member) answer(report func(round int) []control.RankReport, over <-chan struct{}) {
	asked := make(chan control.Message)
	go func() {
		for {
			msg, err := m.conn.Receive()
			if err != nil {
				return
			}
			asked <- msg
		}
	}()
	for round := 0; ; {
		select {
		case msg := <-asked:
			switch {
			case msg.Stop != nil:
				return
			case msg.Ask != nil:
				m.send(control.Message{Report: &control.Report{ID: msg.Ask.ID, Process: m.process, Ranks: report(round)}})
				round++
			}
		case <-over:
			return
		}
	}
}

func (m *member) stalled() {
	m.send(control.Message{Report: &control.Report{Process: m.process}})
}

func init() {
	ring := func(m *member, _ int) []control.RankReport {
		return []control.RankReport{receiving(m.process, (m.process+1)%len(m.start.Processes), 3)}
	}
	members["ring"] = func(m *member) {
		m.join().stalled()
		m.answer(func(round int) []control.RankReport { return ring(m, round) }, nil)
	}
	members["ring until a signal"] = func(m *member) {
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGUSR1)
		m.join().stalled()
		freed := false
		m.answer(func(round int) []control.RankReport {
			select {
			case <-told:
				freed = true
			default:
			}
			if freed {
				return []control.RankReport{{Rank: m.process, State: "running"}}
			}
			return ring(m, round)
		}, nil)
	}
	// Each look finds another call, so there is progress.
	members["slow ring"] = func(m *member) {
		m.join().stalled()
		m.answer(func(round int) []control.RankReport {
			r := ring(m, round)
			r[0].Waits[0].ID = uint64(round)
			return r
		}, after(time.Second))
		m.finish()
	}
	// Rank 1 finishes, some time after rank 0 has said, once, that it waits.
	members["deserter"] = func(m *member) {
		if m.join(); m.process == 1 {
			m.answer(func(int) []control.RankReport { return []control.RankReport{{Rank: 1, State: "running"}} }, after(400*time.Millisecond))
			m.send(control.Message{Finished: &control.Finished{Ranks: []int{1}, Reports: []control.RankReport{{Rank: 1}}}})
			return
		}
		m.stalled()
		m.answer(func(int) []control.RankReport { return []control.RankReport{receiving(0, 1, 1)} }, nil)
	}
	// The same, but what rank 1 sent is still on its way, for ever.
	members["in flight"] = func(m *member) {
		if m.join(); m.process == 1 {
			m.send(control.Message{Finished: &control.Finished{Ranks: []int{1}, Reports: []control.RankReport{
				{Rank: 1, Sent: []control.Count{{Peer: 0, N: 1}}}}}})
			return
		}
		m.stalled()
		m.answer(func(int) []control.RankReport { return []control.RankReport{receiving(0, 1, 1)} }, after(time.Second))
		m.finish()
	}
	// Rank 1 does not answer.
	members["silent"] = func(m *member) {
		if m.join(); m.process == 1 {
			time.Sleep(time.Minute)
		}
		m.stalled()
		m.answer(func(int) []control.RankReport { return []control.RankReport{receiving(0, 1, 1)} }, nil)
	}
}

func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

func TestDeadlockEndsTheJob(t *testing.T) {
	j, _, errs := jobOf(t, 3, "ring")
	began := time.Now()
	require.Equal(t, 1, runJob(t, j))
	took := time.Since(began)
	require.Contains(t, errs.String(), "deadlock in job test:\n  each waits for the next: rank 0 → rank 1 → rank 2 → rank 0\n")
	require.Contains(t, errs.String(), " ms in Recv (main.go:17) for a message from rank 2, tag 5, on world")
	require.Less(t, took, 30*time.Second) // of a starved host
	t.Logf("started, found and ended in %v", took)
}

func TestDeserterIsNamed(t *testing.T) {
	t.Parallel()
	j, _, errs := jobOf(t, 2, "deserter")
	require.Equal(t, 1, runJob(t, j))
	require.Contains(t, errs.String(), "rank 1 has finished without sending what rank 0 waits for in Recv (main.go:17)")
}

func TestNoDeadlock(t *testing.T) {
	t.Parallel()
	for _, do := range []string{"slow ring", "in flight"} {
		t.Run(do, func(t *testing.T) {
			j, _, errs := jobOf(t, 2, do)
			require.Zero(t, runJob(t, j), "it said %s", errs)
			require.Empty(t, errs.String())
		})
	}
}

func TestDeadlockIsOnlySaid(t *testing.T) {
	j, _, errs := jobOf(t, 3, "ring")
	j.Deadlock = "say"
	a, err := Start(j)
	require.NoError(t, err)
	errs.await(t, "deadlock in job test", 1)
	ans, err := Ask(filepath.Join(j.Runtime, a.Name()), Question{Op: "explain"})
	require.NoError(t, err)
	require.True(t, ans.Proven)
	require.Equal(t, []int{0, 1, 2}, ans.Explanation.Deadlock.Ranks)
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	require.Equal(t, 1, strings.Count(errs.String(), "deadlock in job"), "said once")
}

// A deadlock that was told, and has not ended the job, is told to be over when it is.
func TestDeadlockIsOver(t *testing.T) {
	t.Parallel()
	j, _, errs := jobOf(t, 2, "ring until a signal")
	j.Deadlock = "say"
	a, err := Start(j)
	require.NoError(t, err)
	var heard collected
	watching := make(chan error, 1)
	go func() { watching <- Watch(t.Context(), filepath.Join(j.Runtime, a.Name()), heard.add) }()
	require.Eventually(t, func() bool { return heard.has(events.DeadlockProven) }, 20*time.Second, 10*time.Millisecond)
	a.Signal(syscall.SIGUSR1)
	require.Eventually(t, func() bool { return heard.has(events.DeadlockOver) }, 20*time.Second, 10*time.Millisecond)
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	require.NoError(t, <-watching, "%s", errs)
}

// Between the end of an agent's socket and that of its directory, and at their beginning, there is one without the other.
func TestAskingAJobThatHasJustEnded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job-1")
	require.NoError(t, os.Mkdir(dir, 0o700))
	_, err := Ask(dir, Question{Op: "ps"})
	require.EqualError(t, err, "job job-1 has just ended, or is about to begin")
	require.EqualError(t, Watch(t.Context(), dir, nil), err.Error())
	_, traced := Trace(t.Context(), dir, time.Second, nil)
	require.EqualError(t, traced, err.Error())
}

func TestExplainNamesWhoDoesNotAnswer(t *testing.T) {
	t.Parallel()
	j, _, _ := jobOf(t, 2, "silent")
	a, err := Start(j)
	require.NoError(t, err)
	dir := filepath.Join(j.Runtime, a.Name())
	var ans Answer
	require.Eventually(t, func() bool {
		ans, err = Ask(dir, Question{Op: "explain"})
		return err == nil && len(ans.Explanation.Waits) > 0
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, []int{1}, ans.Silent)
	require.Nil(t, ans.Explanation.Deadlock, "rank 1 may be running")
	require.Contains(t, ans.Explanation.Waits[0], "rank 0 waits")
	a.Abort("enough")
	a.Wait()
}

func TestTimeoutExplains(t *testing.T) {
	j, _, errs := jobOf(t, 3, "ring")
	j.Deadlock, j.Timeout = "off", time.Hour
	a, err := Start(j)
	require.NoError(t, err)
	dir := filepath.Join(j.Runtime, a.Name())
	require.Eventually(t, func() bool {
		ans, err := Ask(dir, Question{Op: "explain"})
		return err == nil && len(ans.Explanation.Waits) == 3
	}, 20*time.Second, 10*time.Millisecond)
	a.post(a.timedOut) // the hour is over
	require.Equal(t, exit.Timeout, a.Wait())
	require.Contains(t, errs.String(), "did not end within 1h0m0s (--timeout):\n  each waits for the next")
}
