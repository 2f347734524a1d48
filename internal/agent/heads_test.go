package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
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

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/rundir"
)

func init() {
	members["read"] = func(m *member) {
		m.join()
		over := make(chan struct{})
		go func() { // a real process answers whatever its ranks do
			defer close(over)
			for {
				switch msg, err := m.conn.Receive(); {
				case err != nil || msg.Stop != nil:
					return
				case msg.Ping != nil:
					m.send(control.Message{Pong: msg.Ping})
				}
			}
		}()
		if slices.Contains(m.ranks(), 1) {
			io.Copy(os.Stdout, os.Stdin)
		}
		m.finish()
		<-over
	}
}

// outliving begins j, whose hosts include this one, with its first agent a process of its
// own, and shows it: the channel has its exit code.
func outliving(t *testing.T, j Job, out, errs *buffer) (dir string, first *exec.Cmd, code <-chan int) {
	t.Helper()
	return outlivingTo(t, j, &Viewer{Stdin: j.Stdin, Stdout: out, Stderr: errs}, errs)
}

// outlivingTo does that, and v shows it.
func outlivingTo(t *testing.T, j Job, v *Viewer, errs *buffer) (dir string, first *exec.Cmd, code <-chan int) {
	t.Helper()
	orders, err := FirstOrders(j)
	require.NoError(t, err)
	dir, first = begun(t, j, orders)
	ended := make(chan int, 1)
	go func() {
		code, err := v.Attach(dir)
		if err != nil {
			errs.Write([]byte(err.Error()))
		}
		ended <- code
	}()
	return dir, first, ended
}

// begun begins j by its orders.
func begun(t *testing.T, j Job, orders []byte) (dir string, first *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	first = exec.Command(self)
	first.Env = append(os.Environ(), inRuntime(j), envDo+"=agent", "GORACE=atexit_sleep_ms=0")
	first.Stderr = os.Stderr
	in, err := first.StdinPipe()
	require.NoError(t, err)
	told, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	t.Cleanup(func() {
		first.Process.Kill()
		first.Wait()
	})
	_, err = in.Write(orders)
	require.NoError(t, err)
	line, err := bufio.NewReader(told).ReadBytes('\n')
	require.NoError(t, err)
	var b Begun
	require.NoError(t, json.Unmarshal(line, &b))
	require.Empty(t, b.Error)
	return b.Dir, first
}

// awaitCode waits for the exit code.
func awaitCode(t *testing.T, code <-chan int, errs *buffer) int {
	t.Helper()
	select {
	case c := <-code:
		return c
	case <-time.After(20 * time.Second):
		t.Fatalf("the job has not ended: %s", errs)
		return -1
	}
}

func TestAJobThatCanOutliveItsHeadEnds(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 1, 0)
	j.Programs[0].Env = append(j.Programs[0].Env, envDo+"=finish")
	j.Verbose = true
	_, _, code := outliving(t, j, out, errs)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Equal(t, 3, strings.Count(errs.String(), "its agent has joined"))
}

func TestJobsThatCannotOutliveTheirHead(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Job)
		says   string
	}{
		{"one host", func(j *Job) { j.Hosts = j.Hosts[:1] }, "on several hosts (--host)"},
		{"no host is named", func(j *Job) { j.Hosts = nil }, "on several hosts (--host)"},
		{"all processes are on one", func(j *Job) { j.Hosts[0].Slots, j.ByNode = 3, false }, "on several hosts (--host)"},
		{"this host is none of them", func(j *Job) { j.Hosts[0].Here = false }, "this host must be one of the job's"},
		{"ranks do not survive", func(j *Job) { j.Options.Survive = "moves" }, "--survive crashes"},
	} {
		j, _, _ := lossy(t, "finish", 3, 0, 0)
		c.change(&j)
		_, err := Detach(j, []string{"false"})
		require.ErrorContains(t, err, c.says, c.name)
		var ee *exit.Error
		require.ErrorAs(t, err, &ee, c.name)
		require.Equal(t, codeUsage, ee.Code, c.name)
	}
}

