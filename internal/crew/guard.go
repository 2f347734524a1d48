package crew

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/orphans"
	"github.com/mpiv/mpiv/internal/rundir"
)

// A Guard is a small process that outlives its agent by a moment: should the
// agent be killed, it kills what the agent's processes have started. They
// themselves die with the agent, by the signal that they asked for; what they
// started is found by its process group, or by the job's socket in its environment.
// It also removes the job's directory, which holds what the ranks have saved.
// The nil Guard does nothing.
type Guard struct {
	cmd *exec.Cmd

	mu sync.Mutex // guards in
	in io.WriteCloser
}

// StartGuard starts command, which calls GuardLife. It is best called early: a guard takes a core for some tens of
// milliseconds to come to life, which the ranks want once they run.
func StartGuard(command ...string) (*Guard, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal is not for it
	in, err := cmd.StdinPipe()
	if err == nil {
		err = orphans.Start(cmd)
	}
	if err != nil {
		return nil, fmt.Errorf("start a guard, which ends what is left should mpivrun be killed: %w", err)
	}
	return &Guard{cmd: cmd, in: in}, nil
}

// guards tells that the processes have socket in their environment.
func (g *Guard) guards(socket string) { g.tell("=%s\n", socket) }

// add and remove tell that a process runs, or that it and its group have ended.
func (g *Guard) add(pid int)    { g.tell("+%d\n", pid) }
func (g *Guard) remove(pid int) { g.tell("-%d\n", pid) }

func (g *Guard) tell(format string, what any) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintf(g.in, format, what) // a guard that is gone guards nothing
}

// Close ends the guard and waits for it. Twice is harmless.
func (g *Guard) Close() {
	if g == nil {
		return
	}
	g.tell("%s\n", guardOver)
	g.in.Close()
	orphans.Wait(g.cmd)
}

// guardOver is said by an agent that ends by itself, and so tidies up itself.
const guardOver = "over"

// patient is how long what is killed may go on starting others.
const patient = 2 * time.Second

// GuardLife is the life of a guard, which mpivrun starts as a command: it reads which processes run from in, and kills the groups of those that
// are left when in ends, and whatever else they have left behind.
func GuardLife(in io.Reader) {
	running := map[int]bool{}
	socket, over := "", false
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if path, ok := strings.CutPrefix(lines.Text(), "="); ok {
			socket = path
			continue
		}
		if over = lines.Text() == guardOver; over {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimLeft(lines.Text(), "+-"))
		switch {
		case err != nil || pid <= 1:
			fmt.Fprintf(os.Stderr, "mpivrun: guard: %q is no process; is it not mpivrun that speaks?\n", lines.Text())
		case lines.Text()[0] == '-':
			delete(running, pid)
		default:
			running[pid] = true
		}
	}
	for pid := range running {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
	if socket == "" || os.Getenv(control.EnvSocket) == socket {
		return
	}
	// What is killed may just have started another: until none is found.
	for end := time.Now().Add(patient); killOf(socket) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	// The agent may not be quite dead yet.
	for end := time.Now().Add(patient); !over && !rundir.Reap(filepath.Dir(socket)) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// killOf kills the processes of this user that were started with socket in their
// environment, and returns how many there were.
func killOf(socket string) int {
	own := []byte(control.EnvSocket + "=" + socket)
	found := 0
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		env, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return bytes.Equal(v, own) }) {
			continue // a zombie has none
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found++
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return found
}
