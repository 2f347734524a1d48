package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/dirty"
	"github.com/mpiv/mpiv/internal/race"
	"github.com/mpiv/mpiv/mpiv"
)

// Jobs of real programs, whose processes are killed and whose ranks are moved.

func init() {
	for name, p := range map[string]turns{
		"turns":                        {state: true, safe: true},
		"turns without a State":        {},
		"turns without safe points":    {state: true},
		"turns, and 1 dies of it":      {state: true, safe: true, dies: true},
		"turns with much state":        {state: true, safe: true, load: 2 << 20},
		"slow turns":                   {state: true, safe: true, pause: 20 * time.Millisecond},
		"slower turns":                 {state: true, safe: true, pause: 50 * time.Millisecond},
		"slower turns with much state": {state: true, safe: true, load: 2 << 20, pause: 50 * time.Millisecond},
	} {
		members[name] = func(*member) { mpiv.Main(p.run) }
	}
	members["turns, and process 3 leaves"] = func(m *member) {
		if m.process != 3 {
			mpiv.Main(turns{state: true, safe: true}.run)
		}
	}
}

// turns is a program in which each rank passes a number on, again and again. What
// comes out hangs on every message and on their order.
type turns struct {
	state bool          // it protects its variables
	safe  bool          // it has safe points
	dies  bool          // rank 1 kills its process, always in the same turn
	pause time.Duration // more, in each turn
	load  int           // numbers it carries along, of which it writes to some in each turn
}

const turnsOf = 200 // each some milliseconds

// envHeld names a file: while it is there, turns get slow, and no rank begins its last one.
const envHeld = "MPIV_TEST_HELD"

// hold keeps j from ending by itself until letGo: however long it takes, the test comes first.
func hold(t *testing.T, j *Job) {
	t.Helper()
	file := filepath.Join(j.Runtime, "held")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	j.Programs[0].Env = append(j.Programs[0].Env, envHeld+"="+file)
}

func letGo(t *testing.T, j Job) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(j.Runtime, "held")))
}

func held() bool {
	file, err := os.Stat(os.Getenv(envHeld))
	return err == nil && time.Since(file.ModTime()) < 2*time.Minute // or the test is gone
}

