package agent

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/identity"
)

// seat is a job whose second host, b, has no agent until the test takes its
// place. It has one rank, process 1; process 0 is here.
func seat(t *testing.T) (a *Agent, out, errs *buffer) {
	t.Helper()
	j, out, errs := shell(t, 2, "echo up; exec sleep 60")
	elsewhere(t, &j, "b")
	j.Hosts = []Host{{Name: "here", Here: true, Slots: 1}, {Name: "b", Slots: 1}}
	j.Launch.Command = []string{"sh", "-c", "exec cat >/dev/null"}
	j.Verbose = true
	a, err := Start(j)
	require.NoError(t, err)
	return a, out, errs
}

// take connects to a as the agent of b.
func take(t *testing.T, a *Agent) *tls.Conn {
	t.Helper()
	c, err := a.authority.Issue(identity.Agent, 2)
	require.NoError(t, err)
	id, err := c.Open()
	require.NoError(t, err)
	conn, err := tls.Dial("tcp", a.head.listener.Addr().String(), id.TLS())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// fake is an agent of b that has joined and been told to run.
func fake(t *testing.T, a *Agent) (*tls.Conn, *control.Conn[control.FromAgent]) {
	t.Helper()
	conn := take(t, a)
	c := control.NewConn[control.FromAgent](conn)
	require.NoError(t, c.Send(control.FromAgent{Joined: &control.Joined{Version: control.AgentVersion, Cores: 1, Time: time.Now()}}))
	to := control.NewConn[control.ToAgent](conn)
	for {
		m, err := to.Receive()
		require.NoError(t, err)
		if m.Run != nil {
			return conn, c
		}
	}
}

func TestClocksThatDiffer(t *testing.T) {
	said := regexp.MustCompile(`host b: its clock is (\S+) (ahead of|behind) the one here: `)
	for _, skew := range []time.Duration{time.Hour, -time.Minute, time.Second} {
		a, out, errs := seat(t)
		began := time.Now()
		conn := take(t, a)
		_, err := control.NewConn[control.ToAgent](conn).Receive() // that it is let in
		require.NoError(t, err)
		c := control.NewConn[control.FromAgent](conn)
		sent := time.Now()
		require.NoError(t, c.Send(control.FromAgent{Joined: &control.Joined{Version: control.AgentVersion, Cores: 1, Time: sent.Add(skew)}}))
		out.await(t, "up", 1)
		took := time.Since(began)
		conn.Close()
		require.Equal(t, 1, a.Wait())
		if skew.Abs() < clockSkew {
			require.NotContains(t, errs.String(), "its clock")
			continue
		}
		found := said.FindStringSubmatch(errs.String())
		require.NotEmpty(t, found, "%s", errs)
		by, err := time.ParseDuration(found[1])
		require.NoError(t, err)
		if found[2] == "behind" {
			by = -by
		}
		const rounded = 50 * time.Millisecond
		require.InDelta(t, skew, by, float64(took/2+rounded), "%s: between it was let in and heard were at most %v", found[0], took)
	}
}

func TestAnAgentOfAnotherVersion(t *testing.T) {
	a, _, errs := seat(t)
	c := control.NewConn[control.FromAgent](take(t, a))
	require.NoError(t, c.Send(control.FromAgent{Joined: &control.Joined{Version: control.AgentVersion + 1}}))
	require.Equal(t, 1, a.Wait())
	require.Contains(t, errs.String(), fmt.Sprintf("host b: its mpivrun speaks version %d of the protocol of agents, this one %d: install the same on all hosts",
		control.AgentVersion+1, control.AgentVersion))
}

// open is how many descriptors this process has.
func open(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// Strangers who say nothing, or a byte now and then, keep no agent out; nothing
// is left of them.
func TestSilentStrangersKeepNobodyOut(t *testing.T) {
	j, _, errs := shell(t, 2, "echo up")
	elsewhere(t, &j, "b")
	gate := filepath.Join(j.Runtime, "gate")
	j.Launch.Command = []string{"sh", "-c", `while [ ! -e ` + gate + ` ]; do sleep 0.01; done; shift; exec env GORACE=atexit_sleep_ms=0 ` + envDo + `=agent "$@"`, "sh"}
	before := open(t)
	a, err := Start(j)
	require.NoError(t, err)
	port := a.head.listener.Addr().(*net.TCPAddr).Port
	over := make(chan struct{})
	var conns []net.Conn
	for i := range 400 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		require.NoError(t, err)
		conns = append(conns, c)
		if i%4 == 0 {
			go func() { // a handshake that takes forever
				for _, b := range []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on") {
					select {
					case <-over:
						return
					case <-time.After(20 * time.Millisecond):
						c.Write([]byte{b})
					}
				}
			}()
		}
	}
	held := func() int { return open(t) - before - len(conns) } // what they cost the agent
	require.Eventually(t, func() bool { return held() >= door.Shakes }, 20*time.Second, time.Millisecond, "they are let in")
	require.Less(t, held(), door.Shakes+40, "a bounded number is kept")
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	begun := time.Now()
	require.Zero(t, a.Wait(), "%s", errs)
	require.Less(t, time.Since(begun), door.ShakeTime, "nobody has waited for the strangers to be given up")
	close(over)
	for _, c := range conns {
		c.Close()
	}
	require.Eventually(t, func() bool { return open(t) <= before }, 20*time.Second, time.Millisecond, "%d descriptors before, now %d", before, open(t))
}