// The agent that leads is killed: another leads, and the ranks that were on its host go on.
func TestHeadKilled(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "save", 3, 3, 1)
	j.Silence, j.Verbose = 2*time.Second, true
	_, first, code := outliving(t, j, out, errs)
	out.await(t, "ready", 3)
	errs.await(t, "is known to 3 agents", 1)
	require.NoError(t, first.Process.Kill())
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, errs.String(), "leads the job from now on")
	require.Contains(t, out.String(), "rank 0 goes on from <rank 0, 1.1><rank 0, 1.2><rank 0, 1.3>\n")
}

// The first election does not wait for the silence: until then the loss of the head is the end of the job.
func TestTheFirstElectionIsAtOnce(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "save", 3, 1, 1)
	j.Silence, j.Verbose = 2*time.Minute, true
	_, _, code := outliving(t, j, out, errs)
	errs.await(t, "what the head decides is known to 3 agents from now on", 1)
	out.await(t, "ready", 3)
	lose(t, out, 1)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
}

// A host is lost as soon as ranks run: it votes no more after that, or the next loss would end the job.
func TestAVoterLostAtTheBeginning(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "save", 3, 2, 2)
	j.Silence, j.Verbose = 2*time.Second, true
	_, _, code := outliving(t, j, out, errs)
	out.await(t, "ready", 3)
	lose(t, out, 1)
	out.await(t, "ready", 4)
	errs.await(t, "the job ends with the agent of host here from now on", 1)
	lose(t, out, 2)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
}

// --timeout is of the job, whoever leads it then.
func TestTimeoutUnderAnotherHead(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose, j.Timeout = 2*time.Second, true, 8*time.Second
	hold(t, &j)
	_, first, code := outliving(t, j, out, errs)
	errs.await(t, "is known to 3 agents", 1)
	errs.await(t, "ranks start", 1)
	require.NoError(t, first.Process.Kill())
	require.Equal(t, exit.Timeout, awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, errs.String(), "leads the job from now on")
	require.Contains(t, errs.String(), "the job did not end within 8s (--timeout)")
}

// Whoever leads tells of the job.
func TestMetricsUnderAnotherHead(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose = 2*time.Second, true
	j.Metrics, j.Targets = ":0", filepath.Join(t.TempDir(), "targets.json")
	hold(t, &j)
	_, first, code := outliving(t, j, out, errs)
	errs.await(t, "is known to 3 agents", 1)
	errs.await(t, "ranks start", 1)
	errs.await(t, "metrics of host ", 3)
	tellOfTheJob := func(hosts ...string) (which []string) {
		for _, m := range regexp.MustCompile(`metrics of host (\w+): http://.*:(\d+)/`).FindAllStringSubmatch(errs.String(), -1) {
			if slices.Contains(hosts, m[1]) && strings.Contains(scrapeOf(t, "127.0.0.1:"+m[2]), "\nmpiv_job_ranks{") {
				which = append(which, m[1])
			}
		}
		return which
	}
	require.Equal(t, []string{"here"}, tellOfTheJob("here", "b", "c"))
	require.NoError(t, first.Process.Kill())
	errs.await(t, "leads the job from now on", 1)
	require.Eventually(t, func() bool { return len(tellOfTheJob("b", "c")) == 1 }, 20*time.Second, 10*time.Millisecond)
	letGo(t, j)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
}

// When the job ends there is nothing to scrape.
func TestTargetsOfAJobThatOutlivesItsHead(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 1, 0)
	j.Programs[0].Env = append(j.Programs[0].Env, envDo+"=finish")
	j.Metrics, j.Targets = ":0", filepath.Join(t.TempDir(), "targets.json")
	_, first, code := outliving(t, j, out, errs)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	first.Wait()
	text, err := os.ReadFile(j.Targets)
	require.NoError(t, err)
	require.Equal(t, "[]\n", string(text))
}

// toFirstHost sends signals to all processes of the first host.
func toFirstHost(t *testing.T, first *exec.Cmd, errs *buffer) func(syscall.Signal) {
	t.Helper()
	host := []int{first.Process.Pid}
	for _, m := range regexp.MustCompile(`started, PID (\d+) on host here`).FindAllStringSubmatch(errs.String(), -1) {
		pid, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		host = append(host, pid)
	}
	require.Len(t, host, 3, "%s", errs)
	return func(sig syscall.Signal) {
		for _, pid := range host {
			require.NoError(t, syscall.Kill(pid, sig))
		}
	}
}

