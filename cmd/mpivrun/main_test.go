package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/mpiv"
)

// The mpivrun of these tests is this test binary, told so by this variable.
const envMain = "MPIVRUN_TEST_MAIN"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && (os.Args[1] == "guard" || os.Args[1] == "agent") { // which it starts itself
		main()
	}
	if os.Getenv(envProgram) == "feed" {
		mpiv.Main(feed)
		return
	}
	if os.Getenv(envProgram) == "relax" {
		mpiv.Main(relax)
		return
	}
	if os.Getenv(envProgram) == "buffer" {
		mpiv.Main(buffer)
		return
	}
	if os.Getenv(envProgram) != "" {
		mpiv.Main(talk)
		return
	}
	if os.Getenv(envMain) != "" {
		os.Unsetenv(envMain)
		main()
	}
	os.Exit(m.Run())
}

// mpivrun is a command that is not started yet, with a runtime directory of the
// test's own.
func mpivrun(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self, args...)
	c.Env = append(os.Environ(), envMain+"=1", "GORACE=atexit_sleep_ms=0", "XDG_RUNTIME_DIR="+runtimeDir(t), "TMPDIR="+runtimeDir(t))
	return c
}

var runtimeDirs = map[string]string{}

func runtimeDir(t *testing.T) string {
	if dir := runtimeDirs[t.Name()]; dir != "" {
		return dir
	}
	dir, err := os.MkdirTemp("", "mpivrun")
	require.NoError(t, err)
	runtimeDirs[t.Name()] = dir
	t.Cleanup(func() { os.RemoveAll(dir); delete(runtimeDirs, t.Name()) })
	return dir
}

// result runs c and returns what it said.
func result(t *testing.T, c *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if _, ok := err.(*exec.ExitError); !ok {
		require.NoError(t, err)
	}
	return c.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestCommandLines(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
		out  string
		errs string
	}{
		{"a plain program", []string{"-n", "3", "echo", "hi"}, 0, "hi\nhi\nhi\n", ""},
		{"one process, whose output is our own", []string{"-n", "1", "echo", "hi"}, 0, "hi\n", ""},
		{"several programs", []string{"-n", "1", "--tag-output", "echo", "a", ":", "-n", "1", "true"}, 0, "[0]<stdout>: a\n", ""},
		{"a variable", []string{"-n", "1", "-x", "V=a b", "sh", "-c", "echo $V"}, 0, "a b\n", ""},
		{"a variable that is not set", []string{"-n", "1", "-x", "NO_SUCH_VARIABLE", "true"}, 0, "", "mpivrun: -x NO_SUCH_VARIABLE: it is not set here\n"},
		{"a working directory", []string{"-n", "1", "--wdir", "/", "pwd"}, 0, "/\n", ""},
		{"a working directory that is not there", []string{"-n", "1", "--wdir", "/no/such", "pwd"}, 127, "", "mpivrun: working directory /no/such does not exist\n"},
		{"an exit code", []string{"-n", "1", "sh", "-c", "exit 42"}, 42, "", "mpivrun: rank 0 on host"},
		{"a signal", []string{"-n", "2", "sh", "-c", "kill -ABRT $$"}, 134, "", "was killed by signal 6 (aborted)"},
		{"no such program", []string{"-n", "2", "no-such-program"}, 127, "", "was not found in PATH"},
		{"not a program", []string{"-n", "2", "/etc/passwd"}, 126, "", "is not executable"},
		{"a time limit", []string{"-n", "2", "--timeout", "0.2", "sleep", "30"}, 110, "", "did not end within 200ms (--timeout)"},
		{"a wrong option", []string{"--tineout", "3", "true"}, 2, "", "did you mean --timeout?"},
		{"a fault of a rank that is not there", []string{"-n", "2", "--chaos", "kill 2@1s", "true"}, 2, "", "mpivrun: --chaos: kill 2@1s: the job has ranks 0 to 1\n"},
		{"a fault of hosts where there is no lab", []string{"-n", "2", "--chaos", "cut X@1s", "true"}, 2, "", "mpivrun: --chaos: cut X@1s: it needs a lab, and this is none"},
		{"a history of nothing", []string{"--chaos-history", "h", "true"}, 2, "", "--chaos orders some"},
		{"nothing", nil, 2, "", "mpivrun: no program is given; say mpivrun [options] program [args], or mpivrun --help\n"},
		{"help", []string{"help"}, 0, "--ranks-per-process K", ""},
		{"help, as an option", []string{"--help"}, 0, "--ranks-per-process K", ""},
		{"help of a command", []string{"help", "move"}, 0, "  mpivrun move RANK [--to HOST] [JOB]\n", ""},
		{"help of one of several", []string{"uncordon", "-h"}, 0, "  mpivrun cordon|uncordon HOST [JOB]\n", ""},
		{"help of what is no command", []string{"help", "mvoe"}, 2, "", `none called "mvoe"; did you mean move?`},
		{"help of what is like no command", []string{"help", "hostname"}, 2, "", `none called "hostname": mpivrun help lists them`},
		{"a command that is misspelt", []string{"explian", "x"}, 127, "", "mpivrun: program \"explian\" was not found in PATH; did you mean mpivrun explain?\n"},
		{"a program that is like a command", []string{"-n", "1", "explian"}, 127, "", "mpivrun: program \"explian\" was not found in PATH\n"},
		{"a program behind an option that is like a command", []string{"--trace", os.DevNull, "no-such-program"}, 127, "", "was not found in PATH\n"},
		{"help, misspelt", []string{"--hlep"}, 2, "", "did you mean --help?"},
		{"no job to explain", []string{"explain"}, 1, "", "mpivrun: no job of yours is running on this host\n"},
		{"a job that is not there", []string{"abort", "x"}, 1, "", "no job of yours"},
		{"a job whose name is empty", []string{"abort", ""}, 2, "", "mpivrun abort: one of the words is empty"},
		{"a host whose name is empty", []string{"drain", "", "x"}, 2, "", "mpivrun drain: one of the words is empty"},
		{"two jobs at once", []string{"explain", "x", "y"}, 2, "", "takes one job"},
		{"no jobs", []string{"ps"}, 0, "JOB  RANKS", ""},
		{"no jobs, for a program", []string{"ps", "--json"}, 0, "[]\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := result(t, mpivrun(t, c.args...))
			require.Equal(t, c.code, code, "out %q, err %q", out, errs)
			require.Contains(t, out, c.out)
			require.Contains(t, errs, c.errs)
			if c.errs == "" {
				require.Empty(t, errs)
			}
		})
	}
}

