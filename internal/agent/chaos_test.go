package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
)

// A fakeBreaker notes what it is asked for.
type fakeBreaker struct {
	mu    sync.Mutex // guards what follows
	asked []string
}

func (b *fakeBreaker) note(what string, f chaos.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, what+" "+f.What())
}

func (b *fakeBreaker) Prepare(f chaos.Fault, busy []string) (chaos.Fault, error) {
	if f.Host == "Q" {
		return f, errors.New("there is no host Q")
	}
	if f.Kind == chaos.KindFlood {
		f.Attacker = "not-" + busy[0]
	}
	return f, nil
}

func (b *fakeBreaker) Begin(f chaos.Fault) error {
	b.note("begin", f)
	if f.Host == "W" {
		return errors.New("the cable of W is stuck")
	}
	return nil
}

func (b *fakeBreaker) End(f chaos.Fault) (string, error) {
	b.note("end", f)
	return "it was wet", nil
}

func TestFaultsOfHosts(t *testing.T) {
	j, _, errs := jobOf(t, 2, "wait")
	b := &fakeBreaker{}
	history := filepath.Join(j.Runtime, "history")
	j.Breaker, j.ChaosHistory, j.Events, j.Timeout = b, history, filepath.Join(j.Runtime, "events"), time.Minute
	var err error
	j.Chaos, err = chaos.Parse("slow X 5mbit@50ms for 500ms; cut W@60ms; flood X@1s; cut Y@1h")
	require.NoError(t, err)
	a, err := Start(j)
	require.NoError(t, err)
	errs.await(t, "chaos: flood X from not-here@1s: begun\n", 1)
	a.Signal(syscall.SIGINT)
	require.Equal(t, exit.Signal+int(syscall.SIGINT), a.Wait(), "%s", errs)

	require.Equal(t, []string{"begin slow X 5mbit", "begin cut W", "end slow X 5mbit", "begin flood X from not-here", "end flood X from not-here"}, b.asked)
	got := historyIn(t, history)
	require.Equal(t, []string{
		"slow X 5mbit@50ms for 500ms begun ", "cut W@60ms refused the cable of W is stuck", "slow X 5mbit@50ms for 500ms ended it was wet",
		"flood X from not-here@1s begun ", "cut Y@1h missed the job ends", "flood X from not-here@1s ended it was wet",
	}, got)

	text, err := os.ReadFile(j.Events)
	require.NoError(t, err)
	var told []string
	for line := range strings.Lines(string(text)) {
		e, err := events.Parse([]byte(line))
		require.NoError(t, err)
		if e.Kind == events.FaultOrdered {
			told = append(told, e.Fault.Fault+" "+e.Fault.Step)
		}
	}
	require.Len(t, told, len(got))
	for i := range told {
		require.Contains(t, got[i], told[i])
	}
	require.Contains(t, errs.String(), "mpivrun: chaos: slow X 5mbit@50ms for 500ms: ended: it was wet\n")
	require.Contains(t, errs.String(), "mpivrun: chaos: the job ends before 1 of 4 faults\n")
}

// A fault that begins when another of the same cables ends is not undone by that one's end, however late that began.
func TestFaultsOfHostsBackToBack(t *testing.T) {
	j, _, errs := jobOf(t, 2, "wait")
	b := &fakeBreaker{}
	history := filepath.Join(j.Runtime, "history")
	j.Breaker, j.ChaosHistory, j.Timeout = b, history, time.Minute
	var err error
	j.Chaos, err = chaos.Parse("slow X 5mbit@50ms for 100ms; slow X 3mbit@150ms for 100ms; slow X 1mbit@250ms for 100ms")
	require.NoError(t, err)
	a, err := Start(j)
	require.NoError(t, err)
	errs.await(t, "chaos: slow X 1mbit@250ms for 100ms: ended", 1)
	a.Signal(syscall.SIGINT)
	require.Equal(t, exit.Signal+int(syscall.SIGINT), a.Wait(), "%s", errs)
	require.Equal(t, []string{"begin slow X 5mbit", "end slow X 5mbit", "begin slow X 3mbit", "end slow X 3mbit", "begin slow X 1mbit", "end slow X 1mbit"}, b.asked)
	require.Equal(t, []string{
		"slow X 5mbit@50ms for 100ms begun ", "slow X 5mbit@50ms for 100ms ended it was wet",
		"slow X 3mbit@150ms for 100ms begun ", "slow X 3mbit@150ms for 100ms ended it was wet",
		"slow X 1mbit@250ms for 100ms begun ", "slow X 1mbit@250ms for 100ms ended it was wet",
	}, historyIn(t, history))
}

func TestFaultsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		spec, says string
		change     func(j *Job)
	}{
		{"kill 2@1s", "--chaos: kill 2@1s: the job has ranks 0 to 1", func(*Job) {}},
		{"cut X@1s", "--chaos: cut X@1s: it needs a lab", func(*Job) {}},
		{"cut Q@1s", "--chaos: cut Q@1s: there is no host Q", func(j *Job) { j.Breaker = &fakeBreaker{} }},
		{"move 1@1s", "say --spares 1", func(*Job) {}},
		{"move 1@1s", "--survive none", func(j *Job) { j.Options.Survive = "none" }},
		{"move 1 to b@1s", "the job has no process on host b", func(j *Job) { j.Spares = 1 }},
	} {
		j, _, _ := jobOf(t, 2, "finish")
		c.change(&j)
		var err error
		j.Chaos, err = chaos.Parse(c.spec)
		require.NoError(t, err)
		_, err = Start(j)
		require.ErrorContains(t, err, c.says, c.spec)
		var code *exit.Error
		require.ErrorAs(t, err, &code)
		require.Equal(t, 2, code.Code)
	}
}

// Of a process that is killed to order nobody is told to ask the kernel.
func TestKilledToOrder(t *testing.T) {
	for _, places := range [][]string{nil, {"there"}} {
		j, _, errs := jobOf(t, 4, "wait")
		elsewhere(t, &j, places...)
		j.RanksPerProcess = 2
		var err error
		j.Chaos, err = chaos.Parse("kill 2@10ms")
		require.NoError(t, err)
		require.Equal(t, exit.Signal+9, runJob(t, j), "%s", errs)
		require.Regexp(t, `ranks 2-3 on host (here|there) were killed by signal 9 \(killed\)\n`, errs.String())
	}
}

// Of faults that are not done, as the program knows nothing of mpiv and so has no ranks that start, it is told.
func TestFaultsOfNoRanks(t *testing.T) {
	j, _, errs := jobOf(t, 2, "finish")
	j.Programs[0].Path, j.Programs[0].Env = "/bin/true", nil
	j.Chaos = chaos.Schedule{chaos.Kill(1)}
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Contains(t, errs.String(), "chaos: none of 1 faults was done")
}

// A move that is under way when the job ends does not end, which is told.
func TestAMoveThatTheJobEndsBefore(t *testing.T) {
	j, _, errs := jobOf(t, 2, "wait")
	history := filepath.Join(j.Runtime, "history")
	j.ChaosHistory, j.Options.Survive, j.Spares = history, "moves", 1
	var err error
	j.Chaos, err = chaos.Parse("move 0@100ms")
	require.NoError(t, err)
	a, err := Start(j)
	require.NoError(t, err)
	errs.await(t, "chaos: move 0@100ms: begun in ", 1)
	a.Signal(syscall.SIGINT)
	require.Equal(t, exit.Signal+int(syscall.SIGINT), a.Wait(), "%s", errs)
	require.Equal(t, []string{"move 0@100ms begun ", "move 0@100ms refused the job ends before the rank has moved"}, historyIn(t, history))
}

// historyIn is the history in a file, a line each.
func historyIn(t *testing.T, file string) (lines []string) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	h, err := chaos.ReadHistory(f)
	require.NoError(t, err)
	for _, r := range h {
		lines = append(lines, r.Fault+" "+string(r.Step)+" "+r.Text)
	}
	return lines
}
