package agent

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/rundir"
)

func init() {
	members["exit"] = func(*member) { os.Exit(3) }
	members["idle"] = func(*member) { time.Sleep(time.Minute) }
}

// tryOn begins a job of slow turns, a rank on each of hosts "here" and "b", which ends when endsWell is called.
func tryOn(t *testing.T, survive string, set func(*Job)) *trial {
	t.Helper()
	j, out, errs := jobOf(t, 2, "slow turns")
	elsewhere(t, &j, "b")
	j.Hosts = append([]Host{{Name: "here", Here: true}}, j.Hosts...)
	j.ByNode, j.Verbose, j.Options.Survive, j.Options.Snapshot = true, true, survive, 20*time.Millisecond
	j.Silence = 10 * time.Second // what is killed is heard to be
	if set != nil {
		set(&j)
	}
	hold(t, &j)
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "begins in turn 0", 2)
	return &trial{t, a, j, out, errs}
}

// order asks the job for what is done about a host.
func (tr *trial) order(op, host string) (string, error) {
	ans, err := Ask(tr.dir.Path, Question{Op: op, Host: host, Slots: 2})
	return ans.Decision, err
}

// ranksAre waits until the host that is called so has as many ranks, and none is on its way.
func (tr *trial) ranksAre(host string, n int) {
	tr.Helper()
	tr.until(func() bool { return tr.ranksOn(tr.hostNamed(host)) == n && len(tr.survival.moving) == 0 })
}

// killAgent kills the agent of a host.
func (tr *trial) killAgent(host string) {
	tr.Helper()
	var pid int
	tr.in(func() {
		for _, h := range tr.news.state.Hosts {
			if h.Name == host {
				pid = h.Agent.PID
			}
		}
	})
	require.Positive(tr, pid)
	require.NotEqual(tr, os.Getpid(), pid)
	require.NoError(tr, syscall.Kill(pid, syscall.SIGKILL))
}

func TestHostAdded(t *testing.T) {
	t.Parallel()
	for _, survive := range []string{"moves", "crashes"} {
		t.Run(survive, func(t *testing.T) {
			tr := tryOn(t, survive, nil)
			_, err := tr.order("drain", "b")
			require.ErrorContains(t, err, "have room for 0")
			says, err := tr.order("add", "c")
			require.NoError(t, err)
			require.Regexp(t, `^decision \d+: the operator adds host c: add host; add host c: done in`, says)
			_, err = tr.order("drain", "b")
			require.NoError(t, err)
			_, err = Ask(tr.dir.Path, Question{Op: "move", Rank: 0, Host: "c"})
			require.NoError(t, err, "%s", tr.errs)
			tr.ranksAre("c", 2)
			tr.endsWell()
			require.Contains(t, tr.errs.String(), "the operator adds host c")
		})
	}
}

// What was moved to a host that was added goes on when another is lost, and that one itself.
func TestHostsLostAfterOneWasAdded(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"b", "c"} {
		t.Run(lost, func(t *testing.T) {
			tr := tryOn(t, "crashes", func(j *Job) { j.Spares = 2 })
			tr.saved()
			_, err := tr.order("add", "c")
			require.NoError(t, err)
			_, err = Ask(tr.dir.Path, Question{Op: "move", Rank: 0, Host: "c"})
			require.NoError(t, err, "%s", tr.errs)
			tr.killAgent(lost)
			tr.ranksAre(lost, 0)
			tr.endsWell()
			require.Contains(t, tr.errs.String(), "host "+lost+": its agent has ended, and with it rank")
		})
	}
}