// What an agent may not say costs it its connection.
func TestWhatAnAgentMayNotSay(t *testing.T) {
	t.Parallel()
	line := func(m control.FromAgent) func(*tls.Conn) {
		text, err := json.Marshal(m)
		require.NoError(t, err)
		return func(c *tls.Conn) { c.Write(append(text, '\n')) }
	}
	for _, c := range []struct {
		name string
		say  func(c *tls.Conn)
		says string
	}{
		{"garbage", func(c *tls.Conn) { c.Write([]byte("\x00\xff{{{\n")) }, "a message that is none"},
		{"another shape", func(c *tls.Conn) { c.Write([]byte(`{"Output":7}` + "\n")) }, "a message that is none"},
		{"numbers that are none", func(c *tls.Conn) { c.Write([]byte(`{"Exited":{"Process":1e99}}` + "\n")) }, "a message that is none"},
		{"a line without end", func(c *tls.Conn) {
			for piece := make([]byte, 1<<20); ; {
				if _, err := c.Write(piece); err != nil {
					return
				}
			}
		}, fmt.Sprintf("a message of more than %d bytes", control.FromAgentBytes)},
		{"another's process", line(control.FromAgent{Exited: &control.Exited{Process: 0}}), "it spoke of process 0, which is not there"},
		{"no process", line(control.FromAgent{Said: &control.Said{Process: 2}}), "it spoke of process 2, which is not there"},
		{"less than none", line(control.FromAgent{Forked: &control.Forked{Process: -1}}), "it spoke of process -1, which is not there"},
		{"output of less than none", line(control.FromAgent{Output: &control.Output{Process: -1 << 62, Data: []byte("x")}}), "which is not there"},
		{"the input of another", line(control.FromAgent{Taken: &control.Taken{Process: 0, Bytes: 1}}), "it spoke of process 0, which is not there"},
		{"output without any", line(control.FromAgent{Output: &control.Output{Process: 1}}), "it sent more of rank 1 than it may"},
		{"more output than may be on its way", func(c *tls.Conn) {
			line(control.FromAgent{Output: &control.Output{Process: 1, Data: make([]byte, control.OutputWindow+1)}})(c)
		}, "it sent more of rank 1 than it may"},
		{"output after the end", func(c *tls.Conn) {
			line(control.FromAgent{Drained: &control.Drained{Process: 1}})(c)
			line(control.FromAgent{Output: &control.Output{Process: 1, Data: []byte("x")}})(c)
		}, "it sent more of rank 1 than it may"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _, errs := seat(t)
			conn, _ := fake(t, a)
			go func() { // it must not hold up who listens
				buf := make([]byte, 1<<10)
				for {
					if _, err := conn.Read(buf); err != nil {
						return
					}
				}
			}()
			c.say(conn)
			require.Equal(t, 1, a.Wait())
			require.Contains(t, errs.String(), "host b: its agent has ended, and with it rank 1")
			require.Contains(t, errs.String(), c.says)
		})
	}
}

