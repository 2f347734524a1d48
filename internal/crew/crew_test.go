package crew

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
)

// A diary is an owner that writes down what it is told.
type diary struct{ told chan string }

func newDiary() *diary { return &diary{told: make(chan string, 100)} }

func (d *diary) Forked(process, pid int, err error) {
	if err != nil {
		d.told <- fmt.Sprintf("%d forked: %v", process, err)
		return
	}
	d.told <- fmt.Sprintf("%d forked", process)
}

func (d *diary) Said(process int, m *control.Message) {
	d.told <- fmt.Sprintf("%d said: %t", process, m != nil)
}
func (d *diary) Refused(reason string) { d.told <- "refused: " + reason }
func (d *diary) Exited(process int, status syscall.WaitStatus) {
	d.told <- fmt.Sprintf("%d exited: %d, signal %d", process, status.ExitStatus(), status.Signal())
}
func (d *diary) Drained(process int) { d.told <- fmt.Sprintf("%d drained", process) }
func (d *diary) Stopped(process int, why string) {
	d.told <- fmt.Sprintf("%d stopped: %s", process, why)
}

// next is the next n things that were told.
func (d *diary) next(n int) (all []string) {
	for range n {
		all = append(all, <-d.told)
	}
	return all
}

// A page keeps what a process writes. It is read once the process has drained.
type page struct{ text []byte }

func (p *page) Pump(r *os.File) {
	defer r.Close()
	p.text, _ = io.ReadAll(r)
}
func (p *page) Leave(*os.File) {}

// shell is a process that runs script, and what it writes.
func shell(t *testing.T, index int, script string) (p Process, out *page) {
	out = new(page)
	p = Process{Index: index, Ranks: []int{index}, Program: Program{Path: "sh", Args: []string{"-c", script}}, Output: [2]Output{out, new(page)}}
	var err error
	p.File, err = p.Program.Find()
	require.NoError(t, err)
	return p, out
}

// Those that were added before start with it, others at once, and of each the owner is told in order.
func TestWhatIsAddedRuns(t *testing.T) {
	d := newDiary()
	c, err := New(t.TempDir(), d)
	require.NoError(t, err)
	defer c.Close()
	early, earlyOut := shell(t, 2, "read x; echo early $x $"+control.EnvProcess+"; exit 3")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	early.Input, early.CloseInput = r, true
	blank := filepath.Join(c.dir, control.BlankFile(2))
	require.NoError(t, os.WriteFile(blank, nil, 0o600))
	require.NoError(t, c.Add(early))
	require.NoError(t, c.Start(Job{}))
	require.Equal(t, []string{"2 forked"}, d.next(1))
	w.Write([]byte("bird\n"))
	require.Equal(t, []string{"2 exited: 3, signal -1", "2 drained"}, d.next(2))
	require.Equal(t, "early bird 2\n", string(earlyOut.text))
	require.NoFileExists(t, blank, "what a spare process has ready takes memory")
	_, err = w.Write([]byte("nobody reads"))
	require.ErrorIs(t, err, syscall.EPIPE, "the crew has closed what it was given to close")

	late, _ := shell(t, 5, "exec sleep 60")
	require.NoError(t, c.Add(late))
	require.Equal(t, []int{2, 5}, c.Processes())
	require.Equal(t, []string{"5 forked"}, d.next(1))
	require.False(t, c.Send(control.Message{Stop: &control.Stop{}}, 5), "it has not said Hello")
	c.Kill(9, syscall.SIGKILL) // is not here
	c.Kill(5, syscall.SIGKILL)
	require.Equal(t, []string{"5 exited: -1, signal 9", "5 drained"}, d.next(2))
}

func TestWhatCannotRunIsTold(t *testing.T) {
	d := newDiary()
	dir := t.TempDir()
	c, err := New(dir, d)
	require.NoError(t, err)
	defer c.Close()
	p, _ := shell(t, 0, "")
	p.File = dir + "/text"
	require.NoError(t, os.WriteFile(p.File, []byte("no program"), 0o755))
	require.NoError(t, c.Add(p))
	require.NoError(t, c.Start(Job{}))
	require.Regexp(t, `^0 forked: program "sh" is not a binary for this machine`, <-d.told)

	_, err = Program{Path: "sh", Dir: dir + "/nowhere"}.Find()
	var ee *exit.Error
	require.ErrorAs(t, err, &ee)
	require.Equal(t, exit.NotFound, ee.Code)
}