// One that cannot be added is told who asked, in one sentence, and the job goes on.
func TestHostsThatCannotBeAdded(t *testing.T) {
	t.Parallel()
	tr := tryOn(t, "crashes", func(j *Job) { j.Spares, j.Programs[0].Env = 1, append(j.Programs[0].Env, envDo+"=slower turns") })
	lines := func(script string) []string { return []string{"sh", "-c", script, "sh"} }
	for _, c := range []struct {
		name string
		set  func(j *Job) // when the job runs
		says string
	}{
		{"nobody can reach it", func(j *Job) { j.Launch.Command = lines("echo welcome; echo no route to it >&2; exit 255") }, "host c: no agent was started there, sh ended with code 255: no route to it"},
		{"nothing happens", func(j *Job) {
			j.Launch.Command, j.Launch.Patience = lines("exec sleep 60"), 100*time.Millisecond
		}, "no agent has joined from host c within 100ms"},
		{"mpivrun is not there", func(j *Job) { j.Launch.Mpivrun = "/nowhere/mpivrun" }, "host c: mpivrun was not found there"},
		{"the program is not there", func(j *Job) { j.Programs[0].Path = "./nowhere" }, `host c: program "./nowhere" was not found`},
		{"the program leaves", func(j *Job) { j.Programs[0].Env = append(j.Programs[0].Env, envDo+"=exit") }, "a spare process on host c exited with code 3 before it had joined the job"},
		{"it is of another version", func(j *Job) { j.Programs[0].Env = append(j.Programs[0].Env, envDo+"=old") }, "build the program and mpivrun from the same mpiv"},
		{"the program does nothing", func(j *Job) {
			j.Programs[0].Env, j.Launch.Patience = append(j.Programs[0].Env, envDo+"=idle"), 5*time.Second
		}, "host c: its processes run there, and have not called mpiv.Main within 5s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var launch Launch
			var program Program
			tr.in(func() {
				launch, program = tr.Agent.job.Launch, tr.Agent.job.Programs[0]
				c.set(&tr.Agent.job)
			})
			_, err := tr.order("add", "c")
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, strings.TrimSpace(err.Error()), "\n", "one sentence")
			tr.in(func() {
				require.True(t, tr.hostNamed("c").lost)
				tr.Agent.job.Launch, tr.Agent.job.Programs[0] = launch, program
			})
		})
	}
	says, err := tr.order("add", "c")
	require.NoError(t, err, "it can be tried again")
	require.Contains(t, says, "add host c: done")
	_, err = tr.order("drain", "b")
	require.NoError(t, err)
	tr.ranksAre("b", 0)
	tr.endsWell()
}

func TestJobsThatTakeNoMoreHosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, survive string
		set           func(j *Job)
		says          string
	}{
		{"its ranks cannot move", "none", nil, "--survive none: its ranks cannot go to a host that is added"},
		{"nor where failures are reported", "report", nil, "--survive report: its ranks cannot go to a host that is added"},
		{"it has one host", "crashes", func(j *Job) { j.Hosts = j.Hosts[:1] }, "the job began with processes on one host only"},
		{"srun starts its agents", "moves", nil, "--launch-agent ssh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := tryOn(t, c.survive, c.set)
			tr.in(func() { tr.Agent.job.Launch.Slurm = c.name == "srun starts its agents" })
			_, err := tr.order("add", "c")
			require.ErrorContains(t, err, c.says)
			tr.Abort("enough")
			require.Equal(t, 1, tr.Wait())
		})
	}
}

// A host that was lost is added again: it is another, in quarantine, until it is uncordoned.
func TestHostAddedAgain(t *testing.T) {
	t.Parallel()
	tr := tryOn(t, "crashes", func(j *Job) { j.Spares = 2 })
	tr.saved()
	_, err := tr.order("add", "b")
	require.ErrorContains(t, err, "b is in the job already")
	tr.killAgent("b")
	tr.ranksAre("b", 0)
	tr.until(func() bool { return !tr.policy.hosts["b"] })
	says, err := tr.order("add", "b")
	require.NoError(t, err)
	require.Contains(t, says, "add host b: done")
	require.Regexp(t, `b is in quarantine for another \d+s \(crash\): wait, or uncordon it$`, says)
	_, err = tr.order("uncordon", "b")
	require.NoError(t, err)
	_, err = Ask(tr.dir.Path, Question{Op: "move", Rank: 0, Host: "b"})
	require.NoError(t, err)
	tr.ranksAre("b", 1)
	tr.killAgent("b")
	tr.ranksAre("b", 0)
	tr.endsWell()
}

