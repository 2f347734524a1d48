package agent

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/orphans"
	"github.com/mpiv/mpiv/internal/race"
)

// The processes of these tests are this test binary, which then is a small
// program that speaks the control protocol. Which one is in this variable.
const envDo = "MPIV_TEST_DO"

func TestMain(m *testing.M) {
	if do := os.Getenv(envDo); do == "agent" {
		os.Unsetenv(envDo)
		if err := orphans.Adopt(); err != nil {
			panic(err)
		}
		self, _ := os.Executable()
		guard, err := crew.StartGuard("env", envDo+"=guard", self)
		if err != nil {
			panic(err)
		}
		os.Exit(Deputy(Orders{In: os.Stdin, Out: os.Stdout, Errs: os.Stderr, Guard: guard}))
	} else if do == "guard" {
		crew.GuardLife(os.Stdin)
		os.Exit(0)
	} else if do != "" {
		members[do](newMember())
		os.Exit(0)
	}
	flag.Parse()
	sideBySide := "8" // they wait for most of their time
	if race.Enabled {
		sideBySide = "3"
	}
	flag.Set("test.parallel", sideBySide)
	os.Exit(m.Run())
}

// A member is the process's side of the control protocol.
type member struct {
	process int
	conn    *control.Conn[control.Message]
	welcome *control.Welcome
	start   *control.Start
}

func newMember() *member {
	n, err := strconv.Atoi(os.Getenv(control.EnvProcess))
	if err != nil {
		panic("not started by an agent")
	}
	return &member{process: n}
}

func (m *member) hello() {
	var err error
	if m.conn, err = control.Dial(os.Getenv(control.EnvSocket)); err != nil {
		panic(err)
	}
	m.send(control.Message{Hello: &control.Hello{Version: control.Version, Process: m.process, PID: os.Getpid()}})
	msg, err := m.conn.Receive()
	if err != nil || msg.Welcome == nil {
		os.Exit(7)
	}
	m.welcome = msg.Welcome
	m.send(control.Message{Ready: &control.Ready{Addrs: []control.Addr{{Addr: fmt.Sprintf("mem:%d", m.process)}}}})
}

func (m *member) send(msg control.Message) {
	if err := m.conn.Send(msg); err != nil {
		os.Exit(9) // the agent is gone
	}
}

// join says Hello and waits for Start.
func (m *member) join() *member {
	m.hello()
	msg, err := m.conn.Receive()
	if err != nil || msg.Start == nil {
		os.Exit(8)
	}
	m.start = msg.Start
	return m
}

func (m *member) ranks() []int { return m.start.Processes[m.process].Ranks }

func (m *member) finish() {
	m.send(control.Message{Finished: &control.Finished{Ranks: m.ranks()}})
}

// stop waits for Stop, as a rank that is in a call would, and exits with 1.
func (m *member) stop() {
	for {
		msg, err := m.conn.Receive()
		if err != nil {
			os.Exit(9)
		}
		if msg.Stop != nil {
			fmt.Printf("stopped: %s\n", msg.Stop.Reason)
			os.Exit(1)
		}
	}
}