func TestVersionForPrograms(t *testing.T) {
	_, out, _ := result(t, mpivrun(t, "version", "--json"))
	var b build
	require.NoError(t, json.Unmarshal([]byte(out), &b))
	require.Equal(t, control.Version, b.Protocol)
}

// running starts c and returns the first n lines of what it prints.
func running(t *testing.T, c *exec.Cmd, n int) (lines []string) {
	t.Helper()
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = os.Stderr
	require.NoError(t, c.Start())
	text := ""
	buf := make([]byte, 4096)
	for strings.Count(text, "\n") < n {
		k, err := out.Read(buf)
		require.NoError(t, err, "after %q", text)
		text += string(buf[:k])
	}
	return strings.Split(strings.TrimSpace(text), "\n")
}

// gone waits until pid has ended.
func gone(t *testing.T, pid string) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	}, 20*time.Second, time.Millisecond, "process %s is still there", pid)
}

func TestNothingIsLeftWhenMpivrunIsKilled(t *testing.T) {
	c := mpivrun(t, "-n", "3", "sh", "-c", "echo $$; exec sleep 60")
	pids := running(t, c, 3)
	require.NoError(t, c.Process.Kill())
	c.Wait()
	for _, pid := range pids {
		gone(t, pid)
	}
	// And its directory, though nobody looks.
	require.Eventually(t, func() bool {
		dirs, _ := filepath.Glob(filepath.Join(runtimeDir(t), "mpiv", "*", ""))
		return len(dirs) == 1 // the lock
	}, 20*time.Second, time.Millisecond)
	_, out, _ := result(t, mpivrun(t, "ps", "--json"))
	require.Equal(t, "[]\n", out)
}

func TestNothingIsLeftWhenAJobEnds(t *testing.T) {
	c := mpivrun(t, "-n", "2", "sh", "-c", "setsid sleep 60 & echo $!")
	pids := running(t, c, 2)
	require.NoError(t, c.Wait())
	for _, pid := range pids {
		_, err := os.Stat("/proc/" + pid)
		require.ErrorIs(t, err, os.ErrNotExist, "process %s", pid)
	}
}

func TestOrphansAreBuried(t *testing.T) {
	// The middle process ends before its child, which thereby becomes mpivrun's.
	c := mpivrun(t, "-n", "1", "sh", "-c", "(sh -c 'sleep 0.1 & echo $!'); exec sleep 60")
	pids := running(t, c, 1)
	require.Eventually(t, func() bool {
		_, err := os.Stat("/proc/" + pids[0])
		return err != nil
	}, 20*time.Second, time.Millisecond, "a zombie is left")
	c.Process.Signal(syscall.SIGTERM)
	c.Wait()
	require.Equal(t, 143, c.ProcessState.ExitCode())
}

func TestSignalsArePassedOn(t *testing.T) {
	// The signal may come before mpivrun knows that both run.
	c := mpivrun(t, "-n", "2", "sh", "-c", "trap 'exit 0' USR1; echo ready; while :; do :; done")
	running(t, c, 2)
	c.Process.Signal(syscall.SIGUSR1)
	require.NoError(t, c.Wait())
}