// Who watches a job sees the host that was added.
func TestHostAddedIsAnEvent(t *testing.T) {
	t.Parallel()
	tr := tryOn(t, "moves", nil)
	_, err := tr.order("add", "c")
	require.NoError(t, err)
	ans, err := Ask(tr.dir.Path, Question{Op: "ps"})
	require.NoError(t, err)
	hosts := ans.State().Hosts
	require.Equal(t, []string{"here", "b", "c"}, []string{hosts[0].Name, hosts[1].Name, hosts[2].Name})
	require.True(t, hosts[2].Joined)
	require.Len(t, ans.State().On("c"), 2)
	require.Equal(t, events.PhaseRunning, ans.State().On("c")[0].Phase)
	tr.Abort("enough")
	require.Equal(t, 1, tr.Wait())
}

// The head knows of a host that was added by the one before it.
func TestHeadKilledAfterAHostWasAdded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		hosts int
	}{{"it led among three", 3}, {"it leads among three now", 2}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j, out, errs := lossy(t, "slower turns", c.hosts, 3, 0)
			j.Silence, j.Verbose, j.Options.Snapshot = 2*time.Second, true, 20*time.Millisecond
			hold(t, &j)
			dir, first, code := outliving(t, j, out, errs)
			out.await(t, "begins in turn 0", c.hosts)
			if c.hosts > 2 {
				errs.await(t, "is known to 3 agents", 1)
			}
			_, err := Ask(dir, Question{Op: "add", Host: "z", Slots: 2})
			require.NoError(t, err, "%s", errs)
			errs.await(t, "is known to 3 agents", 1)
			_, err = Ask(dir, Question{Op: "move", Rank: 1, Host: "z"})
			require.NoError(t, err, "%s", errs)
			require.NoError(t, first.Process.Kill())
			errs.await(t, "leads the job from now on", 1)
			letGo(t, j)
			require.Zero(t, awaitCode(t, code, errs), "%s", errs)
			require.Contains(t, out.String(), result(c.hosts))
			require.NotContains(t, errs.String(), "rank 1 goes on from", "its host is still there")
			before, after, _ := strings.Cut(errs.String(), "leads the job from now on")
			require.Greater(t, lastStamp(t, after), lastStamp(t, before), "a job is as old under its next head: %s", errs)
		})
	}
}

// lastStamp is when the last line of text that says so was written, in milliseconds since the job began.
func lastStamp(t *testing.T, text string) (ms float64) {
	t.Helper()
	all := regexp.MustCompile(`(?m)^mpivrun: +([0-9.]+) ms: `).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, all, text)
	ms, err := strconv.ParseFloat(all[len(all)-1][1], 64)
	require.NoError(t, err)
	return ms
}

// outlivingWithoutZ is a job that can lose its head, and whose agent on host z would never join.
func outlivingWithoutZ(t *testing.T) (dir string, first *exec.Cmd, code <-chan int, errs *buffer) {
	t.Helper()
	j, out, errs := lossy(t, "save", 3, 3, 1)
	j.Silence, j.Verbose = 2*time.Second, true
	j.Launch.Command[2] = `[ $1 = z ] && exec cat >/dev/null; ` + j.Launch.Command[2]
	dir, first, code = outliving(t, j, out, errs)
	out.await(t, "ready", 3)
	errs.await(t, "is known to 3 agents", 1)
	return dir, first, code, errs
}

// A head that hands over while it adds a host says that it does not: the next would not know.
func TestHeadHandsOverWhileAHostIsAdded(t *testing.T) {
	t.Parallel()
	dir, first, code, errs := outlivingWithoutZ(t)
	added := make(chan error, 1)
	go func() {
		_, err := Ask(dir, Question{Op: "add", Host: "z"})
		added <- err
	}()
	errs.await(t, "host z: an agent is started there", 1)
	_, err := Ask(dir, Question{Op: "drain", Host: "here"})
	require.NoError(t, err, "%s", errs)
	require.ErrorContains(t, <-added, "another agent is to lead the job")
	errs.await(t, "leads the job from now on", 1)
	require.NoError(t, first.Process.Kill())
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
}

