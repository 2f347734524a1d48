package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/rundir"
)

func TestJobEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		n    int
		do   string
		code int
		says []string // on standard error, each
	}{
		{"all ranks finish", 4, "finish", 0, nil},
		{"a rank exits with a code", 3, "exit 3 in 1", 3,
			[]string{"mpivrun: rank 1 on host here exited with code 3; its last lines:\n    two\n    three\n    four\n    five\n    six without end\n"}},
		{"a rank is killed", 3, "kill 2", 137, []string{"rank 2 on host here was killed by signal 9 (killed); if nobody did that, it may have been the kernel"}},
		{"a rank fails", 3, "fail in 1", 7, []string{"mpivrun: rank 1: the matrix is singular\n"}},
		{"a rank that was told of a failure is not the cause", 2, "told in 0, fail in 1", 7, []string{"mpivrun: rank 1: the matrix is singular\n"}},
		{"a rank that loses its peer is not the cause", 2, "blame", 5, []string{"rank 0 on host here exited with code 5"}},
		{"a rank leaves without finishing", 1, "leave", 1, []string{"rank 0 exited without finishing: was os.Exit called"}},
		{"a program of several does not speak", 2, "leave 1 before hello", 1, []string{"rank 1 exited with code 0 and has not called mpiv.Main", "not linked with mpiv"}},
		{"a program of several does not speak and ends late", 2, "leave 1 after hello", 1, []string{"rank 1 exited with code 0 and has not called mpiv.Main"}},
		{"a program does not listen to Stop", 2, "deaf", 4, []string{"rank 0 on host here exited with code 4"}},
		{"another version of the protocol", 1, "old", 1, []string{"build the program and mpivrun from the same mpiv"}},
	} {
		for _, place := range []string{"here", "there"} {
			t.Run(c.name+"/"+place, func(t *testing.T) {
				j, _, errs := jobOf(t, c.n, c.do)
				if place == "there" {
					elsewhere(t, &j, "there")
				}
				began := time.Now()
				code := runJob(t, j)
				if code != c.code {
					t.Errorf("exit code of %q = %d, want %d; it said %q", c.do, code, c.code, errs)
				}
				for _, s := range c.says {
					require.Contains(t, errs.String(), strings.ReplaceAll(s, "host here", "host "+place))
				}
				if len(c.says) == 0 {
					require.Empty(t, errs.String())
				} else {
					require.Equal(t, 1, strings.Count(errs.String(), "mpivrun:"), "sentences in %q", errs)
				}
				if took := time.Since(began); took > grace+30*time.Second {
					t.Errorf("it took %v to end", took)
				}
				left, err := filepath.Glob(filepath.Join(j.Runtime, "*", "*"))
				require.NoError(t, err)
				left = slices.DeleteFunc(left, func(path string) bool {
					return filepath.Base(path) == "lock" && filepath.Base(filepath.Dir(path)) == "mpiv"
				}) // the agent's runtime directory
				require.Empty(t, left, "left in the runtime directory")
			})
		}
	}
}

func TestStartTellsEachProcessWhatItIs(t *testing.T) {
	j, out, _ := jobOf(t, 5, "show")
	j.RanksPerProcess = 2
	require.Zero(t, runJob(t, j))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{
		"process 0 of 3: ranks [0 1], token 16 bytes, peer at mem:0",
		"process 1 of 3: ranks [2 3], token 16 bytes, peer at mem:0",
		"process 2 of 3: ranks [4], token 16 bytes, peer at mem:0",
	}, lines)
}

func TestTokenIsTheJobs(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		j, out, _ := jobOf(t, 3, "token")
		require.Zero(t, runJob(t, j))
		tokens := strings.Fields(out.String())
		require.Len(t, tokens, 3)
		require.Len(t, slices.Compact(tokens), 1, "tokens of one job differ")
		seen[tokens[0]] = true
	}
	require.Len(t, seen, 2, "two jobs have the same token")
}