// The first host is stopped for so long that another agent leads. The first has no place in the job when it goes
// on, and leaves; the agents that it started stay.
func TestHeadStoppedForAWhile(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose, j.Options.Snapshot = 2*time.Second, true, 20*time.Millisecond
	hold(t, &j)
	_, first, code := outliving(t, j, out, errs)
	errs.await(t, "is known to 3 agents", 1)
	out.await(t, "begins in turn 0", 3)
	signal := toFirstHost(t, first, errs)
	signal(syscall.SIGSTOP)
	errs.await(t, "rank 0 goes on ", 1) // from a snapshot, or where there is none yet from the beginning
	signal(syscall.SIGCONT)
	left := make(chan struct{})
	go func() { first.Wait(); close(left) }()
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Errorf("the agent of which others say that it is dead is still there: %s", errs)
	}
	select {
	case c := <-code:
		t.Errorf("the job has ended with %d while it was to go on: %s", c, errs)
	default:
	}
	letGo(t, j)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, out.String(), result(3))
	require.Equal(t, 1, strings.Count(errs.String(), "leads the job from now on"), "%s", errs)
	require.NotContains(t, errs.String(), "rank 1 goes on from", "its host is still there")
}

// Who shows a job looks for its head where the last one said, and then where others said before: a head that is
// cut off may say that it is alone.
func TestWhereAViewerLooks(t *testing.T) {
	voters := func(agents ...int) (all []control.Voter) {
		for _, i := range agents {
			all = append(all, control.Voter{Agent: i})
		}
		return all
	}
	v := &Viewer{pass: control.Pass{Voters: voters(1)}}
	v.look(voters(1, 2, 3))
	require.Equal(t, voters(1, 2, 3), v.pass.Voters)
	v.look(voters(1))
	require.Equal(t, voters(1, 2, 3), v.pass.Voters)
	v.look(voters(4, 3, 2))
	require.Equal(t, voters(4, 3, 2, 1), v.pass.Voters)
}

// Signals wait for a head; who asks twice to be interrupted while there is none is.
func TestSignalsWithoutAHead(t *testing.T) {
	v := new(Viewer)
	v.Signal(syscall.SIGUSR1)
	v.Signal(syscall.SIGINT)
	require.NoError(t, v.interrupted())
	require.Equal(t, []control.Signal{{Signal: int(syscall.SIGUSR1), N: 1}, {Signal: int(syscall.SIGINT), N: 2}}, v.signals)
	v.Signal(syscall.SIGTERM)
	var ee *exit.Error
	require.ErrorAs(t, v.interrupted(), &ee)
	require.Equal(t, 128+int(syscall.SIGTERM), ee.Code)
}

// An interrupt ends the job also where the head that has passed it on is lost before the job has ended.
func TestInterruptedUnderAnotherHead(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose = 2*time.Second, true
	hold(t, &j)
	self := j.Programs[0].Path
	j.Programs[0].Path, j.Programs[0].Args = "/bin/sh", []string{"-c", `trap "" INT; exec "$0"`, self}
	v := &Viewer{Stdout: out, Stderr: errs}
	_, first, code := outlivingTo(t, j, v, errs)
	errs.await(t, "is known to 3 agents", 1)
	out.await(t, "begins in turn 0", 3)
	v.Signal(syscall.SIGINT)
	errs.await(t, "signal 2 (interrupt) is passed on", 1)
	require.Eventually(t, func() bool { // until that is agreed on: v would say it to the next, too
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.signals) == 0
	}, 20*time.Second, time.Millisecond, "%s", errs)
	require.NoError(t, first.Process.Kill())
	require.Equal(t, 128+int(syscall.SIGINT), awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, errs.String(), "leads the job from now on")
}