func (p turns) run(ctx context.Context, world *mpiv.Comm) error {
	turn, sum, load := 0, []uint64{uint64(world.Rank())}, make([]uint64, p.load)
	if p.state {
		world.State().Protect("turn", &turn)
		world.State().Protect("sum", &sum)
		world.State().Protect("load", &load)
		if err := world.State().Restore(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("rank %d begins in turn %d\n", world.Rank(), turn)
	if want := make([]uint64, p.load); !slices.Equal(load, p.loaded(want, 0, turn)) {
		return errors.New("other numbers have come along")
	}
	size := world.Size()
	for got := []uint64{0}; turn < turnsOf; turn++ {
		for wait := true; wait; {
			if wait = turn == turnsOf-1 && held(); wait {
				time.Sleep(2 * time.Millisecond)
			}
			if p.safe {
				if err := world.State().SafePoint(ctx); err != nil {
					return err
				}
			}
		}
		p.loaded(load, turn, turn+1)
		if p.dies && world.Rank() == 1 && turn == 20 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if _, err := mpiv.Sendrecv(ctx, world, sum, (world.Rank()+1)%size, 1, got, (world.Rank()+size-1)%size, 1); err != nil {
			return err
		}
		sum[0] = 31*sum[0] + got[0] + uint64(turn)
		time.Sleep(2*time.Millisecond + p.pause)
		if turn >= turnsOf/2 && held() {
			time.Sleep(20 * time.Millisecond) // so that there is something under way for a while
		}
	}
	all := make([]uint64, size)
	if err := mpiv.Gather(ctx, world, sum, all, 0); err != nil {
		return err
	}
	if world.Rank() == 0 {
		fmt.Printf("result %x\n", all)
	}
	return nil
}

// loaded is the load after turns, if it was load before them.
func (p turns) loaded(load []uint64, from, to int) []uint64 {
	for turn := from; turn < to && len(load) > 0; turn++ {
		for i := range 20 {
			load[(turn*31+i*7919)*677%len(load)] += uint64(turn*i + 1)
		}
	}
	return load
}

// result is what turns prints at its end for so many ranks.
func result(ranks int) string {
	sums := make([]uint64, ranks)
	for r := range sums {
		sums[r] = uint64(r)
	}
	for turn := range turnsOf {
		before := append([]uint64(nil), sums...)
		for r := range sums {
			sums[r] = 31*before[r] + before[(r+ranks-1)%ranks] + uint64(turn)
		}
	}
	return fmt.Sprintf("result %x\n", sums)
}

// A trial is a job that runs.
type trial struct {
	*testing.T
	*Agent
	job       Job
	out, errs *buffer
}

func try(t *testing.T, ranks, spares int, survive, do string) *trial {
	t.Helper()
	j, out, errs := jobOf(t, ranks, do)
	j.Verbose, j.Spares, j.Options.Survive, j.Options.Snapshot = true, spares, survive, 20*time.Millisecond
	return begin(t, j, out, errs)
}

// begin is try for a job of turns, which ends when endsWell is called.
func begin(t *testing.T, j Job, out, errs *buffer) *trial {
	t.Helper()
	hold(t, &j)
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "begins in turn 0", j.Programs[0].Ranks)
	return &trial{t, a, j, out, errs}
}

// in runs f in the agent's loop.
func (tr *trial) in(f func()) {
	done := make(chan struct{})
	tr.post(func() { f(); close(done) })
	select {
	case <-done:
	case <-tr.done:
		tr.Fatalf("the job has ended: %s", tr.errs)
	}
}

// saved waits until there is a snapshot of each rank, and all spares are ready.
func (tr *trial) saved() *trial {
	tr.Helper()
	tr.until(func() bool {
		for _, p := range tr.processes {
			if !p.joined {
				return false
			}
		}
		return len(tr.survival.stored) == tr.job.Programs[0].Ranks
	})
	return tr
}

// kill kills the processes of ranks at once, or a spare: -1; and waits until ranks have
// other processes, and there are as many spares as before.
func (tr *trial) kill(ranks ...int) {
	tr.Helper()
	var killed []*process
	tr.in(func() {
		for _, r := range ranks {
			p := tr.processOf(r)
			if r < 0 {
				p = tr.spareFor(tr.processes[0], nil)
			}
			if p != nil && syscall.Kill(p.pid, syscall.SIGKILL) == nil {
				killed = append(killed, p)
			}
		}
	})
	require.Len(tr, killed, len(ranks))
	tr.until(func() bool {
		for i, p := range killed {
			if ranks[i] >= 0 && tr.processOf(ranks[i]) == p || !p.exited {
				return false
			}
		}
		spares := 0
		for _, p := range tr.processes {
			if len(p.ranks) == 0 && p.joined && !p.exited {
				spares++
			}
		}
		return spares >= tr.job.Spares
	})
}

// until waits until f, which is run in the agent's loop, is true, or the job ends.
func (tr *trial) until(f func() bool) {
	tr.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var now bool
		tr.in(func() { now = f() })
		if now {
			return
		}
		if time.Now().After(end) {
			tr.Fatalf("it did not come so far in a minute; said %s", tr.errs)
		}
	}
}

func (tr *trial) moveRank(r int) error {
	_, err := Ask(tr.dir.Path, Question{Op: "move", Rank: r})
	return err
}

// endsWell lets the job go and waits for it, which is to print what it would have if nothing had
// happened.
func (tr *trial) endsWell() {
	tr.Helper()
	letGo(tr.T, tr.job)
	require.Zero(tr, tr.Wait(), "said %s", tr.errs)
	require.Equal(tr, 1, strings.Count(tr.out.String(), "result "))
	require.Contains(tr, tr.out.String(), result(tr.job.Programs[0].Ranks))
}

func TestRanksOutliveTheirProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		kills [][]int // one after the other, each at once
		says  []string
	}{
		{"one is killed", [][]int{{1}}, []string{"killed by signal 9", "rank 1 goes on from snapshot "}},
		{"the first is killed", [][]int{{0}}, []string{"rank 0 goes on from snapshot "}},
		{"one is killed, and again where it went", [][]int{{1}, {1}}, []string{"in process 4", "rank 1 goes on from snapshot "}},
		{"two are killed at once", [][]int{{1, 2}}, []string{"rank 1 goes on from", "rank 2 goes on from"}},
		{"a spare is killed", [][]int{{-1}}, nil},
		{"all that can be, one after the other", [][]int{{0}, {1}, {2}, {-1}}, []string{"rank 0 goes on from", "rank 1 goes on from", "rank 2 goes on from"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := try(t, 4, 2, "crashes", "turns").saved()
			for _, ranks := range c.kills {
				tr.kill(ranks...)
			}
			tr.endsWell()
			for _, s := range c.says {
				require.Contains(t, tr.errs.String(), s)
			}
		})
	}
}

// What is spare, or takes the place of what was killed, has no rank when it starts, but a core.
func TestSparesAreBoundToCores(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 2, "turns")
	j.Verbose, j.Bind, j.Spares, j.Options.Survive, j.Options.Snapshot = true, true, 2, "crashes", 20*time.Millisecond
	tr := begin(t, j, out, errs).saved()
	tr.kill(1)
	tr.in(func() {
		for _, p := range tr.processes {
			if p.exited {
				continue
			}
			var cores unix.CPUSet
			if assert.NoError(t, unix.SchedGetaffinity(p.pid, &cores)) {
				assert.Less(t, cores.Count(), max(runtime.NumCPU(), 2), "process %d", p.index)
			}
		}
	})
	tr.endsWell()
}

func TestRanksMove(t *testing.T) {
	t.Parallel()
	for _, survive := range []string{"moves", "crashes"} {
		t.Run(survive, func(t *testing.T) {
			tr := try(t, 3, 3, survive, "turns")
			for _, r := range []int{2, 0, 2} {
				require.NoError(t, tr.moveRank(r))
			}
			tr.endsWell()
			require.Greater(t, strings.Count(tr.out.String(), "rank 2 begins"), 2)
		})
	}
}

// What a rank writes is that of the rank, in whichever process it is.
func TestOutputIsOfTheRankThatHasTheProcess(t *testing.T) {
	t.Parallel()
	for _, files := range []bool{false, true} {
		t.Run(fmt.Sprintf("in files %v", files), func(t *testing.T) {
			t.Parallel()
			j, out, errs := jobOf(t, 2, "slow turns")
			j.Verbose, j.Spares, j.Options.Survive, j.Options.Snapshot, j.Tag = true, 1, "crashes", 20*time.Millisecond, true
			if files {
				j.OutputDir = t.TempDir()
				j.Tag = false
			}
			a, err := Start(j)
			require.NoError(t, err)
			errs.await(t, "ranks start", 1)
			tr := &trial{t, a, j, out, errs}
			for _, r := range []int{1, 0, 1} {
				require.NoError(t, tr.moveRank(r))
			}
			require.Zero(t, a.Wait(), "%s", errs)
			seen := 0
			for r := range 2 {
				said, mine := out.String(), fmt.Sprintf("[%d]<stdout>: ", r)
				if files {
					all, err := os.ReadFile(filepath.Join(j.OutputDir, fmt.Sprintf("rank.%d.stdout", r)))
					require.NoError(t, err)
					said, mine = string(all), ""
				}
				for line := range strings.Lines(said) {
					if strings.HasPrefix(line, mine) && strings.Contains(line, "begins in turn") {
						require.Equal(t, fmt.Sprintf("%srank %d begins", mine, r), line[:len(mine)+len("rank 0 begins")])
						seen++
					}
				}
			}
			require.Equal(t, 5, seen, "%s", out)
		})
	}
}

