//go:build linux

package lab_test

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is a new one, and its other end.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals: ", err)
	}
	t.Cleanup(func() { master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// atTerminal starts a lab without root at a terminal, in the foreground or behind it, and
// returns the lab's process and what it says, by lines.
func atTerminal(t *testing.T, background bool) (master *os.File, pid int, lines <-chan string) {
	t.Helper()
	master, slave := terminal(t)
	lab := rootless(t)
	require.NoError(t, slave.Chmod(0o666)) // another user writes to it
	script := `echo pid $$; exec "$0"`
	if background {
		script = `set -m; "$0" & echo pid $!; wait $!; echo code $?`
	}
	cmd := exec.Command("sh", "-c", script, lab.Path)
	cmd.Dir, cmd.Env = lab.Dir, append(os.Environ(), "LAB_TEST_ROLE=interrupted")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: lab.SysProcAttr.Credential}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := make(chan string, 64)
	go func() {
		defer close(said)
		for in := bufio.NewScanner(master); in.Scan(); {
			said <- strings.TrimPrefix(strings.TrimSpace(in.Text()), "^C") // as the terminal echoes it
		}
	}()
	pid, err := strconv.Atoi(after(t, said, "pid "))
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() { // its shell has not waited for it yet
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	after(t, said, "ready")
	return master, pid, said
}

// after is what stands behind a prefix in the first line that has it.
func after(t *testing.T, lines <-chan string, prefix string) string {
	t.Helper()
	late := time.After(20 * time.Second)
	var before []string
	for {
		select {
		case line, open := <-lines:
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest
			}
			if !open {
				t.Fatalf("no line with %q; there were %q", prefix, before)
			}
			if rest, ok := strings.CutPrefix(line, "cannot:"); ok {
				t.Skip(rest)
			}
			before = append(before, line)
		case <-late:
			t.Fatalf("no line with %q in time; there were %q", prefix, before)
		}
	}
}

func TestALabWithoutRootInTheBackgroundIsInterrupted(t *testing.T) {
	_, pid, lines := atTerminal(t, true)
	require.NoError(t, syscall.Kill(pid, syscall.SIGINT))
	require.Equal(t, "1", after(t, lines, "interrupts "))
	dir := after(t, lines, "path ")
	require.Equal(t, "7", after(t, lines, "code "))
	require.NoDirExists(t, dir)
}

func TestAnInterruptIsTypedOnce(t *testing.T) {
	master, _, lines := atTerminal(t, false)
	_, err := master.WriteString("\x03")
	require.NoError(t, err)
	require.Equal(t, "1", after(t, lines, "interrupts "))
}

// TestAProgramThatMayMakeNoLabsCanBeInterrupted: where Enter fails, nobody passes signals on.
func TestAProgramThatMayMakeNoLabsCanBeInterrupted(t *testing.T) {
	lab := rootless(t)
	cmd := exec.Command("sh", "-ec", `echo 0 >/proc/sys/user/max_user_namespaces
		exec setpriv --reuid 12345 --regid 12345 --clear-groups "$0"`, lab.Path)
	cmd.Dir, cmd.Env = lab.Dir, append(os.Environ(), "LAB_TEST_ROLE=refused")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Skip("no namespace in which users make none: ", cmd.Wait())
	}
	require.Contains(t, said, "user.max_user_namespaces is reached")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "terminated")
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		t.Fatal("it still runs 10 s after SIGTERM")
	}
}