func TestReaderThatGoesAway(t *testing.T) {
	for _, ranks := range []string{"1", "2"} { // one writes there by itself
		t.Run(ranks, func(t *testing.T) { goesAway(t, ranks) })
	}
}

func goesAway(t *testing.T, ranks string) {
	c := mpivrun(t, "-n", ranks, "yes")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var errs bytes.Buffer
	c.Stdout, c.Stderr = w, &errs
	require.NoError(t, c.Start())
	w.Close()
	_, err = r.Read(make([]byte, 10))
	require.NoError(t, err)
	r.Close()
	c.Wait()
	require.Equal(t, 141, c.ProcessState.ExitCode(), "as in any pipeline")
	require.Empty(t, errs.String())
}

// A job that cannot begin, as nobody reads what it is to write to, ends when it is interrupted.
func TestAnInterruptOfWhatCannotBegin(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "rank.1.stdout"), 0o600))
	c := mpivrun(t, "-n", "2", "--output", dir, "true")
	var errs bytes.Buffer
	c.Stderr = &errs
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { // and then it waits for somebody to read the next
		_, err := os.Stat(filepath.Join(dir, "rank.0.stdout"))
		return err == nil
	}, 20*time.Second, time.Millisecond)
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	late := time.AfterFunc(20*time.Second, func() { c.Process.Kill() })
	defer late.Stop()
	c.Wait()
	require.Equal(t, 143, c.ProcessState.ExitCode())
	require.Contains(t, errs.String(), "before the job had begun")
}

// Who reads the output has stopped without going away. The third signal ends what waits for that.
func TestReaderThatStops(t *testing.T) {
	c := mpivrun(t, "-n", "2", "sh", "-c", "echo ready; exec yes")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	c.Stdout = w
	require.NoError(t, c.Start())
	w.Close()
	_, err = r.Read(make([]byte, 1))
	require.NoError(t, err)
	for range 3 {
		time.Sleep(300 * time.Millisecond) // until the pipe is full, and so that none is lost
		require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	}
	c.Wait()
	require.Equal(t, 143, c.ProcessState.ExitCode())
	require.Eventually(t, func() bool {
		_, out, _ := result(t, mpivrun(t, "ps", "--json"))
		return out == "[]\n"
	}, 20*time.Second, 100*time.Millisecond)
}

func TestLookingAtARunningJob(t *testing.T) {
	c := mpivrun(t, "-n", "2", "sh", "-c", "echo $$; exec sleep 60")
	running(t, c, 2)
	_, out, _ := result(t, mpivrun(t, "ps", "--json"))
	var jobs []jobStatus
	require.NoError(t, json.Unmarshal([]byte(out), &jobs))
	require.Len(t, jobs, 1)
	require.Equal(t, "sh-"+strconv.Itoa(c.Process.Pid), jobs[0].Name)
	require.Equal(t, c.Process.Pid, jobs[0].PID)

	code, out, errs := result(t, mpivrun(t, "ps", jobs[0].Name))
	require.Zero(t, code, errs)
	require.Contains(t, out, fmt.Sprint(jobs[0].Processes[1].PID))
	code, out, errs = result(t, mpivrun(t, "explain"))
	require.Zero(t, code, errs)
	require.Contains(t, out, "nothing is known of any rank") // they are sleeps
	code, _, errs = result(t, mpivrun(t, "abort", "another"))
	require.Equal(t, 1, code)
	require.Contains(t, errs, `no job is called "another"; there is `+jobs[0].Name)
	code, out, errs = result(t, mpivrun(t, "abort"))
	require.Zero(t, code, errs)
	require.Contains(t, out, "is told to end")
	c.Wait()
	require.Equal(t, 1, c.ProcessState.ExitCode())
}

// What is typed at a terminal reaches rank 0, and an interrupt all ranks.
func TestTerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)

	c := mpivrun(t, "-n", "2", "--tag-output", "sh", "-c", "printf 'name? '; read x; echo got $x; exec sleep 60")
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, c.Start())
	tty.Close()
	seen := ""
	await := func(text string) {
		buf := make([]byte, 1024)
		for !strings.Contains(seen, text) {
			k, err := master.Read(buf)
			require.NoError(t, err, "%q", seen)
			seen += string(buf[:k])
		}
	}
	await("[0]<stdout>: name? ")
	_, err = master.WriteString("Ada\n")
	require.NoError(t, err)
	await("got Ada")
	_, err = master.Write([]byte{3}) // Ctrl-C
	require.NoError(t, err)
	c.Wait()
	require.Equal(t, 130, c.ProcessState.ExitCode(), "%q", seen)
}