// others is where the agents of the other two hosts are asked; dir is that of the first.
func others(t *testing.T, dir string) []string {
	t.Helper()
	socks, err := filepath.Glob(rundir.AskSocket(filepath.Join(filepath.Dir(dir), "*")))
	require.NoError(t, err)
	socks = slices.DeleteFunc(socks, func(s string) bool { return filepath.Dir(s) == dir })
	require.Len(t, socks, 2, "the agents of the other hosts")
	return socks
}

// Who asks by the agent of another host hears soon that the head is lost; what changes nothing the next one answers.
func TestHeadKilledBeforeItAnswers(t *testing.T) {
	t.Parallel()
	dir, first, code, errs := outlivingWithoutZ(t)
	socks := others(t, dir)
	added := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := Ask(filepath.Dir(socks[0]), Question{Op: "add", Host: "z"})
		added <- err
	}()
	errs.await(t, "host z: an agent is started there", 1)
	require.NoError(t, first.Process.Signal(syscall.SIGSTOP)) // it hears questions, and says nothing
	seen := make(chan error, 1)
	go func() {
		_, err := Ask(filepath.Dir(socks[1]), Question{Op: "explain"})
		seen <- err
	}()
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, first.Process.Kill())
	require.ErrorContains(t, <-added, "the agent that led the job is lost")
	require.Less(t, time.Since(start), addTime/2)
	if err := <-seen; err != nil {
		require.ErrorIs(t, err, ErrNoHead, "there is no other for so long on a machine that starves them")
	}
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
}

// A host has one name in a job, however who asks writes its user.
func TestHostsAreCalledWithAnyUser(t *testing.T) {
	a, _ := surviving(1, 1, 1, 1)
	for i, name := range []string{"a", "me@b", "me@a", "::1"} {
		a.hosts[i].name = name
	}
	for name, want := range map[string]string{
		"a": "a", "me@a": "me@a", "you@a": "a", "b": "me@b", "me@b": "me@b", "you@b": "me@b", "::1": "::1", "me@::1": "::1", "c": "c", "me@c": "me@c", "": "",
	} {
		require.Equal(t, want, a.called(name), name)
	}
}

// An order is answered with the name that the job has for the host: who waits until it is empty looks for that.
func TestAnOrderIsAnsweredWithTheHostsName(t *testing.T) {
	a, _ := surviving(1, 1, 1)
	a.hosts[1].name = "me@b"
	a.cordon(nil)
	reply := make(chan Answer, 1)
	a.orderAsked(Question{Op: "cordon", Host: "b"}, reply)
	ans := <-reply
	require.Empty(t, ans.Error)
	require.Equal(t, "me@b", ans.Host)
	require.True(t, a.policy.machine.Cordoned("me@b"))
}

// A host that is being added, and does not come, leaves nothing that the job waits for, here or under the next head.
func TestAHostThatIsNotAddedLeavesNothing(t *testing.T) {
	a, n := surviving(1, 0)
	lj := ledger.Job{Name: "j", Hosts: []string{"a", "b"}}
	for _, p := range a.processes {
		lj.Processes = append(lj.Processes, ledger.Added{Host: p.host.index, Ranks: p.ranks})
	}
	a.pen = &pen{Pen: ledger.NewPen(new(ledger.State))}
	a.record(ledger.Entry{Job: &lj})
	a.running, a.draining = 2, 2
	h := &host{index: 2, name: "c", place: n}
	var told error
	h.adding = &adding{slots: 1, ended: func(err error) { told = err }}
	a.hosts = append(a.hosts, h)
	a.record(ledger.Entry{HostAdded: &ledger.HostAdded{Name: "c"}})
	a.job.Programs = []Program{{Path: "x"}}
	for _, p := range a.processes {
		p.prog = &a.job.Programs[0]
	}
	_, err := a.newSpare(h, a.processes[0])
	require.NoError(t, err)
	require.Equal(t, 3, a.running)
	a.notAdded(h, io.EOF)
	require.ErrorIs(t, told, io.EOF)
	require.Equal(t, 2, a.running)
	require.True(t, a.processes[2].judged && h.lost)
	require.True(t, a.pen.State.Hosts[2].Lost && a.pen.State.Processes[2].Gone)
	told = nil
	a.notAdded(h, io.EOF)
	require.NoError(t, told, "it is told once")
}
