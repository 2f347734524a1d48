//go:build linux

package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("LAB_TEST_ROLE"); role != "" {
		err := lab.Enter()
		if role == "refused" { // goes on without labs
			fmt.Println("enter", err)
			time.Sleep(time.Minute)
		}
		os.Exit(play(role))
	}
	lab.Main(m)
}

// echo answers on a host what it gets, until the test ends.
func echo(t *testing.T, l *lab.Lab, host string) {
	t.Helper()
	ln, err := l.Listen(host, "tcp4", ":7")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func at(t testing.TB, l *lab.Lab, host, network, port string) string {
	t.Helper()
	a, err := l.Addr(host, network)
	require.NoError(t, err)
	return net.JoinHostPort(a.String(), port)
}

// dial connects from one host to the echo of another over a network.
func dial(t *testing.T, l *lab.Lab, from, to, network string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := l.Dial(ctx, from, "tcp4", at(t, l, to, network, "7"))
	require.NoError(t, err, "%s to %s over %s", from, to, network)
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a word over c and waits so long for it to come back.
func ask(c net.Conn, patience time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("word")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

func TestHostsMeetOnTheNetworksTheyAreOn(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	require.Equal(t, []string{"X", "Y", "Z", "W", "A"}, l.Hosts())
	for _, h := range l.Hosts() {
		echo(t, l, h)
	}
	for _, c := range []struct{ from, to, network string }{
		{"X", "Y", "lan"}, {"Y", "X", "lan"}, {"W", "A", "lan"}, {"A", "Z", "lan"}, {"Y", "Z", "san"}, {"Z", "Y", "san"}, {"X", "X", "lan"},
	} {
		require.NoError(t, ask(dial(t, l, c.from, c.to, c.network), 20*time.Second), c)
	}
	require.Equal(t, "10.1.0.1:7", at(t, l, "X", "lan", "7"))
	require.Equal(t, "10.2.0.3:7", at(t, l, "Z", "san", "7"))
	require.Equal(t, "Y slots=2 lan=10.1.0.2 san=10.2.0.2", strings.Split(l.Hostfile(2), "\n")[1])

	_, err := l.Dial(t.Context(), "X", "tcp4", at(t, l, "Y", "san", "7"))
	require.ErrorIs(t, err, syscall.ENETUNREACH, "X is not on the san")
	_, err = l.Addr("X", "san")
	require.ErrorContains(t, err, "host X is not on network")
}

func TestCommandsRunOnTheirHost(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	out, err := l.Command(t.Context(), "Z", "sh", "-c", `hostname; grep -c : /proc/net/dev; echo $MPIV_LAB`).Output()
	require.NoError(t, err)
	require.Equal(t, "Z\n3\n"+l.Path()+"\n", string(out), "name, interfaces, socket")

	err = l.Command(t.Context(), "Q", "true").Run()
	require.ErrorContains(t, err, `no host "Q": there are X, Y, Z, W, A`)
	require.ErrorIs(t, l.Command(t.Context(), "X", "no-such-program").Run(), exec.ErrNotFound)

	here, err := os.Hostname()
	require.NoError(t, err)
	require.NoError(t, l.Do("W", func() error {
		name, err := os.Hostname()
		require.Equal(t, "W", name)
		require.NoError(t, l.Do("X", func() error {
			name, _ := os.Hostname()
			require.Equal(t, "X", name)
			return nil
		}))
		name, _ = os.Hostname()
		require.Equal(t, "W", name)
		return err
	}))
	after, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, here, after)
}

func TestCongestion(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Congestion: "reno"}) // which may be set anywhere
	for _, host := range l.Hosts() {
		out, err := l.Command(t.Context(), host, "cat", "/proc/sys/net/ipv4/tcp_congestion_control").Output()
		require.NoError(t, err)
		require.Equal(t, "reno\n", string(out))
	}
}