// An interrupt that was said to a head which has not read it is said to the next.
func TestInterruptedWhileTheHeadIsStopped(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose = 2*time.Second, true
	hold(t, &j)
	v := &Viewer{Stdout: out, Stderr: errs}
	_, first, code := outlivingTo(t, j, v, errs)
	errs.await(t, "is known to 3 agents", 1)
	out.await(t, "begins in turn 0", 3)
	toFirstHost(t, first, errs)(syscall.SIGSTOP)
	v.Signal(syscall.SIGINT)
	require.Equal(t, 128+int(syscall.SIGINT), awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, errs.String(), "leads the job from now on")
	require.Equal(t, 1, strings.Count(errs.String(), "signal 2 (interrupt) is passed on"), "%s", errs)
}

// A head with which nobody can agree any more does not say that an order was carried out: the next would not know of it.
func TestAnOrderThatIsNotAgreedOn(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose = 2*time.Second, true
	hold(t, &j)
	dir, _, code := outliving(t, j, out, errs)
	errs.await(t, "is known to 3 agents", 1)
	out.await(t, "begins in turn 0", 3)
	joined := regexp.MustCompile(`host [bc]: its agent has joined from .*, PID (\d+)`).FindAllStringSubmatch(errs.String(), -1)
	require.Len(t, joined, 2, "%s", errs)
	others := func(sig syscall.Signal) {
		for _, m := range joined {
			pid, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(pid, sig))
		}
	}
	others(syscall.SIGSTOP)
	require.Eventually(t, func() bool { // until they stand still, with all their threads
		return !slices.ContainsFunc(joined, func(m []string) bool {
			threads, _ := filepath.Glob("/proc/" + m[1] + "/task/*/stat")
			return slices.ContainsFunc(threads, func(file string) bool {
				text, err := os.ReadFile(file)
				return err == nil && !strings.Contains(string(text), ") T ")
			})
		})
	}, 20*time.Second, time.Millisecond)
	_, err := Ask(dir, Question{Op: "abort"})
	require.Error(t, err, "%s", errs)
	others(syscall.SIGCONT)
	require.Eventually(t, func() bool {
		_, err := Ask(dir, Question{Op: "abort"})
		return err == nil || len(code) > 0 // or what was asked at first has been agreed on
	}, 20*time.Second, 10*time.Millisecond, "%s", errs)
	require.Equal(t, 1, awaitCode(t, code, errs), "%s", errs)
}

// A head whose host is drained has another lead, and is a deputy like others from then on.
func TestHeadHandsOver(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "save", 3, 3, 1)
	j.Silence, j.Verbose = 2*time.Second, true
	dir, first, code := outliving(t, j, out, errs)
	out.await(t, "ready", 3)
	errs.await(t, "is known to 3 agents", 1)
	_, err := Ask(dir, Question{Op: "drain", Host: "here"})
	require.NoError(t, err, "%s", errs)
	errs.await(t, "leads the job from now on", 1)
	ans, err := Ask(dir, Question{Op: "ps"}) // of a deputy that has found the new head
	require.NoError(t, err, "%s", errs)
	require.NotNil(t, ans.State())
	require.NoError(t, first.Process.Kill())
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Equal(t, 1, strings.Count(errs.String(), "leads the job from now on"), "%s", errs)
	require.Contains(t, out.String(), "rank 0 goes on from <rank 0, 1.1><rank 0, 1.2><rank 0, 1.3>\n")
}

// The agent that leads is told to end: the ranks of its host leave within the grace, as those of others do.
func TestHeadEvicted(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "slower turns", 3, 3, 0)
	j.Silence, j.Verbose = 2*time.Second, true
	hold(t, &j)
	_, first, code := outliving(t, j, out, errs)
	errs.await(t, "is known to 3 agents", 1)
	out.await(t, "begins in turn 0", 3)
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	errs.await(t, "host here: its agent is to end", 1)
	errs.await(t, "host here: its agent has ended", 1)
	letGo(t, j)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, out.String(), result(3))
	require.NotContains(t, errs.String(), "rank 0 goes on from", "it was lost: %s", errs)
}