// What an agent says twice, too early, too often, or of hosts that are none, changes
// nothing and costs little.
func TestAnAgentThatTalksNonsense(t *testing.T) {
	a, _, errs := seat(t)
	conn, c := fake(t, a)
	go func() {
		buf := make([]byte, 1<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
		}
	}()
	say := func(m control.FromAgent) { require.NoError(t, c.Send(m)) }
	goroutines := runtime.NumGoroutine()
	busy, free := make(chan struct{}), make(chan struct{})
	a.post(func() { close(busy); <-free }) // it cannot answer now
	<-busy
	for i := range 3 * questionsMost {
		say(control.FromAgent{Question: &control.Exchange{ID: uint64(i), Text: []byte(`{"Op":"ps"}`)}})
	}
	r := a.hosts[1].place.(*remote)
	require.Eventually(t, func() bool { return r.asking.Load() == questionsMost }, 20*time.Second, time.Millisecond)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+questionsMost+5)
	close(free)
	say(control.FromAgent{})
	say(control.FromAgent{Joined: &control.Joined{Version: 999}})
	say(control.FromAgent{Exited: &control.Exited{Process: 1, Status: 9}}) // before it was started
	for _, n := range []int{-1 << 62, -1, 0, 1, 2, 3, 1 << 62} {
		say(control.FromAgent{LaunchFailed: &control.LaunchFailed{Agent: n, Exit: 1, Text: "ha"}})
	}
	for i := range 3 {
		say(control.FromAgent{Forked: &control.Forked{Process: 1, PID: -i}})
	}
	say(control.FromAgent{Taken: &control.Taken{Process: 1, Bytes: -1 << 62}})
	for i := range 3000 {
		say(control.FromAgent{Refused: &control.Refused{Reason: "because"}})
		say(control.FromAgent{Question: &control.Exchange{ID: uint64(i), Text: []byte(`{"Op":"ps"}`)}})
		say(control.FromAgent{Said: &control.Said{Process: 1, Message: &control.Message{Finished: &control.Finished{Ranks: []int{i - 2000}}}}})
	}
	for range 3 {
		say(control.FromAgent{Exited: &control.Exited{Process: 1}})
		say(control.FromAgent{Drained: &control.Drained{Process: 1}})
	}
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	require.LessOrEqual(t, strings.Count(errs.String(), "because"), door.RefusalsTold)
	require.Contains(t, errs.String(), "rank 1: exited with code 0")
}

// An agent that tells the end of a process's connection, or what it said, before the process
// has said Hello.
func TestAnAgentThatSpeaksForASilentProcess(t *testing.T) {
	a, _, errs := seat(t)
	conn, c := fake(t, a)
	go io.Copy(io.Discard, conn)
	require.NoError(t, c.Send(control.FromAgent{Forked: &control.Forked{Process: 1, PID: 7}}))
	require.NoError(t, c.Send(control.FromAgent{Said: &control.Said{Process: 1}}))
	require.NoError(t, c.Send(control.FromAgent{Said: &control.Said{Process: 1, Message: &control.Message{Finished: &control.Finished{Ranks: []int{1}}}}}))
	require.NoError(t, c.Send(control.FromAgent{Exited: &control.Exited{Process: 1, Status: 9}}))
	require.NoError(t, c.Send(control.FromAgent{Drained: &control.Drained{Process: 1}}))
	require.NotZero(t, a.Wait())
	require.Contains(t, errs.String(), "rank 1 on host b was killed by signal 9")
}