// What a rank writes to while its state goes ahead of it comes, too.
func TestMuchStateGoesAhead(t *testing.T) {
	t.Parallel()
	tr := try(t, 2, 2, "moves", "turns with much state")
	for _, r := range []int{1, 0, 1} {
		require.NoError(t, tr.moveRank(r))
	}
	tr.endsWell()
	said := regexp.MustCompile(`goes on in process \d+: \d+ bytes of state, (\d+) of them ahead of it`).FindAllStringSubmatch(tr.errs.String(), -1)
	require.Len(t, said, 3, tr.errs)
	if book, err := dirty.Open(); err != nil || race.Enabled {
		t.Skip("nothing goes ahead here: ", err)
	} else {
		book.Close()
	}
	for _, s := range said {
		ahead, err := strconv.Atoi(s[1])
		require.NoError(t, err)
		require.Greater(t, ahead, 8<<20)
	}
}

// Processes without a rank hold memory ready, those with one do not, and the ranks that come
// have their state.
func TestSparesHoldMemoryReady(t *testing.T) {
	t.Parallel()
	const ready = 96 << 20
	for _, survive := range []string{"moves", "crashes"} {
		t.Run(survive, func(t *testing.T) {
			t.Parallel()
			j, out, errs := jobOf(t, 2, "slower turns with much state")
			j.Verbose, j.Spares, j.Options.Survive, j.Options.Snapshot, j.Options.Ready = true, 1, survive, 20*time.Millisecond, ready
			tr := begin(t, j, out, errs)
			for _, r := range []int{1, 0} {
				tr.until(func() bool {
					spare, rank := 0, 0
					for _, p := range tr.processes {
						if n := resident(t, p.pid); len(p.ranks) > 0 {
							rank = max(rank, n)
						} else if !p.exited {
							spare = n
						}
					}
					return spare > ready && (rank < ready || race.Enabled) // which takes as much
				})
				if survive == "crashes" {
					tr.saved().kill(r)
				} else {
					require.NoError(t, tr.moveRank(r))
				}
			}
			tr.endsWell()
		})
	}
}

// resident is how many bytes of memory a process has; 0 if it has ended.
func resident(t *testing.T, pid int) (n int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size int
	_, err = fmt.Sscan(string(text), &size, &n)
	require.NoError(t, err)
	return n * os.Getpagesize()
}

// Of much state only what was written to is saved. What a rank goes on from is all of it,
// wherever it has been, and each rank looks at every number.
func TestMuchStateIsSavedInParts(t *testing.T) {
	t.Parallel()
	tr := try(t, 2, 2, "crashes", "turns with much state").saved()
	newest := func(r int) (n uint64) {
		for _, st := range tr.survival.stored[r] {
			n = max(n, st.number)
		}
		return n
	}
	for _, r := range []int{1, 0, 1} {
		var first uint64
		tr.in(func() { first = newest(r) })
		tr.until(func() bool { return newest(r) >= first+4 }) // the third of a life is the first of which only a part is saved
		if r == 0 {
			require.NoError(t, tr.moveRank(r))
		}
		tr.kill(r)
	}
	tr.endsWell()
	require.Equal(t, 3, strings.Count(tr.errs.String(), "goes on from snapshot "))
}