// Who says Hello is welcome once, and only if it was added.
func TestWhoSaysHello(t *testing.T) {
	d := newDiary()
	c, err := New(t.TempDir(), d)
	require.NoError(t, err)
	defer c.Close()
	p, _ := shell(t, 1, "exec sleep 60")
	require.NoError(t, c.Add(p))
	require.NoError(t, c.Start(Job{Token: []byte("token")}))
	require.Equal(t, []string{"1 forked"}, d.next(1))
	hello := func(process int) *control.Message {
		conn, err := net.Dial("unix", c.socket())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		cc := control.NewConn[control.Message](conn)
		require.NoError(t, cc.Send(control.Message{Hello: &control.Hello{Process: process, Version: control.Version}}))
		m, err := cc.Receive()
		require.NoError(t, err)
		return &m
	}
	require.NotNil(t, hello(7).Stop)
	require.Equal(t, []string{"refused: process 7 is none of the job's on this host"}, d.next(1))
	require.Equal(t, "token", string(hello(1).Welcome.Token))
	require.Equal(t, []string{"1 said: true"}, d.next(1))
	require.True(t, c.Send(control.Message{Stop: &control.Stop{}}, 1))
	require.NotNil(t, hello(1).Stop)
	require.Regexp(t, "^refused: rank 1 has said Hello already", <-d.told)
	c.Kill(1, syscall.SIGKILL)
	require.ElementsMatch(t, []string{"1 exited: -1, signal 9", "1 drained"}, d.next(2))
}

// Close ends what Go and Accept have begun, and the pumps of what was never started.
func TestCloseWaitsForAll(t *testing.T) {
	c, err := New(t.TempDir(), newDiary())
	require.NoError(t, err)
	p, _ := shell(t, 0, "")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	p.Input, p.CloseInput = r, true
	require.NoError(t, c.Add(p))
	over := false
	c.Go(func(stopping <-chan struct{}) { <-stopping; over = true })
	c.Close()
	c.Close()
	require.True(t, over)
	_, err = w.Write([]byte("nobody reads"))
	require.ErrorIs(t, err, syscall.EPIPE)
}

// All threads of a starter end with it, those too that wait for work.
func TestStartersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarter(3)
		synctest.Wait()
		s.close()
	})
}

// asleep is a process in a group of its own.
func asleep(t *testing.T) *exec.Cmd {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	return cmd
}

// endedBy is the signal that has ended cmd: SIGTERM, unless it was killed before.
func endedBy(cmd *exec.Cmd) syscall.Signal {
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

// Once a process has been reaped, its number is another's.
func TestWhoWasReapedIsNotKilled(t *testing.T) {
	for _, reaped := range []bool{false, true} {
		cmd := asleep(t)
		m := &child{proc: cmd.Process, reaped: reaped}
		m.kill(syscall.SIGKILL)
		require.Equal(t, reaped, endedBy(cmd) == syscall.SIGTERM)
	}
}

// So a guard kills who is left, and not who it was told has ended.
func TestAGuardKillsWhoIsLeft(t *testing.T) {
	left, ended := asleep(t), asleep(t)
	GuardLife(strings.NewReader(fmt.Sprintf("+%d\n+%d\n-%d\n", left.Process.Pid, ended.Process.Pid, ended.Process.Pid)))
	require.Equal(t, syscall.SIGKILL, endedBy(left))
	require.Equal(t, syscall.SIGTERM, endedBy(ended))
}

// Of who has ended its connection nothing is awaited any more, a reading as little as a word of who takes no time.
func TestWhoHasPartedIsNotWaitedFor(t *testing.T) {
	d := newDiary()
	c, err := New(t.TempDir(), d)
	require.NoError(t, err)
	defer c.Close()
	p, _ := shell(t, 1, "exec sleep 60")
	require.NoError(t, c.Add(p))
	require.NoError(t, c.Start(Job{}))
	defer c.Kill(1, syscall.SIGKILL)
	require.Equal(t, []string{"1 forked"}, d.next(1))
	conn, err := net.Dial("unix", c.socket())
	require.NoError(t, err)
	cc := control.NewConn[control.Message](conn)
	require.NoError(t, cc.Send(control.Message{Hello: &control.Hello{Process: 1, Version: control.Version}}))
	require.Equal(t, []string{"1 said: true"}, d.next(1))
	require.True(t, c.Send(control.Message{Start: &control.Start{}}, 1))
	require.True(t, c.child(1).begun())
	conn.Close()
	require.Equal(t, []string{"1 said: false"}, d.next(1))
	require.False(t, c.child(1).begun())
	require.Equal(t, map[int]*events.Reading{1: nil}, c.Scrape(t.Context()))
}
