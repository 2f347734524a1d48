package agent

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/rundir"
)

// elsewhere has j run on hosts of these names, which are all this one: the
// command that starts their agents forgets the host.
func elsewhere(t *testing.T, j *Job, names ...string) {
	require.NoError(t, os.Chmod(j.Runtime, 0o700))
	j.Launch.Command = []string{"sh", "-c", `shift; exec env ` + inRuntime(*j) + ` GORACE=atexit_sleep_ms=0 ` + envDo + `=agent "$@"`, "sh"}
	for _, name := range names {
		j.Hosts = append(j.Hosts, Host{Name: name, Slots: 2})
	}
}

// inRuntime has an agent look in j's directory.
func inRuntime(j Job) string { return "XDG_RUNTIME_DIR=" + j.Runtime }

func TestOutputOfOtherHosts(t *testing.T) {
	j, out, errs := shell(t, 4, `echo to $0 out; echo to $0 err >&2; printf "no end of $0"`)
	elsewhere(t, &j, "b", "c")
	j.Hosts = append([]Host{{Name: "here", Here: true, Slots: 1}}, j.Hosts...)
	j.Tag = true
	require.Zero(t, runJob(t, j), "%s", errs)
	for _, r := range []string{"0", "1", "2", "3"} {
		require.Contains(t, out.String(), "["+r+"]<stdout>: to sh out\n")
		require.Contains(t, out.String(), "["+r+"]<stdout>: no end of sh")
		require.Contains(t, errs.String(), "["+r+"]<stderr>: to sh err\n")
	}
}

// Words of a command line are bytes, wherever they go.
func TestArgumentsThatAreNoText(t *testing.T) {
	j, out, errs := shell(t, 2, `printf %s "$0$WORD" | od -An -tx1`)
	elsewhere(t, &j, "b")
	j.Hosts = append([]Host{{Name: "here", Here: true, Slots: 1}}, j.Hosts...)
	p := &j.Programs[0]
	p.Args, p.Env = append(p.Args, "caf\xe9"), append(p.Env, "WORD=\xff")
	j.Dir, j.Events = filepath.Join(t.TempDir(), "b\xfccher"), filepath.Join(t.TempDir(), "\xff.jsonl")
	require.NoError(t, os.Mkdir(j.Dir, 0o777))
	text, err := json.Marshal(j.portable()) // as where the job outlives its head
	require.NoError(t, err)
	var again Job
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, j.Programs, again.Programs)
	require.Equal(t, j.Dir, again.Dir)
	require.Equal(t, j.Events, again.Events)
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Equal(t, strings.Repeat(" 63 61 66 e9 ff\n", 2), out.String())
}

func TestHostsThatSharedMemoryDoesNotConnect(t *testing.T) {
	j, _, errs := jobOf(t, 3, "finish")
	elsewhere(t, &j, "b", "c")
	j.Options.Transports = []string{"shm"}
	_, err := Start(j)
	require.EqualError(t, err, "--transport shm: hosts b and c cannot reach each other by it: add tcp")
	var ee *exit.Error
	require.ErrorAs(t, err, &ee)
	require.Equal(t, codeUsage, ee.Code)
	j.Programs[0].Ranks = 2 // which b has room for
	require.Zero(t, runJob(t, j), "%s", errs)
}

// A host that no process is on has no agent, and none is waited for.
func TestHostsThatAreNotNeeded(t *testing.T) {
	j, _, errs := jobOf(t, 2, "finish")
	elsewhere(t, &j, "b")
	j.Hosts = append([]Host{{Name: "here", Here: true, Slots: 2}}, j.Hosts...)
	j.Launch.Patience = 10 * time.Second
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Empty(t, errs.String())
}

func TestMuchOutputOfAnotherHost(t *testing.T) {
	j, out, errs := shell(t, 1, "seq 1000000")
	elsewhere(t, &j, "b")
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Equal(t, 6888896, len(out.String()))
	require.True(t, strings.HasSuffix(out.String(), "\n1000000\n"))
}

func TestInputForAnotherHost(t *testing.T) {
	j, out, errs := shell(t, 2, "wc -c")
	elsewhere(t, &j, "b", "c")
	j.Hosts[0].Slots = 1
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	j.Stdin, j.StdinRank, j.Tag = r, 1, true
	go func() {
		w.Write(bytes.Repeat([]byte("0123456789"), 200000))
		w.Close()
	}()
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Contains(t, out.String(), "[0]<stdout>: 0\n")
	require.Contains(t, out.String(), "[1]<stdout>: 2000000\n")
}