// A rank that goes from process to process leaves nothing behind that it will not go on from: no
// files, and nothing that is known of where it was.
func TestEarlierLivesLeaveNothing(t *testing.T) {
	t.Parallel()
	tr := try(t, 2, 1, "crashes", "slower turns").saved()
	left := func() (names []string) {
		for _, kind := range []string{"rank", "choices"} {
			files, err := filepath.Glob(filepath.Join(tr.dir.Path, kind+"-1.*"))
			require.NoError(t, err)
			for _, f := range files {
				names = append(names, filepath.Base(f))
			}
		}
		return names
	}
	for i := range 5 {
		tr.until(func() bool { return tr.spareFor(tr.processOf(1), nil) != nil })
		if i%2 == 0 {
			require.NoError(t, tr.moveRank(1))
		} else {
			tr.kill(1)
		}
		tr.until(func() bool {
			s := &tr.survival
			homes := 0
			for l := range s.homes {
				if l.Rank == 1 {
					homes++
				}
			}
			return slices.Equal(left(), []string{fmt.Sprintf("rank-1.%d", s.epoch), fmt.Sprintf("choices-1.%d", s.epoch)}) &&
				slices.Equal(s.past[1], []uint32{s.epoch}) && homes == 1 && len(s.stored[1]) == 1
		})
	}
	tr.endsWell()
}

// A process without ranks has the file ready that one will need: who has left makes one, who comes uses it,
// and of who is killed it does not stay.
func TestWhoHasNoRankHasAFileReady(t *testing.T) {
	t.Parallel()
	tr := try(t, 2, 1, "crashes", "slower turns").saved()
	ready := func(processes ...int) func() bool {
		var want []string
		for _, p := range processes {
			want = append(want, filepath.Join(tr.dir.Path, control.BlankFile(p)))
		}
		return func() bool {
			files, err := filepath.Glob(filepath.Join(tr.dir.Path, "blank-*"))
			require.NoError(t, err)
			return slices.Equal(files, want)
		}
	}
	tr.until(ready(2))
	require.NoError(t, tr.moveRank(1))
	tr.until(ready(1))
	tr.kill(1)
	tr.until(ready(3))
	tr.kill(-1)
	tr.until(ready(4))
	tr.endsWell()
}

// The first snapshot of a life that counts is one that is whole: before that its rank goes on
// from what the life before has left.
func TestALifeThatHasNotSavedForgetsNothing(t *testing.T) {
	a, n := surviving(1, 0, 0)
	p := a.processes
	a.saved(p[0], control.Saved{Rank: 0, Epoch: 1, Number: 5, File: "of a"})
	for _, to := range p[1:] {
		m := a.moveTo(0, a.processOf(0), to, func(error) {})
		a.arrived(to, control.Arrived{Rank: 0, Epoch: m.epoch})
		a.arrived(to, control.Arrived{Rank: 0, Epoch: m.epoch, Whole: true})
	}
	require.Equal(t, []stored{{version{1, 5}, p[0].host, "of a"}}, a.storedOf(0))
	require.Equal(t, []uint32{3, 2, 1}, a.livesOf(0, 1))
	require.Empty(t, slices.DeleteFunc(n.sent[2], func(m control.Message) bool { return m.Covered == nil }))

	for number := range uint64(3) {
		a.saved(p[2], control.Saved{Rank: 0, Epoch: 3, Number: 6 + number, File: "of c"})
	}
	require.Equal(t, []stored{{version{3, 8}, p[2].host, "of c"}}, a.storedOf(0))
	require.Equal(t, []uint32{3}, a.livesOf(0, 3))
	require.Equal(t, []control.Message{{Covered: &control.Covered{Rank: 0, Epoch: 3, Number: 6}}},
		slices.DeleteFunc(n.sent[2], func(m control.Message) bool { return m.Covered == nil }), "it is told once, so that its host is")
}

// A process that comes later, and ends before it has joined, is one spare less, and
// another is started.
func TestASpareThatNeverJoinsIsReplaced(t *testing.T) {
	t.Parallel()
	tr := try(t, 2, 1, "crashes", "turns, and process 3 leaves").saved()
	tr.kill(1)
	tr.endsWell()
	require.Contains(t, tr.errs.String(), "ended before it had joined the job")
}