// A screen that goes on after it was held up takes much in small pieces at once: the agent that
// is told so is not overwhelmed.
func TestMuchIsTakenAtOnce(t *testing.T) {
	a := newAgent(Job{})
	p := &process{streams: [2]*stream{{screen: new(screen), w: io.Discard}, {screen: new(screen), w: io.Discard}}}
	r := &remote{a: a, out: make(chan control.ToAgent, remoteQueue), over: make(chan struct{}), gave: make(chan struct{}, 1), taken: map[stdio]control.Taken{}}
	r.printer.init(r)
	const pieces = 2 * remoteQueue
	for range pieces {
		require.True(t, r.printer.add(printed{p: p, data: []byte("line\n")}))
	}
	for _, x := range r.printer.queue {
		r.printer.print(x)
	}
	require.Empty(t, r.out)
	require.Equal(t, map[stdio]control.Taken{{}: {Bytes: 5 * pieces}}, r.takeTaken())
	require.Empty(t, r.takeTaken(), "it is told once")
	select {
	case <-r.over:
		t.Error("the agent was taken for lost")
	default:
	}
}

// A screen that is held up while an agent sends what it may and then more: what
// the first agent holds stays within the window, and is let go.
func TestOutputIsBounded(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	j, _, _ := shell(t, 2, "exec sleep 60")
	elsewhere(t, &j, "b")
	j.Hosts = []Host{{Name: "here", Here: true, Slots: 1}, {Name: "b", Slots: 1}}
	j.Launch.Command = []string{"sh", "-c", "exec cat >/dev/null"}
	j.Stdout = w                                             // nobody reads
	said, err := os.Create(filepath.Join(j.Runtime, "said")) // another screen
	require.NoError(t, err)
	defer said.Close()
	j.Stderr = said
	a, err := Start(j)
	require.NoError(t, err)
	conn, c := fake(t, a)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	sent := 0
	for piece := make([]byte, 32<<10); sent < 64<<20; sent += len(piece) {
		if c.Send(control.FromAgent{Output: &control.Output{Process: 1, Data: piece}}) != nil {
			break
		}
	}
	require.Less(t, sent, 64<<20, "the connection ends")
	conn.Close()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(said.Name())
		return err == nil && strings.Contains(string(text), "it sent more of rank 1 than it may")
	}, 20*time.Second, time.Millisecond)
	require.Less(t, heap(), before+4<<20)
	go func() { // the screen goes on
		buf := make([]byte, 64<<10)
		for {
			if _, err := r.Read(buf); err != nil {
				return
			}
		}
	}()
	require.Equal(t, 1, a.Wait())
	w.Close()
}

// FuzzMine: whatever an agent reads as its orders, it has some or says why not.
func FuzzMine(f *testing.F) {
	boot, err := json.Marshal([]control.Boot{{Version: control.AgentVersion, Host: "a"}, {Version: control.AgentVersion, Host: "b", Children: []control.Boot{{}}}})
	require.NoError(f, err)
	for _, text := range []string{string(boot), "[]", "[{}]", "null", "{}", `[{"Agent":-1}]`, `[{"Credentials":{"Seed":"AA=="}}]`} {
		f.Add([]byte(text), "b")
	}
	f.Fuzz(func(t *testing.T, line []byte, node string) {
		if strings.ContainsRune(node, 0) {
			return
		}
		t.Setenv("SLURMD_NODENAME", node)
		b, err := mine(line)
		if err != nil {
			return
		}
		_, err = b.Credentials.Open()
		require.Error(t, err, "nobody guesses a key")
		seen := 0
		for _, root := range tree(b.Children) {
			seen += 1 + len(root.Children)
		}
		require.Equal(t, len(b.Children), seen)
	})
}

// An agent that goes on saying that it is alive, and never that its processes have
// ended, does not keep the job from ending.
func TestAnAgentThatDoesNotObey(t *testing.T) {
	t.Parallel()
	a, out, errs := seat(t)
	conn, c := fake(t, a)
	over := make(chan struct{})
	defer close(over)
	go func() {
		buf := make([]byte, 1<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
		}
	}()
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(control.AliveEvery):
				c.Send(control.FromAgent{Alive: &control.Alive{}})
			}
		}
	}()
	require.NoError(t, c.Send(control.FromAgent{Forked: &control.Forked{Process: 1, PID: 1}}))
	out.await(t, "up", 1)
	begun := time.Now()
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
	require.Less(t, time.Since(begun), control.AlivePatient)
	require.Contains(t, errs.String(), "it was to kill its processes, and has not told their end within 5s")
}