func TestAProcessOfAnotherHostThatDoesNotRead(t *testing.T) {
	j, _, errs := shell(t, 1, "exec <&-; sleep 0.2")
	elsewhere(t, &j, "b")
	endless, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer endless.Close()
	j.Stdin = endless
	require.Zero(t, runJob(t, j), "%s", errs)
}

func TestSignalsReachOtherHosts(t *testing.T) {
	j, out, errs := jobOf(t, 3, "signal")
	elsewhere(t, &j, "b", "c")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 3)
	a.Signal(syscall.SIGUSR1)
	require.Zero(t, a.Wait(), "%s", errs)
	require.Equal(t, 3, strings.Count(out.String(), "user defined signal 1"))
}

func TestJobsAreSeenOnOtherHosts(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 2, "wait")
	elsewhere(t, &j, "b")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 2)
	dirs, err := filepath.Glob(rundir.AskSocket(filepath.Join(j.Runtime, "mpiv", "*")))
	require.NoError(t, err)
	require.Len(t, dirs, 1, "the agent of b has its own directory for the job")
	ans, err := Ask(filepath.Dir(dirs[0]), Question{Op: "ps"})
	require.NoError(t, err)
	require.Equal(t, "b", ans.State().Processes[1].Host)
	_, err = Ask(filepath.Dir(dirs[0]), Question{Op: "abort"})
	require.NoError(t, err)
	require.Equal(t, 1, a.Wait(), "%s", errs)
}

// Agents start agents: as many hosts as make three levels.
func TestTreeOfAgents(t *testing.T) {
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("h%d", i))
	}
	j, out, errs := shell(t, 50, "echo up")
	elsewhere(t, &j, names...)
	for i := range j.Hosts {
		j.Hosts[i].Slots = 1
	}
	j.Hosts[7].Distrusted = true
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Equal(t, strings.Repeat("up\n", 50), out.String())
}

// No host but the first can start agents on another.
func TestTreeThatOnlyTheFirstHostCanClimb(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("h%d", i))
	}
	j, out, errs := shell(t, 50, "echo up")
	elsewhere(t, &j, names...)
	j.Launch.Command = []string{"sh", "-c", `shift; [ -z "$BELOW" ] || exit 255; exec env BELOW=1 GORACE=atexit_sleep_ms=0 ` + envDo + `=agent "$@"`, "sh"}
	for i := range j.Hosts {
		j.Hosts[i].Slots = 1
	}
	require.Zero(t, runJob(t, j), "%s", errs)
	require.Equal(t, strings.Repeat("up\n", 50), out.String())
}

func TestTreeHasEveryBootOnce(t *testing.T) {
	for n := range 200 {
		boots := make([]control.Boot, n)
		for i := range boots {
			boots[i].Agent = i + 1
		}
		seen := make([]int, n)
		var walk func(boots []control.Boot, depth int)
		walk = func(boots []control.Boot, depth int) {
			require.LessOrEqual(t, depth, 4)
			require.LessOrEqual(t, len(boots), fanout)
			for _, b := range boots {
				seen[b.Agent-1]++
				walk(tree(b.Children), depth+1)
			}
		}
		walk(tree(boots), 1)
		for i, times := range seen {
			require.Equal(t, 1, times, "agent %d of %d", i+1, n)
		}
	}
}

func TestAgentsThatDoNotStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		set  func(j *Job)
		says string
	}{
		{"mpivrun is not there", func(j *Job) { j.Launch.Mpivrun = "/nowhere/mpivrun" }, "host b: mpivrun was not found there"},
		{"nor the launch agent", func(j *Job) { j.Launch.Command = []string{"/nowhere/rsh"} }, "host b: /nowhere/rsh cannot be run here to start an agent"},
		{"a host cannot be reached", func(j *Job) {
			j.Launch.Command = []string{"sh", "-c", "echo welcome; echo no route to it >&2; exit 255"}
		}, "host b: no agent was started there, sh ended with code 255: no route to it"},
		{"nothing happens", func(j *Job) {
			j.Launch.Command, j.Launch.Patience = []string{"sleep", "60", "#"}, 100*time.Millisecond
			j.Launch.Command = []string{"sh", "-c", "exec sleep 60"}
		}, "no agent has joined from host b within 100ms"},
		{"a program is not there", func(j *Job) { j.Programs[0].Path = "./nowhere" }, `host b: program "./nowhere" was not found`},
		{"a directory is not there", func(j *Job) { j.Programs[0].Dir = "/nowhere" }, `host b: working directory /nowhere does not exist`},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, _, errs := jobOf(t, 1, "finish")
			elsewhere(t, &j, "b")
			c.set(&j)
			require.NotZero(t, runJob(t, j))
			require.Contains(t, errs.String(), c.says)
			require.Equal(t, 1, strings.Count(errs.String(), "mpivrun: "), "one sentence, not %q", errs)
		})
	}
}