// The program can no longer be started, or is another one. The ranks do without a spare process until it
// can be again; one that needs it meanwhile ends the job, for which it is told why.
func TestNoSpareCanBeStarted(t *testing.T) {
	t.Parallel()
	program := func(t *testing.T, j Job, to string) {
		next := j.Programs[0].Path + ".next"
		require.NoError(t, os.Symlink(to, next))
		require.NoError(t, os.Rename(next, j.Programs[0].Path))
	}
	for name, c := range map[string]struct{ to, says string }{
		"it is gone":    {"nowhere", "was not found"},
		"it is another": {"/bin/true", "before it had joined the job"},
	} {
		without := func(t *testing.T) (tr *trial, self string) {
			j, out, errs := jobOf(t, 2, "turns")
			j.Spares, j.Options.Survive, j.Options.Snapshot = 1, "crashes", 20*time.Millisecond
			self = j.Programs[0].Path
			j.Programs[0].Path = filepath.Join(j.Runtime, "program")
			program(t, j, self)
			tr = begin(t, j, out, errs).saved()
			program(t, j, c.to)
			tr.in(func() { syscall.Kill(tr.processOf(0).pid, syscall.SIGKILL) })
			errs.await(t, "no spare process can be started: ", 1)
			require.Contains(t, errs.String(), c.says)
			return tr, self
		}
		t.Run(name+" for a while", func(t *testing.T) {
			tr, self := without(t)
			require.ErrorContains(t, tr.moveRank(1), "none can be started: ")
			program(t, tr.job, self)
			tr.until(func() bool { return tr.spareFor(tr.processes[1], nil) != nil })
			require.Equal(t, 1, strings.Count(tr.errs.String(), "no spare process can be started"))
			tr.endsWell()
		})
		t.Run(name+" for long, but not when a rank needs it", func(t *testing.T) {
			tr, self := without(t)
			tr.until(func() bool { return tr.survival.failures.row > failuresInARow })
			program(t, tr.job, self)
			tr.kill(1)
			tr.endsWell()
		})
		t.Run(name+", and a rank needs it", func(t *testing.T) {
			tr, _ := without(t)
			tr.in(func() { syscall.Kill(tr.processOf(1).pid, syscall.SIGKILL) })
			require.Equal(t, 128+int(syscall.SIGKILL), tr.Wait())
			require.Regexp(t, `rank 1 on host here was killed by signal 9.*; there is no spare process left for it, and none can be started: .*`+c.says, tr.errs.String())
		})
	}
}

// The only spare process awaits a rank which does not come to a safe point before
// another rank has gone on, that has no spare process then.
func TestASpareThatAwaitsARankIsNone(t *testing.T) {
	t.Parallel()
	tr := try(t, 3, 1, "crashes", "turns").saved()
	var first *process
	tr.in(func() {
		first = tr.processOf(1)
		syscall.Kill(first.pid, syscall.SIGSTOP)
	})
	time.Sleep(hangTime / 5) // all wait for it, and it is not taken to hang yet
	moved := make(chan error, 1)
	tr.in(func() { tr.move(2, "", func(err error) { moved <- err }) })
	tr.in(func() { syscall.Kill(first.pid, syscall.SIGKILL) })
	require.NoError(t, <-moved)
	tr.endsWell()
	require.Contains(t, tr.errs.String(), "rank 1 goes on from")
}

// A rank that was recovered says so after it has been told to leave again.
func TestAMoveEndsWithItsOwnArrival(t *testing.T) {
	t.Parallel()
	tr := try(t, 3, 1, "crashes", "turns").saved()
	moved := make(chan error, 1)
	tr.in(func() {
		from := tr.processOf(1)
		tr.move(1, "", func(err error) { moved <- err })
		tr.arrived(from, control.Arrived{Rank: 1, Epoch: 1, Whole: true})
		require.NotNil(t, tr.survival.moving[1])
	})
	require.NoError(t, <-moved)
	tr.endsWell()
}

// That a process was started may be heard after it has joined, and others meanwhile.
func TestWhoHasJoinedIsToldOfOthers(t *testing.T) {
	t.Parallel()
	tr := try(t, 3, 2, "crashes", "turns").saved()
	tr.in(func() {
		for _, p := range tr.processes {
			p.started = false
		}
		require.Len(t, tr.members(), 5)
		for _, p := range tr.processes {
			p.started = true
		}
	})
	tr.endsWell()
}