func TestOthersAreStopped(t *testing.T) {
	t.Parallel()
	j, out, _ := jobOf(t, 4, "exit 3 in 1")
	require.Equal(t, 3, runJob(t, j))
	require.Equal(t, 3, strings.Count(out.String(), "stopped: rank 1 on host here exited with code 3"))
}

func TestPlainPrograms(t *testing.T) {
	for _, c := range []struct {
		name, script string
		code         int
		says         string
	}{
		{"end well", "exit 0", 0, ""},
		{"fail", "test $MPIV_PROCESS = 0 && exit 6; sleep 60", 6, "rank 0 on host here exited with code 6"},
		{"dump core or not", "test $MPIV_PROCESS = 1 && kill -SEGV $$; sleep 60", 139, "rank 1 on host here was killed by signal 11 (segmentation fault)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, _, errs := shell(t, 2, c.script)
			began := time.Now()
			require.Equal(t, c.code, runJob(t, j), "said %q", errs)
			require.Contains(t, errs.String(), c.says)
			require.Less(t, time.Since(began), 30*time.Second)
		})
	}
}

func TestProgramsThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	for _, c := range []struct {
		name, path string
		code       int
		says       string
	}{
		{"not in PATH", "no-such-program", 127, "was not found in PATH"},
		{"not there", "./no-such-program", 127, "was not found"},
		{"a directory", dir, 126, "is a directory"},
		{"not executable", write("plain", "text", 0o644), 126, "chmod +x"},
		{"source", write("a.go", "package main", 0o755), 126, "go build"},
		{"neither binary nor script", write("junk", "junk", 0o755), 126, "not a binary for this machine"},
		{"its interpreter is missing", write("script", "#!/no/such/interpreter\n", 0o755), 127, "interpreter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, _, errs := jobOf(t, 2, "finish")
			j.Programs[0].Path = c.path
			a, err := Start(j)
			code, text := 0, ""
			if err != nil {
				code, text = err.(*exit.Error).Code, err.Error()
			} else {
				code, text = a.Wait(), errs.String()
			}
			require.Equal(t, c.code, code)
			require.Contains(t, text, c.says)
			left, _ := filepath.Glob(filepath.Join(j.Runtime, "*", "*"))
			require.Empty(t, left)
		})
	}
}

func TestSeveralProgramsAreOneWorld(t *testing.T) {
	j, out, _ := jobOf(t, 1, "show")
	second := j.Programs[0]
	second.Ranks = 2
	j.Programs = append(j.Programs, second)
	require.Zero(t, runJob(t, j))
	require.Contains(t, out.String(), "process 2 of 3: ranks [2]")
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	j, _, errs := jobOf(t, 2, "wait")
	j.Timeout = 300 * time.Millisecond
	began := time.Now()
	require.Equal(t, exit.Timeout, runJob(t, j))
	require.GreaterOrEqual(t, time.Since(began), j.Timeout)
	require.Contains(t, errs.String(), "did not end within 300ms")
}

func TestSignalsArePassedOn(t *testing.T) {
	start := func(do string) (*Agent, *buffer, *buffer) {
		j, out, errs := jobOf(t, 2, do)
		a, err := Start(j)
		require.NoError(t, err)
		out.await(t, "ready\n", 2)
		return a, out, errs
	}
	t.Run("a program handles one", func(t *testing.T) {
		a, out, _ := start("signal")
		a.Signal(syscall.SIGUSR1)
		require.Zero(t, a.Wait())
		require.Equal(t, 2, strings.Count(out.String(), "user defined signal 1"))
	})
	t.Run("a program dies of one, which says enough", func(t *testing.T) {
		a, _, errs := start("sleep")
		a.Signal(syscall.SIGINT)
		require.Equal(t, 130, a.Wait())
		require.Empty(t, errs.String())
	})
	t.Run("a program ignores the first, the second kills", func(t *testing.T) {
		j, out, _ := shell(t, 2, "trap '' INT; echo ready; sleep 60")
		a, err := Start(j)
		require.NoError(t, err)
		out.await(t, "ready\n", 2)
		a.Signal(syscall.SIGINT)
		a.Signal(syscall.SIGINT)
		require.Equal(t, 130, a.Wait())
	})
}