func TestLaunchAgentBecomesTheProgram(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	prefix, err := l.LaunchAgent()
	require.NoError(t, err)
	agent := func(words ...string) *exec.Cmd {
		words = append(prefix[1:len(prefix):len(prefix)], words...)
		return exec.CommandContext(t.Context(), prefix[0], words...)
	}

	cmd := agent("Y", "sh", "-c", "hostname; cat; exit 7")
	cmd.Stdin = strings.NewReader("and more\n")
	out, err := cmd.Output()
	require.Equal(t, "Y\nand more\n", string(out))
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())

	cmd = agent("Y", "sh", "-c", `trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done`)
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = io.ReadFull(pipe, make([]byte, len("ready\n")))
	require.NoError(t, err)
	pids, err := l.Pids("Y")
	require.NoError(t, err)
	require.Contains(t, pids, cmd.Process.Pid, "the process that was started is the program")
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	rest, err := io.ReadAll(pipe)
	require.NoError(t, err)
	require.Equal(t, "caught\n", string(rest))
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 3, exit.ExitCode())

	for _, c := range []struct {
		words []string
		code  int
		says  string
	}{
		{[]string{"Y", "no-such-program"}, 127, "not found"},
		{[]string{"Q", "true"}, 126, `no host "Q"`},
		{[]string{"Q"}, 126, "say the host"},
	} {
		out, err := agent(c.words...).CombinedOutput()
		require.ErrorAs(t, err, &exit)
		require.Equal(t, c.code, exit.ExitCode(), c.words)
		require.Contains(t, string(out), c.says)
	}
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	_ = l.LimitCPU("X", 0.5) // may not be possible; if it is, it is to be gone
	c := l.Command(t.Context(), "X", "sh", "-c", "setsid sleep 1000 & sleep 1000")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { pids, _ := l.Pids("X"); return len(pids) == 3 }, 20*time.Second, 5*time.Millisecond)
	ids := namespacesOf(l)
	self := strconv.Itoa(os.Getpid())
	held := holders(t, ids)
	require.Len(t, held, 5, "this one, the keeper, and three on the host")
	require.NoError(t, l.Close())
	require.Error(t, c.Wait())
	require.NoError(t, l.Close())
	_, err := os.Stat(l.Path())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Empty(t, groupsOf(l))
	require.NotContains(t, holders(t, ids), self)
	for _, pid := range held {
		require.Equal(t, pid == self, live(pid), "process %s", pid)
	}

	require.ErrorIs(t, l.Cut("X", "lan"), net.ErrClosed)
	require.ErrorIs(t, l.Command(t.Context(), "X", "true").Run(), net.ErrClosed)
	require.ErrorIs(t, l.Do("X", func() error { return errors.New("it was called") }), net.ErrClosed)
	_, err = lab.Control(l.Path(), "show")
	require.ErrorContains(t, err, "no lab listens there")
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, c := range []struct {
		o    lab.Options
		says string
	}{
		{lab.Options{Hosts: []lab.Host{{Name: "a,b"}}}, `host "a,b": a name is`},
		{lab.Options{Hosts: []lab.Host{{Name: ""}}}, `host "": a name is`},
		{lab.Options{Hosts: []lab.Host{{Name: "X"}, {Name: "X"}}}, "host X is there twice"},
		{lab.Options{Hosts: []lab.Host{{Name: "X", Networks: []string{"wan"}}}}, "on network wan, which the lab does not have"},
		{lab.Options{Hosts: []lab.Host{{Name: "X", Networks: []string{"lan", "lan"}}}}, "on network lan twice"},
		{lab.Options{Networks: []lab.Network{{Name: "lan"}, {Name: "home", Behind: "lan"}, {Name: "away", Behind: "lan"}}, Hosts: []lab.Host{{Name: "X", Networks: []string{"home", "away"}}}},
			"host X is on the private networks home and away: it has one way out"},
		{lab.Options{Networks: []lab.Network{{Name: "lo"}}}, "the kernel uses this name"},
		{lab.Options{Networks: []lab.Network{{Name: "lan"}, {Name: "lan"}}}, "network lan is there twice"},
		{lab.Options{Networks: []lab.Network{{Name: "a-name-that-is-too-long"}}}, "a name is 1 to 15"},
		{lab.Options{Networks: []lab.Network{{Name: "lan", Rate: 5}}}, "it must be from"},
		{lab.Options{Networks: []lab.Network{{Name: "lan", Rate: -1}}}, "it must be from"},
		{lab.Options{Networks: []lab.Network{{Name: "lan", Queue: 100}}}, "must hold two frames"},
		{lab.Options{Queue: 100}, "network lan: a queue of 100 bytes: it must hold two frames"},
		{lab.Options{Networks: []lab.Network{{Name: "home", Behind: "lan"}}}, "no public network"},
		{lab.Options{Hosts: make([]lab.Host, 2000)}, "a lab has at most"},
		{lab.Options{Congestion: "nonesuch"}, `congestion control "nonesuch" on host X: `},
	} {
		l, err := lab.New(c.o)
		if errors.Is(err, lab.ErrUnavailable) {
			t.Skip(err)
		}
		if err == nil {
			l.Close()
		}
		require.ErrorContains(t, err, c.says)
	}
}

func TestRatesReadBack(t *testing.T) {
	for text, want := range map[string]lab.Rate{"100mbit": 100 * lab.Mbit, "1gbit": lab.Gbit, "1.5Gbit": 1500 * lab.Mbit, "64kbit": 64 * lab.Kbit, "0": 0} {
		r, err := lab.ParseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, r, text)
		again, err := lab.ParseRate(r.String())
		require.NoError(t, err, r)
		require.Equal(t, r, again)
	}
	for _, text := range []string{"", "100", "mbit", "-1mbit", "nanmbit", "infgbit", "1bit", "1kbit", "0.0009kbit", "1e-300gbit", "1000gbit", "1e300gbit"} {
		_, err := lab.ParseRate(text)
		require.ErrorContains(t, err, "rate", text)
	}
}

func TestManyHostsHaveDifferentAddresses(t *testing.T) {
	if testing.Short() {
		t.Skip("makes sixty hosts")
	}
	var o lab.Options
	for i := range 60 {
		o.Hosts = append(o.Hosts, lab.Host{Name: fmt.Sprintf("n%d", i)})
	}
	l := lab.ForTest(t, o)
	echo(t, l, "n59")
	require.NoError(t, ask(dial(t, l, "n0", "n59", "lan"), 20*time.Second))
}