func TestWhatHasNoStateBeginsAgain(t *testing.T) {
	t.Parallel()
	tr := try(t, 3, 1, "crashes", "turns without a State")
	tr.kill(1)
	tr.endsWell()
	require.Contains(t, tr.errs.String(), "rank 1 goes on from the beginning")
	require.Equal(t, 2, strings.Count(tr.out.String(), "rank 1 begins in turn 0"))
}

// A rank that is lost before its first snapshot is known to go on as any other.
func TestWhatHasNoSnapshotYetBeginsAgain(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 3, "turns")
	j.Verbose, j.Spares, j.Options.Survive, j.Options.Snapshot = true, 1, "crashes", time.Minute
	tr := begin(t, j, out, errs)
	tr.kill(1)
	tr.endsWell()
	require.Equal(t, 2, strings.Count(out.String(), "rank 1 begins in turn 0"))
	require.Contains(t, errs.String(), "rank 1 goes on from the beginning in process 3")
	require.Contains(t, errs.String(), "rank 1 goes on in process 3: 0 bytes of state")
}

func TestWithoutASpareTheJobEnds(t *testing.T) {
	tr := try(t, 3, 0, "crashes", "turns")
	tr.in(func() { syscall.Kill(tr.processOf(1).pid, syscall.SIGKILL) })
	require.Equal(t, 137, tr.Wait())
	require.Contains(t, tr.errs.String(), "rank 1 on host here was killed by signal 9")
	require.Contains(t, tr.errs.String(), "there is no spare process left for it (--spares)")
	require.NotContains(t, tr.out.String(), "result")
}

func TestAtLevelMovesADeathEndsTheJob(t *testing.T) {
	tr := try(t, 3, 1, "moves", "turns")
	tr.in(func() { syscall.Kill(tr.processOf(1).pid, syscall.SIGKILL) })
	require.Equal(t, 137, tr.Wait())
	require.NotContains(t, tr.errs.String(), "goes on")
}

func TestARankThatAlwaysDiesIsGivenUp(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 3, "turns, and 1 dies of it")
	j.Spares, j.Options.Survive, j.Options.Snapshot = livesMost, "crashes", time.Minute // it dies faster than spares start
	require.Equal(t, 137, runJob(t, j), "said %s", errs)
	require.Contains(t, errs.String(), fmt.Sprintf("%d times now since rank 1 was last saved, so another life will not help", livesMost+1))
	require.Equal(t, livesMost+1, strings.Count(out.String(), "rank 1 begins in turn 0"))
	require.NotContains(t, out.String(), "result")
}

func TestMovesThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, survive, do string
		spares, rank      int
		says              string
	}{
		{"no spare", "moves", "turns", 0, 1, "there is no spare process: start the job with --spares"},
		{"no such rank", "moves", "turns", 1, 3, "there is no rank 3"},
		{"not at level none", "none", "turns", 0, 1, "the job runs with --survive none: its ranks cannot be moved"},
		{"no State", "moves", "turns without a State", 1, 1, "rank 1 stays where it is: its program has sent messages without calling State.Restore before"},
		{"no State, where processes may die", "crashes", "turns without a State", 1, 2, "rank 2 stays where it is: its program has sent messages without"},
		{"no safe point", "moves", "turns without safe points", 1, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := try(t, 3, c.spares, c.survive, c.do)
			if c.says != "" {
				began := time.Now()
				require.ErrorContains(t, tr.moveRank(c.rank), c.says)
				require.Less(t, time.Since(began), movePatience/2)
				tr.endsWell()
				return
			}
			refused := make(chan error)
			go func() { refused <- tr.moveRank(c.rank) }()
			tr.until(func() bool { return tr.survival.moving[c.rank] != nil })
			tr.endsWell() // before a safe point would have to be there
			require.Error(t, <-refused)
		})
	}
}