// Who shows the job is gone; what is left to show when it ends, and its exit code, wait for
// the next.
func TestNobodyShowsTheJob(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 3, 0)
	t.Setenv("XDG_RUNTIME_DIR", j.Runtime) // where what is left is looked for
	j.Programs = []Program{{Ranks: 3, Path: "sh", Args: []string{"-c", "sleep 0.5; echo late; exit 4"}}}
	orders, err := FirstOrders(j)
	require.NoError(t, err)
	dir, first := begun(t, j, orders)
	first.Wait()
	left := rundir.Left(j.Name)
	require.Equal(t, dir+".ended", left)
	full := &Viewer{Stdout: writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }), Stderr: errs}
	_, err = full.Attach(left)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "it is kept")
	v := &Viewer{Stdout: out, Stderr: errs}
	c, err := v.Attach(left)
	require.NoError(t, err)
	require.Equal(t, 4, c)
	require.Contains(t, out.String(), "late\n")
	require.Contains(t, errs.String(), "exited with code 4")
	require.Empty(t, rundir.Left(j.Name), "it is shown once")
}

// Who comes to look takes nothing from who shows the job already: neither what it prints, nor its input, nor its
// exit code.
func TestSeveralShowTheJob(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 0, 0)
	var err error
	var typed *os.File
	j.Stdin, typed, err = os.Pipe()
	require.NoError(t, err)
	defer typed.Close()
	j.StdinRank = 0
	j.Programs = []Program{{Ranks: 1, Path: "sh", Args: []string{"-c", "i=0; while [ $i -lt 100 ]; do echo line $i; sleep 0.01; i=$((i+1)); done; read word; echo $word; exit 4"}}}
	dir, _, code := outliving(t, j, out, errs)
	out.await(t, "line 9\n", 1)
	var outs [2]buffer
	var ends [2]chan int
	for i := range ends {
		ends[i] = make(chan int, 1)
		v := &Viewer{Stdout: &outs[i], Stderr: errs}
		if i == 0 {
			none, err := os.Open(os.DevNull)
			require.NoError(t, err)
			defer none.Close()
			v.Stdin = none
		}
		go func() {
			c, err := v.Attach(dir)
			if err != nil {
				errs.Write([]byte(err.Error()))
			}
			ends[i] <- c
		}()
	}
	for i := range outs {
		outs[i].await(t, "line 99\n", 1)
	}
	_, err = typed.WriteString("typed\n")
	require.NoError(t, err)
	require.Equal(t, 4, awaitCode(t, code, errs), "%s", errs)
	var all strings.Builder
	for i := range 100 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	all.WriteString("typed\n")
	require.Equal(t, all.String(), out.String())
	for i := range ends {
		require.Equal(t, 4, awaitCode(t, ends[i], errs), "%s", errs)
		require.True(t, strings.HasSuffix(all.String(), outs[i].String()), outs[i].String())
	}
}

func TestADirectoryThatIsNoText(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 3, 0)
	j.Dir = filepath.Join(t.TempDir(), "b\xfccher")
	require.NoError(t, os.Mkdir(j.Dir, 0o777))
	j.Programs = []Program{{Ranks: 3, Path: "sh", Args: []string{"-c", "pwd"}}}
	_, _, code := outliving(t, j, out, errs)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Equal(t, []string{j.Dir}, slices.Compact(strings.Fields(out.String())))
}

// What is typed, and what is printed, goes on when another head leads: no byte is lost, and
// none comes twice.
func TestInputAndOutputUnderAnotherHead(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "read", 3, 3, 0)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	j.Stdin, j.StdinRank, j.Silence, j.Verbose = r, 1, 2*time.Second, true
	dir, _, code := outliving(t, j, out, errs)
	var want strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	all := want.String()
	third := len(all) / 3
	start, led := make(chan bool), make(chan bool)
	go func() {
		io.WriteString(w, all[:third])
		<-start
		io.WriteString(w, all[third:2*third]) // while another takes over
		<-led
		io.WriteString(w, all[2*third:])
		w.Close()
	}()
	errs.await(t, "is known to 3 agents", 1)
	errs.await(t, "ranks start", 1)
	close(start)
	_, err = Ask(dir, Question{Op: "drain", Host: "here"})
	require.NoError(t, err, "%s", errs)
	errs.await(t, "leads the job from now on", 1)
	close(led)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.True(t, all == out.String(), "%d bytes came of %d", len(out.String()), len(all))
}