func TestProcessThatDoesNotSpeakIsNamed(t *testing.T) {
	j, _, errs := jobOf(t, 2, "wait")
	j.helloLate = 50 * time.Millisecond
	j.Programs[0].Ranks = 1
	j.Programs = append(j.Programs, Program{Ranks: 1, Path: "sleep", Args: []string{"60"}})
	a, err := Start(j)
	require.NoError(t, err)
	errs.await(t, "mpivrun: rank 1 runs and has not called mpiv.Main for 50ms; the others wait for it", 1)
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
}

// A process that has finished goes on for a while; it is not asked to Stop but
// told by a signal.
func TestFinishedProcessEndsWithTheJob(t *testing.T) {
	j, _, errs := jobOf(t, 2, "linger")
	j.Verbose = true // to see how it ended
	began := time.Now()
	require.Equal(t, 3, runJob(t, j))
	require.Less(t, time.Since(began), 30*time.Second, "said %s", errs)
	require.Contains(t, errs.String(), "rank 0: was killed by signal 15 (terminated)")
}

func TestAbort(t *testing.T) {
	j, out, errs := jobOf(t, 2, "wait")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 2)
	_, err = Ask(filepath.Join(j.Runtime, a.Name()), Question{Op: "abort"})
	require.NoError(t, err)
	require.Equal(t, 1, a.Wait())
	require.Contains(t, errs.String(), "the job was ended by mpivrun abort")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	j, out, _ := jobOf(t, 3, "wait")
	j.RanksPerProcess = 2
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 2)
	jobs, err := rundir.JobsIn(j.Runtime)
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	ans, err := Ask(jobs[0].Dir, Question{Op: "ps"})
	require.NoError(t, err)
	state := ans.State()
	require.Equal(t, "test", state.Job.Name)
	require.Equal(t, events.PhaseRunning, state.Phase)
	require.Equal(t, 3, state.Job.Ranks)
	require.Equal(t, []int{0, 1, 2}, ans.Silent, "members of this test answer no question")
	for i, p := range state.Processes {
		require.Equal(t, events.PhaseRunning, p.Phase)
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		require.NoError(t, err)
		require.Contains(t, strings.Split(string(env), "\x00"), fmt.Sprintf("%s=%d", control.EnvProcess, i))
	}
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
}

func TestOneProcessPerCore(t *testing.T) {
	j, out, _ := shell(t, 2, "grep Cpus_allowed_list /proc/self/status")
	j.Bind = true
	require.Zero(t, runJob(t, j))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	if runtime.NumCPU() > 1 {
		require.NotEqual(t, lines[0], lines[1])
	}
	for _, l := range lines {
		require.NotContains(t, strings.Fields(l)[1], ",")
	}
}

// Launching and ending four processes that do nothing but meet.
func BenchmarkLaunch(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			self, _ := os.Executable()
			dir, err := os.MkdirTemp("", "mpiv-agent")
			require.NoError(b, err)
			defer os.RemoveAll(dir)
			for b.Loop() {
				a, err := Start(Job{
					Programs: []Program{{Ranks: n, Path: self, Env: []string{envDo + "=finish"}}},
					Stdout:   new(buffer), Stderr: new(buffer), Runtime: dir,
				})
				if err != nil || a.Wait() != 0 {
					b.Fatal("the job failed", err)
				}
			}
		})
	}
}

// Abort ends the job with exit code 1, for the reason given.
func (a *Agent) Abort(reason string) {
	a.post(func() { a.fail(verdict{code: 1, text: reason}) })
}
