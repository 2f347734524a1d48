//go:build linux

package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

// holders returns the processes that are in one of the namespaces, or hold it open.
// Numbers of namespaces are given again at once, those of processes are not.
func holders(t *testing.T, namespaces []string) []string {
	t.Helper()
	var pids []string
	for _, pattern := range []string{"/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			if id, err := os.Readlink(path); err == nil && slices.Contains(namespaces, id) {
				pids = append(pids, strings.Split(path, "/")[2])
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// live reports whether pid is a process. One that nobody buries is none any more.
func live(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// namespacesOf returns the namespaces of a lab's hosts.
func namespacesOf(l *lab.Lab) (ids []string) {
	for _, h := range l.Hosts() {
		_ = l.Do(h, func() error {
			id, err := os.Readlink("/proc/thread-self/ns/net")
			ids = append(ids, id)
			return err
		})
	}
	return ids
}

// groupsOf returns the control groups of a lab.
func groupsOf(l *lab.Lab) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, filepath.Base(filepath.Dir(l.Path()))) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// play is what the test binary does when a test starts it as something else.
func play(role string) int {
	var o lab.Options
	if role == "crowd" { // takes long to be made
		for i := range 150 {
			o.Hosts = append(o.Hosts, lab.Host{Name: fmt.Sprintf("h%d", i)})
		}
	}
	l, err := lab.New(o)
	if err != nil {
		fmt.Println("cannot:", err)
		return 1
	}
	defer l.Close()
	switch role {
	case "victim": // is killed with a lab in its hands
		_ = l.LimitCPU("X", 0.5)
		c := l.Command(context.Background(), "X", "sh", "-c", "setsid sleep 1000 & sleep 1000")
		if err := c.Start(); err != nil {
			fmt.Println("cannot:", err)
			return 1
		}
		for {
			pids, err := l.Pids("X")
			if err == nil && len(pids) == 3 {
				_ = l.Signal("X", syscall.SIGSTOP)
				fmt.Println("pids", strings.Trim(fmt.Sprint(pids), "[]"))
				break
			}
			time.Sleep(time.Millisecond)
		}
		for _, id := range namespacesOf(l) {
			fmt.Println("namespace", id)
		}
		for _, g := range groupsOf(l) {
			fmt.Println("path", g)
		}
		fmt.Println("path", filepath.Dir(l.Path()))
		fmt.Println("ready")
		time.Sleep(time.Minute)
	case "interrupted": // runs a command, and says how many interrupts come to it
		c := l.Command(context.Background(), "X", "sh", "-c", `n=0; trap 'n=$((n+1))' INT; echo ready
			while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; sleep 0.3; echo interrupts $n; exit 7`)
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		code, err := c.Relay()
		if err != nil {
			fmt.Println("cannot:", err)
		}
		fmt.Println("path", filepath.Dir(filepath.Dir(l.Path())))
		return code
	case "rootless": // shows that a lab works in here
		if os.Geteuid() != 0 || os.Getpid() == 1 {
			fmt.Println("user", os.Geteuid(), "process", os.Getpid())
			return 1
		}
		ln, err := l.Listen("Y", "tcp4", ":7")
		if err != nil {
			fmt.Println(err)
			return 1
		}
		a, _ := l.Addr("Y", "san")
		c, err := l.Dial(context.Background(), "Z", "tcp4", net.JoinHostPort(a.String(), "7"))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		c.Close()
		ln.Close()
		out, err := l.Command(context.Background(), "X", "hostname").Output()
		fmt.Printf("%s%v %v\n", out, err, l.Partition([]string{"X"}, []string{"Y"}))
		if err := l.Impair("X", "lan", lab.Impairment{Loss: 0.5}); err != nil && !errors.Is(err, lab.ErrUnavailable) {
			fmt.Println(err)
		}
		_ = l.Impair("X", "lan", lab.Impairment{})
		if err := l.Cut("X", "lan"); err != nil { // it has a cable, whether the one could be had or not
			fmt.Println(err)
		}
		fmt.Println("path", filepath.Dir(l.Path()))
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 42
	}
	return 0
}

// A victim is a process that has a lab, and what it says there is of it.
type victim struct {
	cmd                     *exec.Cmd
	in                      io.WriteCloser
	pids, namespaces, paths []string
	said                    string
}

// start starts cmd, a copy of this test in a role, and waits until it is ready.
func start(t *testing.T, cmd *exec.Cmd) *victim {
	t.Helper()
	v := &victim{cmd: cmd}
	var err error
	v.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); errors.Is(err, os.ErrPermission) {
		t.Skip("this process may not start one of another user: ", err)
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "ready":
			return v
		case "pids":
			v.pids = strings.Fields(rest)
		case "namespace":
			v.namespaces = append(v.namespaces, rest)
		case "path":
			v.paths = append(v.paths, rest)
		case "cannot:":
			if strings.Contains(rest, lab.ErrUnavailable.Error()) {
				t.Skip(rest)
			}
		}
		if word == "path" {
			continue
		}
		v.said += lines.Text() + "\n"
	}
	t.Fatalf("the process that was to make a lab ended; it said:\n%s", v.said)
	return nil
}

