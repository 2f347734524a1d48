package agent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A guard is a small process that outlives its agent by a moment: should the
// agent be killed, it kills what the agent's processes have started. They
// themselves die with the agent, by the signal that they asked for.
type guard struct {
	cmd *exec.Cmd

	mu sync.Mutex // guards in
	in io.WriteCloser
}

// newGuard starts command, which calls Guard. Without a guard (nil), after an
// error, the job goes on.
func newGuard(command []string) (*guard, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal is not for it
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start a guard, which ends what is left should mpivrun be killed: %w", err)
	}
	return &guard{cmd: cmd, in: in}, nil
}

// add and remove tell that a process runs, or that it and its group have ended.
func (g *guard) add(pid int)    { g.tell('+', pid) }
func (g *guard) remove(pid int) { g.tell('-', pid) }

func (g *guard) tell(sign byte, pid int) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintf(g.in, "%c%d\n", sign, pid) // a guard that is gone guards nothing
}

// is is true if pid is the guard.
func (g *guard) is(pid int) bool { return g != nil && g.cmd.Process.Pid == pid }

// close ends the guard and waits for it.
func (g *guard) close() {
	if g == nil {
		return
	}
	g.in.Close()
	g.cmd.Wait()
}

// Guard reads which processes run from in, and kills the groups of those that
// are left when in ends.
func Guard(in io.Reader) {
	running := map[int]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
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
}