var members = map[string]func(m *member){
	"finish": func(m *member) { m.join().finish() },
	"show": func(m *member) {
		m.join()
		fmt.Printf("process %d of %d: ranks %v, token %d bytes, peer at %s\n",
			m.process, len(m.start.Processes), m.ranks(), len(m.welcome.Token), m.start.Processes[0].Addrs[0].Addr)
		m.finish()
	},
	"token": func(m *member) { m.join(); fmt.Printf("%x\n", m.welcome.Token); m.finish() },
	"exit 3 in 1": func(m *member) {
		if m.join(); m.process == 1 {
			fmt.Fprint(os.Stderr, "one\ntwo\nthree\nfour\nfive\nsix without end")
			os.Exit(3)
		}
		m.stop()
	},
	"kill 2": func(m *member) {
		if m.join(); m.process == 2 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		m.stop()
	},
	"fail in 1": func(m *member) {
		if m.join(); m.process == 1 {
			m.send(control.Message{Failed: &control.Failed{Rank: 1, Code: 7, Error: "the matrix is singular"}})
		}
		m.stop()
	},
	// What a rank does that was told of another's failure, and may be heard first.
	"told in 0, fail in 1": func(m *member) {
		if m.join(); m.process == 0 {
			m.send(control.Message{Failed: &control.Failed{Rank: 0, Code: 1, Error: "rank 1 gave up", Told: true}})
			m.stop()
		}
		time.Sleep(50 * time.Millisecond)
		m.send(control.Message{Failed: &control.Failed{Rank: 1, Code: 7, Error: "the matrix is singular"}})
		m.stop()
	},
	// What a rank does that loses its peer: its failure may be heard before the
	// peer's death is seen.
	"blame": func(m *member) {
		if m.join(); m.process == 1 {
			m.send(control.Message{Failed: &control.Failed{Rank: 1, Code: 1, Error: "rank 0 is gone", Lost: new(int)}})
			m.stop()
		}
		time.Sleep(50 * time.Millisecond)
		os.Exit(5)
	},
	"leave": func(m *member) { m.join() },
	"leave 1 before hello": func(m *member) {
		if m.process == 1 {
			return
		}
		m.join()
	},
	"leave 1 after hello": func(m *member) {
		if m.process == 1 {
			time.Sleep(200 * time.Millisecond) // the others have said Hello by then
			return
		}
		m.join()
	},
	"deaf": func(m *member) {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		if m.join(); m.process == 0 {
			os.Exit(4)
		}
		time.Sleep(time.Minute)
	},
	"old": func(m *member) {
		m.conn, _ = control.Dial(os.Getenv(control.EnvSocket))
		m.send(control.Message{Hello: &control.Hello{Version: control.Version + 1, Process: m.process}})
		time.Sleep(time.Minute)
	},
	"signal": func(m *member) {
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGUSR1)
		m.join()
		fmt.Println("ready")
		fmt.Println(<-got)
		m.finish()
	},
	"linger": func(m *member) {
		if m.join(); m.process == 1 {
			time.Sleep(100 * time.Millisecond)
			os.Exit(3)
		}
		m.finish()
		m.conn.Close()
		time.Sleep(time.Minute)
	},
	"wait":  func(m *member) { m.join(); fmt.Println("ready"); m.stop() },
	"sleep": func(m *member) { m.join(); fmt.Println("ready"); time.Sleep(time.Minute) },
}

// A buffer is an output that several goroutines use.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// await returns when b contains text, n times.
func (b *buffer) await(t *testing.T, text string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return bytes.Count([]byte(b.String()), []byte(text)) >= n },
		time.Minute, time.Millisecond, "never had %q %d times:\n%v", text, n, b)
}

// jobOf is n ranks of a member, with its outputs.
func jobOf(t *testing.T, n int, do string) (Job, *buffer, *buffer) {
	t.Helper()
	require.Contains(t, members, do)
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "mpiv-agent")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	noneLeft(t)
	out, errs := new(buffer), new(buffer)
	return Job{
		Programs: []Program{{Ranks: n, Path: self, Env: []string{envDo + "=" + do, "GORACE=atexit_sleep_ms=0"}}},
		Name:     "test", Host: "here", Stdout: out, Stderr: errs, Runtime: dir,
	}, out, errs
}

// noneLeft fails t when it ends and goroutines that it has started from now on, or that they
// have, have not.
func noneLeft(t *testing.T) {
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	t.Cleanup(func() {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			left := labelled(t)
			if len(left) <= 1 { // this one
				return
			}
			if time.Now().After(end) {
				t.Fatalf("goroutines are left:\n%s", strings.Join(left, "\n\n"))
			}
		}
	})
}

// labelled is the stacks of t's goroutines.
func labelled(t *testing.T) (all []string) {
	var text strings.Builder
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 1))
	for stack := range strings.SplitSeq(text.String(), "\n\n") {
		if strings.Contains(stack, fmt.Sprintf("# labels: {%q:%q}", "test", t.Name())) {
			all = append(all, stack)
		}
	}
	return all
}

// shell is n ranks of a script, which does not speak the protocol.
func shell(t *testing.T, n int, script string) (Job, *buffer, *buffer) {
	j, out, errs := jobOf(t, n, "finish")
	j.Programs[0] = Program{Ranks: n, Path: "sh", Args: []string{"-c", script}}
	return j, out, errs
}

func runJob(t *testing.T, j Job) int {
	t.Helper()
	a, err := Start(j)
	require.NoError(t, err)
	return a.Wait()
}