func TestNothingIsLeftAfterKill(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "LAB_TEST_ROLE=victim")
	v := start(t, cmd)
	require.Len(t, v.pids, 3)
	require.Len(t, v.namespaces, 5)
	require.NotEmpty(t, v.paths)
	held := holders(t, v.namespaces)
	require.Len(t, held, 5, "the one that made it, its keeper, and three on the host")
	require.Subset(t, held, append(v.pids, strconv.Itoa(cmd.Process.Pid)))
	for _, path := range v.paths {
		require.DirExists(t, path)
	}

	require.NoError(t, cmd.Process.Kill())
	killed := time.Now()
	_ = cmd.Wait()
	require.Eventually(t, func() bool {
		if slices.ContainsFunc(held, live) {
			return false
		}
		for _, path := range v.paths {
			if _, err := os.Stat(path); err == nil {
				return false
			}
		}
		return true
	}, 20*time.Second, 10*time.Millisecond, "%+v", v)
	t.Logf("%d processes, %d namespaces, %d directories were gone after %v", len(held), len(v.namespaces), len(v.paths), time.Since(killed))
}

// A lab in a host of another is gone with that, though whoever ends that one kills all that runs on the host.
func TestALabInALabIsGoneWithIt(t *testing.T) {
	outer := lab.ForTest(t, lab.Options{})
	c := outer.Command(t.Context(), "X", "/proc/self/exe")
	c.Env = append(c.Env, "LAB_TEST_ROLE=victim")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var pids, paths []string
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
		switch word, rest, _ := strings.Cut(lines.Text(), " "); word {
		case "pids":
			pids = strings.Fields(rest)
		case "path":
			paths = append(paths, rest)
		case "cannot:":
			t.Skip(rest)
		}
	}
	require.Len(t, pids, 3)
	require.NoError(t, outer.Close())
	_ = c.Wait()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(pids, live) && !slices.ContainsFunc(paths, func(path string) bool {
			_, err := os.Stat(path)
			return err == nil
		})
	}, 20*time.Second, 10*time.Millisecond, "processes %v, directories %v", pids, paths)
}

// A lab has nothing on disk before there is a keeper to remove it.
func TestNothingIsLeftOfALabThatIsBeingMade(t *testing.T) {
	const many = 50 // descriptors of who makes one of 150 hosts, who holds each
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "LAB_TEST_ROLE=crowd", "TMPDIR="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := make(chan string, 1)
	go func() {
		said, _ := io.ReadAll(out)
		ended <- string(said)
	}()
	held := 0
	for held < many {
		select {
		case said := <-ended:
			_ = cmd.Wait()
			require.Contains(t, said, "cannot: ")
			t.Skip(said)
		case <-time.After(time.Millisecond):
		}
		all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)) // none: it has ended
		held = len(all)
	}
	require.NoError(t, cmd.Process.Kill())
	<-ended
	_ = cmd.Wait()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// rootless is this test binary as another user, who has no privileges.
func rootless(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 || os.Getenv("MPIV_LAB_HOME") != "" {
		t.Skip("only root becomes another user; without root, all these tests run in such a lab anyway")
	}
	const nobody = 12345
	dir, err := os.MkdirTemp("", "rootless")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	file := filepath.Join(dir, "lab.test")
	require.NoError(t, os.WriteFile(file, exe, 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	cmd := exec.Command(file)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LAB_TEST_ROLE=rootless")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestALabNeedsNoRoot(t *testing.T) {
	v := start(t, rootless(t))
	require.Equal(t, "X\n<nil> <nil>\n", v.said)
	dir := v.paths[0]
	text, err := lab.Control(filepath.Join(dir, "socket"), "show")
	require.NoError(t, err)
	require.Contains(t, text, "10.1.0.1")

	require.NoError(t, v.in.Close())
	err = v.cmd.Wait()
	require.Error(t, err)
	require.Equal(t, 42, v.cmd.ProcessState.ExitCode(), "the exit code of the program is passed on")
	require.NoDirExists(t, dir)
	require.NoDirExists(t, filepath.Dir(dir), "nor the one around it")
}

func TestALabWithoutRootIsGoneAfterKill(t *testing.T) {
	v := start(t, rootless(t))
	require.NoError(t, v.cmd.Process.Kill())
	_ = v.cmd.Wait()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Dir(v.paths[0]))
		return os.IsNotExist(err)
	}, 20*time.Second, 10*time.Millisecond, "directory %s stays", v.paths[0])
	require.Eventually(t, func() bool {
		out, _ := exec.Command("pgrep", "-f", v.cmd.Path).Output()
		return len(out) == 0
	}, 20*time.Second, 10*time.Millisecond, "a process stays")
}