// The agent of a host is killed: its processes end with it, and the job, which
// says where.
func TestAgentKilled(t *testing.T) {
	j, out, errs := shell(t, 4, `sleep 60 & echo agent $PPID rank $$ child $!; wait`)
	elsewhere(t, &j, "b", "c")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "agent", 4)
	var agent int
	var ours []int
	for line := range strings.Lines(out.String()) {
		var rank, child int
		_, err := fmt.Sscanf(line, "agent %d rank %d child %d", &agent, &rank, &child)
		require.NoError(t, err)
		ours = append(ours, rank, child)
	}
	require.NoError(t, syscall.Kill(agent, syscall.SIGKILL))
	require.Equal(t, 1, a.Wait())
	require.Regexp(t, `host [bc]: its agent has ended, and with it ranks \d, \d`, errs.String())
	for _, pid := range ours {
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ") // whoever inherited it has not looked
		}, 20*time.Second, time.Millisecond, "process %d is left; ranks and their children are %v", pid, ours)
	}
}

// What "mpivrun agent" says to a user who tries it.
func TestAgentWithoutOrders(t *testing.T) {
	for in, says := range map[string]string{
		"":                         "for mpivrun to start",
		"hello\n":                  "cannot be read: is it of another version?",
		`[{"Version":999}]` + "\n": fmt.Sprintf("speaks version %d of the protocol of agents, the job's 999", control.AgentVersion),
	} {
		var errs bytes.Buffer
		require.Equal(t, codeAgent, Deputy(Orders{In: strings.NewReader(in), Out: io.Discard, Errs: &errs}))
		require.Contains(t, errs.String(), says)
	}
}

// Strangers at the port for agents get no answer, and members of the job that
// are no agents neither.
func TestStrangersAtTheHead(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 1, "wait")
	elsewhere(t, &j, "b")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 1)
	addr := a.head.listener.Addr().String()
	other, err := identity.NewAuthority(j.Name)
	require.NoError(t, err)
	issue := func(from *identity.Authority, role identity.Role, index int) *tls.Config {
		c, err := from.Issue(role, index)
		require.NoError(t, err)
		id, err := c.Open()
		require.NoError(t, err)
		config := id.TLS()
		config.VerifyConnection = nil
		return config
	}
	for name, config := range map[string]*tls.Config{
		"another job's agent": issue(other, identity.Agent, 1),
		"a process":           issue(a.authority, identity.Process, 1),
		"the head's number":   issue(a.authority, identity.Agent, 0),
		"no such agent":       issue(a.authority, identity.Agent, 2),
		"the agent, again":    issue(a.authority, identity.Agent, 1),
		"nobody":              {InsecureSkipVerify: true},
	} {
		c, err := tls.Dial("tcp", addr, config)
		if err == nil {
			fmt.Fprintln(c, `{"Joined":{"Version":1,"Cores":1}}`)
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = io.ReadAll(c)
			c.Close()
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		}
	}
	for range 200 { // say nothing, and hold up nobody for long
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
	}
	_, err = Ask(filepath.Join(j.Runtime, a.Name()), Question{Op: "ps"})
	require.NoError(t, err)
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	require.Contains(t, errs.String(), "host b: a second agent was refused")
}

// An agent may speak of processes on its host only.
func TestALyingAgentIsCutOff(t *testing.T) {
	j, out, errs := jobOf(t, 3, "wait")
	elsewhere(t, &j, "b", "c")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 3)
	done := make(chan struct{})
	a.post(func() {
		defer close(done)
		a.hosts[1].place.(*remote).heard(control.FromAgent{Exited: &control.Exited{Process: 0}})
	})
	<-done
	require.Equal(t, 1, a.Wait())
	require.Contains(t, errs.String(), "host c: its agent has ended, and with it rank 2 (it spoke of process 0, which is not there)")
}

func TestSSHCommandIsQuoted(t *testing.T) {
	out, err := exec.Command("sh", "-c", "printf '%s|' "+quote([]string{"a b", "it's", "$x", ""})).Output()
	require.NoError(t, err)
	require.Equal(t, "a b|it's|$x||", string(out))
}
