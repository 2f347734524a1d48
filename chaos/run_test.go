package chaos_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/mpiv"
)

// The mpiv program of these tests is this test binary, told by this variable how
// many steps it does.
const envSteps = "CHAOS_TEST_STEPS"

func TestMain(m *testing.M) {
	if os.Getenv(envSteps) != "" {
		mpiv.Main(steps)
		return
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// steps adds up numbers of all ranks, a step each few milliseconds. Rank 0 tells the sum, its longest
// step and how many took more than 50 ms.
func steps(ctx context.Context, world *mpiv.Comm) error {
	var most, i int
	if _, err := fmt.Sscan(os.Getenv(envSteps), &most); err != nil {
		return err
	}
	sum := []int{0}
	state := world.State()
	state.Protect("i", &i)
	state.Protect("sum", &sum)
	if err := state.Restore(ctx); err != nil {
		return err
	}
	var longest time.Duration
	long, last := 0, time.Now()
	for ; i < most; i++ {
		if err := state.SafePoint(ctx); err != nil {
			return err
		}
		part := []int{0}
		if err := mpiv.Allreduce(ctx, world, []int{(i + 1) * (world.Rank() + 1)}, part, mpiv.Sum); err != nil {
			return err
		}
		sum[0] += part[0]
		time.Sleep(2 * time.Millisecond)
		took := time.Since(last)
		if last = time.Now(); took > 50*time.Millisecond {
			long++
		}
		longest = max(longest, took)
	}
	if world.Rank() == 0 {
		fmt.Printf("sum %d longest %d long %d\n", sum[0], longest.Milliseconds(), long)
	}
	return nil
}

// sumOf is what ranks add up to in so many steps.
func sumOf(steps, ranks int) int { return steps * (steps + 1) / 2 * ranks * (ranks + 1) / 2 }

// built is mpivrun, made once.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// job is one of n ranks that do so many steps, with options of mpivrun.
func job(t *testing.T, n, steps int, options ...string) chaos.Job {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "mpivbin-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", built.dir+"/", "../cmd/mpivrun")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w: %s", err, out)
		}
	})
	require.NoError(t, built.err)
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "chaos")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return chaos.Job{Mpivrun: filepath.Join(built.dir, "mpivrun"), Args: append(append([]string{"-n", fmt.Sprint(n), "--timeout", "60"}, options...), self),
		Env: []string{fmt.Sprintf("%s=%d", envSteps, steps), "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir, "GORACE=atexit_sleep_ms=0"}}
}

// finished runs j, which must finish, and returns what rank 0 tells.
func finished(t *testing.T, j chaos.Job, want int) (r chaos.Result, longest, long int) {
	t.Helper()
	r, err := chaos.Run(t.Context(), j)
	require.NoError(t, err)
	require.Zero(t, r.Code, "%s%s", r.Stdout, r.Stderr)
	var sum int
	_, err = fmt.Sscanf(r.Stdout, "sum %d longest %d long %d", &sum, &longest, &long)
	require.NoError(t, err, "%s", r.Stdout)
	require.Equal(t, want, sum, "the sum")
	for i, rec := range r.History {
		require.False(t, i > 0 && rec.Time.Before(r.History[i-1].Time), "%v", r.History)
	}
	return r, longest, long
}

// step is the only record of a fault with that step.
func step(t *testing.T, h chaos.History, f chaos.Fault, s chaos.Step) chaos.Record {
	t.Helper()
	var found chaos.History
	for _, r := range h.Of(s) {
		if r.Fault == f.String() {
			found = append(found, r)
		}
	}
	require.Len(t, found, 1, "%v %s in %v", f, s, h)
	return found[0]
}

func TestAProcessStandsStillAndRunsSlowly(t *testing.T) {
	const n, steps = 3, 700
	j := job(t, n, steps)
	stop := chaos.Stop(2).At(200 * time.Millisecond).For(700 * time.Millisecond)
	duty := chaos.Duty(1, 10).At(1000 * time.Millisecond).For(time.Second)
	j.Schedule = chaos.Schedule{duty, stop}
	r, longest, long := finished(t, j, sumOf(steps, n))
	require.GreaterOrEqual(t, longest, 600, "ms of the longest step, with a rank that stands still for 700")
	require.GreaterOrEqual(t, long, 5, "steps of more than 50 ms, with a rank that stands still ten times for 90")
	require.Len(t, r.History, 4)
	for _, f := range []chaos.Fault{stop, duty} {
		begun, ended := step(t, r.History, f, chaos.Begun), step(t, r.History, f, chaos.Ended)
		require.Equal(t, f.Rank, *begun.Rank)
		require.Equal(t, f.Rank, *begun.Process)
		require.NotZero(t, begun.PID)
		require.NotEmpty(t, begun.Host)
		require.Equal(t, begun.PID, ended.PID)
		require.GreaterOrEqual(t, begun.After, f.Start)
		require.GreaterOrEqual(t, ended.After-begun.After, f.Length)
	}
	require.Contains(t, r.Stderr, "mpivrun: chaos: "+stop.String()+": begun in process 2")
}

// The rank is killed where it has gone to.
func TestAFaultFindsItsRankWhereItIs(t *testing.T) {
	const n, steps = 3, 950
	j := job(t, n, steps, "--spares", "2", "--snapshot", "0.1")
	move, kill := chaos.Move(2).At(300*time.Millisecond), chaos.Kill(2).At(1500*time.Millisecond)
	j.Schedule = chaos.Schedule{move, kill}
	r, _, _ := finished(t, j, sumOf(steps, n))
	from, to := step(t, r.History, move, chaos.Begun), step(t, r.History, move, chaos.Ended)
	require.Equal(t, 2, *from.Process)
	require.NotEqual(t, 2, *to.Process)
	killed := step(t, r.History, kill, chaos.Begun)
	require.Equal(t, *to.Process, *killed.Process)
	require.Equal(t, to.PID, killed.PID)
	require.Contains(t, r.Stderr, fmt.Sprintf("rank 2 on host %s was killed by signal 9", killed.Host))
}

// Stops last 150 ms, too short to be taken for a hang.
func TestRandomFaultsAreOutlived(t *testing.T) {
	const n, steps = 3, 1000
	j := job(t, n, steps, "--spares", "2", "--snapshot", "0.1")
	j.Schedule = chaos.Schedule{chaos.Random{Seed: 7, Kills: 2, Stops: 1, Duties: 1, Moves: 2, Every: 300 * time.Millisecond}}
	r, _, _ := finished(t, j, sumOf(steps, n))
	kills := func(s chaos.Step) (n int) {
		for _, rec := range r.History.Of(s) {
			if f, err := chaos.Parse(rec.Fault); err == nil && f[0].(chaos.Fault).Kind == chaos.KindKill {
				n++
			}
		}
		return n
	}
	require.Positive(t, kills(chaos.Begun), "%v", r.History)
	require.Equal(t, 2, kills(chaos.Begun)+kills(chaos.Refused), "%v", r.History) // its rank may not be back from the first
}

func TestAJobThatFailsTellsItsHistory(t *testing.T) {
	j := job(t, 2, 100_000)
	kill, late := chaos.Kill(1).At(300*time.Millisecond), chaos.Stop(0).At(time.Hour)
	j.Schedule = chaos.Schedule{kill, late}
	r, err := chaos.Run(t.Context(), j)
	require.NoError(t, err)
	require.Equal(t, 137, r.Code, "%s", r.Stderr)
	step(t, r.History, kill, chaos.Begun)
	step(t, r.History, late, chaos.Missed)
	require.Len(t, r.History, 2)
	require.Contains(t, r.Stderr, "the job ends before 1 of 2 faults")
}

// What lasts until the job ends is ended before it, so that the job can.
func TestNothingStandsStillWhenTheJobEnds(t *testing.T) {
	j := job(t, 2, 100_000, "--timeout", "1")
	stop := chaos.Stop(1).At(100 * time.Millisecond)
	j.Schedule = chaos.Schedule{stop}
	r, err := chaos.Run(t.Context(), j)
	require.NoError(t, err)
	require.Equal(t, 110, r.Code, "%s", r.Stderr)
	step(t, r.History, stop, chaos.Begun)
	step(t, r.History, stop, chaos.Ended)
}

func TestRunRefuses(t *testing.T) {
	j := job(t, 2, 1)
	j.Schedule = chaos.Schedule{chaos.Kill(-1)}
	_, err := chaos.Run(t.Context(), j)
	require.ErrorContains(t, err, "the schedule")
	j.Schedule = chaos.Schedule{chaos.Kill(5)}
	r, err := chaos.Run(t.Context(), j)
	require.NoError(t, err)
	require.Equal(t, 2, r.Code)
	require.Contains(t, r.Stderr, "kill 5@0s: the job has ranks 0 to 1")
	j.Mpivrun = "/no/such/mpivrun"
	_, err = chaos.Run(t.Context(), j)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer stop()
	_, err := chaos.Run(ctx, job(t, 2, 100_000))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestRunRefusesNil(t *testing.T) {
	_, err := chaos.Run(t.Context(), chaos.Job{Mpivrun: "true", Schedule: chaos.Schedule{nil}})
	require.ErrorContains(t, err, "nil")
}

// Where temporary files go may be said by a path from here, and the job work elsewhere.
func TestRunElsewhere(t *testing.T) {
	j := job(t, 2, 5)
	j.Schedule, j.Dir = chaos.Schedule{chaos.Stop(1).At(0).For(time.Millisecond)}, t.TempDir()
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("tmp", 0o700))
	t.Setenv("TMPDIR", "tmp")
	r, err := chaos.Run(t.Context(), j)
	require.NoError(t, err)
	require.Zero(t, r.Code, "%s", r.Stderr)
	require.NotEmpty(t, r.History)
}
