//go:build linux

package lab_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

// stream has bytes go from one host to another for as long as the test lasts, or until end
// is called; read takes what comes for a while.
func stream(t testing.TB, l *lab.Lab, from, to, network string) (read func(d time.Duration) (n int, took time.Duration), end func()) {
	t.Helper()
	ln, err := l.Listen(to, "tcp4", ":0")
	require.NoError(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	c, err := l.Dial(t.Context(), from, "tcp4", at(t, l, to, network, port))
	require.NoError(t, err)
	in, err := ln.Accept()
	require.NoError(t, err)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		buf := make([]byte, 64<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}()
	end = sync.OnceFunc(func() {
		c.Close()
		<-sent
		in.Close()
	})
	t.Cleanup(end)
	buf := make([]byte, 256<<10)
	return func(d time.Duration) (n int, took time.Duration) {
		start := time.Now()
		_ = in.SetReadDeadline(start.Add(d))
		for {
			k, err := in.Read(buf)
			n += k
			if err != nil {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				return n, time.Since(start)
			}
		}
	}, end
}

// goodput returns the Mbit/s at which bytes go from one host to another for a
// while, the first moments excepted.
func goodput(t testing.TB, l *lab.Lab, from, to, network string, during time.Duration) float64 {
	t.Helper()
	read, end := stream(t, l, from, to, network)
	defer end()
	read(during / 2)
	n, took := read(during)
	return float64(n) * 8 / 1e6 / took.Seconds()
}

// between is goodput, and a bound of it from above: who reads may have to wait for a core, and what has
// piled up meanwhile comes at once. So that counts from when the connection is opened. What may leave an
// idle link at once, a packet at least, does not count.
func between(t testing.TB, l *lab.Lab, from, to, network string, during time.Duration) (least, most float64) {
	t.Helper()
	opened := time.Now()
	read, end := stream(t, l, from, to, network)
	defer end()
	first, _ := read(during / 2)
	n, took := read(during)
	rate := func(bytes int, d time.Duration) float64 { return float64(max(bytes, 0)) * 8 / 1e6 / d.Seconds() }
	return rate(n, took), rate(first+n-64<<10, time.Since(opened))
}

// What waits in the queue of a busy cable leaves it at the new rate.
func TestABusyLinkSlowsDown(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	require.NoError(t, l.SetRate("X", "lan", 300*lab.Mbit))
	require.NoError(t, l.SetRate("Y", "lan", 300*lab.Mbit))
	read, end := stream(t, l, "X", "Y", "lan")
	defer end()
	for range 2 {
		read(200 * time.Millisecond)
		require.NoError(t, l.SetRate("X", "lan", 5*lab.Mbit))
		read(3 * time.Second) // what waits, and more
		n, _ := read(time.Second)
		require.Greater(t, n, 100_000, "of 600 kB")
		require.NoError(t, l.SetRate("X", "lan", 300*lab.Mbit))
	}
}

// How near a link comes to its shape is for mpivtrials shaped to say: here others may need
// the cores.
func TestLinksHaveTheirShape(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	check := func(from, to, network string, rate float64) {
		t.Helper()
		least, most := between(t, l, from, to, network, 500*time.Millisecond)
		t.Logf("%s to %s over %s: %.1f of %.0f Mbit/s, and %.1f from its beginning", from, to, network, least, rate, most)
		require.Less(t, most, 1.05*rate)
		require.Greater(t, least, 0.2*rate)
	}
	check("X", "Y", "lan", 100)
	check("Y", "X", "lan", 100)
	require.NoError(t, l.SetRate("X", "lan", 10*lab.Mbit))
	check("X", "Y", "lan", 10)
	check("Y", "X", "lan", 10)
	check("Y", "Z", "lan", 100)
	require.NoError(t, l.SetRate("Y", "san", 200*lab.Mbit))
	check("Y", "Z", "san", 200)
	require.NoError(t, l.SetRate("X", "lan", 0))
	check("X", "W", "lan", 100) // W's end is shaped still
	require.NoError(t, l.SetRate("W", "lan", 0))
	require.Greater(t, goodput(t, l, "X", "W", "lan", 200*time.Millisecond), 1.05*100)
	require.NoError(t, l.SetRate("W", "lan", 0))
	require.ErrorContains(t, l.SetRate("W", "lan", -1), "must be from")
}

// breaks checks that a fault silences a connection, without breaking it, and that
// it goes on when the fault is over.
func breaks(t *testing.T, c net.Conn, fault, cure func() error) {
	t.Helper()
	require.NoError(t, ask(c, 20*time.Second))
	require.NoError(t, fault())
	require.ErrorIs(t, ask(c, 300*time.Millisecond), os.ErrDeadlineExceeded, "the fault is silent")
	require.NoError(t, cure())
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := io.ReadFull(c, make([]byte, 4)) // the word that was not answered then
	require.NoError(t, err)
	require.NoError(t, ask(c, 20*time.Second))
}

func TestACutLinkIsSilentUntilItIsHealed(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	echo(t, l, "Z")
	san := dial(t, l, "Y", "Z", "san")
	lan := dial(t, l, "Y", "Z", "lan")
	carrier := func() (there bool) {
		require.NoError(t, l.Do("Y", func() error {
			link, err := net.InterfaceByName("lan")
			there = err == nil && link.Flags&net.FlagRunning != 0
			return err
		}))
		return there
	}
	// The system shows the state of a cable some time after it has changed.
	becomes := func(there bool) {
		require.Eventually(t, func() bool { return carrier() == there }, 20*time.Second, time.Millisecond)
	}
	becomes(true)
	breaks(t, lan, func() error {
		err := l.Cut("Y", "lan")
		becomes(false)
		require.NoError(t, ask(san, 20*time.Second), "the other network goes on")
		return err
	}, func() error { return l.Heal("Y", "lan") })
	becomes(true)
	require.NoError(t, l.Heal("Y", "lan"), "what is whole can be healed")
	require.ErrorContains(t, l.Cut("X", "san"), "not on network")
}

func TestAPartitionIsSilent(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	for _, h := range l.Hosts() {
		echo(t, l, h)
	}
	across := dial(t, l, "X", "Y", "lan")
	san := dial(t, l, "Y", "Z", "san")
	within := dial(t, l, "X", "W", "lan")
	outside := dial(t, l, "A", "Y", "lan")
	breaks(t, across, func() error {
		err := l.Partition([]string{"X", "W"}, []string{"Y"}, []string{"Z"})
		require.NoError(t, ask(within, 20*time.Second))
		require.NoError(t, ask(outside, 20*time.Second), "A is in no group")
		require.ErrorIs(t, ask(san, 300*time.Millisecond), os.ErrDeadlineExceeded)

		// No reset, no "unreachable", and no error for who sends.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, refused := l.Dial(ctx, "Y", "tcp4", at(t, l, "X", "lan", "9"))
		require.True(t, errors.Is(refused, context.DeadlineExceeded) || errors.Is(refused, os.ErrDeadlineExceeded), "%v", refused)
		udp, dialErr := l.Dial(t.Context(), "Y", "udp4", at(t, l, "X", "lan", "9"))
		require.NoError(t, dialErr)
		defer udp.Close()
		for range 3 {
			_, writeErr := udp.Write([]byte("x"))
			require.NoError(t, writeErr)
			time.Sleep(time.Millisecond)
		}
		return err
	}, func() error { return l.Partition() })
	require.ErrorContains(t, l.Partition([]string{"X"}, []string{"X"}), "in two groups")
	require.ErrorContains(t, l.Partition([]string{"Q"}), `no host "Q"`)
}

// count starts a program on a host that counts, and returns what it has counted to.
func count(t *testing.T, l *lab.Lab, host string) func() int {
	t.Helper()
	c := l.Command(t.Context(), host, "sh", "-c", `i=0; while :; do i=$((i+1)); echo $i; done`)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	counted := make(chan int, 1)
	counted <- 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, err := out.Read(buf)
			if err != nil {
				return
			}
			counted <- <-counted + strings.Count(string(buf[:n]), "\n")
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-done
		_ = c.Wait()
	})
	return func() int {
		n := <-counted
		counted <- n
		return n
	}
}

func TestSignalsReachAllProcessesOfAHost(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	x, w := count(t, l, "X"), count(t, l, "W")
	moves := func(count func() int) bool {
		before := count()
		time.Sleep(100 * time.Millisecond)
		return count() > before
	}
	require.Eventually(t, func() bool { return x() > 0 && w() > 0 }, 20*time.Second, time.Millisecond)
	require.NoError(t, l.Signal("X", syscall.SIGSTOP))
	time.Sleep(50 * time.Millisecond) // what is in the pipe is counted
	require.False(t, moves(x))
	require.True(t, moves(w))
	require.NoError(t, l.Signal("X", syscall.SIGCONT))
	require.True(t, moves(x))
	require.NoError(t, l.Signal("X", syscall.SIGKILL))
	pids, err := l.Pids("X")
	require.NoError(t, err)
	require.Empty(t, pids)
	pids, err = l.Pids("W")
	require.NoError(t, err)
	require.Len(t, pids, 1)
}

func TestAProcessThatCannotBeSignalledKeepsItFromNoOther(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	count(t, l, "X")
	count(t, l, "X")
	pids, err := l.Pids("X")
	require.NoError(t, err)
	require.Len(t, pids, 2)
	err = l.Signal("X", 200) // there is none
	for _, pid := range pids {
		require.ErrorContains(t, err, "to process "+strconv.Itoa(pid)+":")
	}
}

func TestAThrottledHostStopsAgainAndAgain(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	count(t, l, "X")
	pids, err := l.Pids("X")
	require.NoError(t, err)
	require.Len(t, pids, 1)
	// How many of so many looks, 1 ms apart, see the process stopped?
	stopped := func() (n int) {
		for range 400 {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pids[0]) + "/stat")
			require.NoError(t, err)
			if strings.Contains(string(stat), ") T ") {
				n++
			}
			time.Sleep(time.Millisecond)
		}
		return n
	}
	require.Zero(t, stopped())
	require.NoError(t, l.Throttle("X", 10*time.Millisecond, 90*time.Millisecond))
	n := stopped()
	t.Logf("stopped in %d of 400 looks", n)
	require.Greater(t, n, 200)
	require.Less(t, n, 400)
	require.NoError(t, l.Throttle("X", 10*time.Millisecond, 0))
	require.Zero(t, stopped())
	require.ErrorContains(t, l.Throttle("X", 0, time.Second), "at least 1ms")
}

func TestCPULimitIsWrittenAndJoined(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	count(t, l, "X") // before the limit
	err := l.LimitCPU("X", 0.25)
	if errors.Is(err, lab.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	count(t, l, "X") // and after it
	var dir string
	for _, g := range groupsOf(l) {
		if filepath.Base(g) == "X" {
			dir = g
		}
	}
	require.NotEmpty(t, dir)
	if quota, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us")); err == nil {
		require.Equal(t, "25000\n", string(quota))
	} else {
		quota, err := os.ReadFile(filepath.Join(dir, "cpu.max"))
		require.NoError(t, err)
		require.Equal(t, "25000 100000\n", string(quota))
	}
	want, err := l.Pids("X")
	require.NoError(t, err)
	require.Len(t, want, 2)
	in := func() (pids []int) {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		require.NoError(t, err)
		for _, f := range strings.Fields(string(procs)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
		return pids
	}
	require.ElementsMatch(t, want, in(), "and this process is not in it")

	prefix, err := l.LaunchAgent()
	require.NoError(t, err)
	c := l.Command(t.Context(), "W", prefix[0], prefix[1], prefix[2], "X", "sleep", "100")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return len(in()) == 3 }, 20*time.Second, time.Millisecond)
	require.Contains(t, in(), c.Process.Pid)
	require.NoError(t, l.LimitCPU("X", 0))
	require.NoError(t, l.LimitCPU("W", 0), "there is none to lift")
	require.ErrorContains(t, l.LimitCPU("X", -1), "must be from")
	require.NoError(t, l.Close())
	require.Error(t, c.Wait())
	require.NoDirExists(t, dir)
}

func impair(t *testing.T, l *lab.Lab, host, network string, i lab.Impairment) {
	t.Helper()
	err := l.Impair(host, network, i)
	if errors.Is(err, lab.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

func TestDelayAndLoss(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	echo(t, l, "Y")
	c := dial(t, l, "X", "Y", "lan")
	roundTrip := func() time.Duration {
		t.Helper()
		start := time.Now()
		require.NoError(t, ask(c, 20*time.Second))
		return time.Since(start)
	}
	roundTrip()
	impair(t, l, "X", "lan", lab.Impairment{Delay: 50 * time.Millisecond})
	roundTrip() // addresses are resolved again
	require.GreaterOrEqual(t, roundTrip(), 100*time.Millisecond)
	breaks(t, c, func() error { return l.Cut("X", "lan") }, func() error { return l.Heal("X", "lan") })

	// Datagrams of which every fourth is lost.
	impair(t, l, "X", "lan", lab.Impairment{Loss: 0.25, Seed: 1})
	require.NoError(t, ask(c, 20*time.Second)) // addresses are resolved, too
	var ln net.PacketConn
	require.NoError(t, l.Do("Y", func() (err error) {
		ln, err = net.ListenPacket("udp4", ":9")
		return err
	}))
	defer ln.Close()
	out, err := l.Dial(t.Context(), "X", "udp4", at(t, l, "Y", "lan", "9"))
	require.NoError(t, err)
	defer out.Close()
	const sent = 400
	for range sent {
		_, err := out.Write([]byte("x"))
		require.NoError(t, err)
		time.Sleep(100 * time.Microsecond)
	}
	n := 0
	for {
		_ = ln.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, _, err := ln.ReadFrom(make([]byte, 8)); err != nil {
			break
		}
		n++
	}
	t.Logf("%d of %d datagrams arrived", n, sent)
	require.Greater(t, n, sent/2)
	require.Less(t, n, sent*9/10)

	impair(t, l, "X", "lan", lab.Impairment{})
	require.NoError(t, ask(c, 20*time.Second))
	_, most := between(t, l, "X", "Y", "lan", 200*time.Millisecond)
	require.Less(t, most, 105.0, "the link is shaped as before")
	require.ErrorContains(t, l.Impair("X", "lan", lab.Impairment{Loss: 2}), "must be from 0 to 1")
}

func TestPrivateNetworksMeetOnlyThroughAHostOutside(t *testing.T) {
	l, err := lab.New(lab.Options{
		Hosts: []lab.Host{{Name: "relay"}, {Name: "a", Networks: []string{"home"}}, {Name: "b", Networks: []string{"cafe"}}},
		Networks: []lab.Network{{Name: "lan"}, {Name: "home", Behind: "lan"},
			{Name: "cafe", Behind: "lan"}},
	})
	if errors.Is(err, lab.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	for _, h := range l.Hosts() {
		echo(t, l, h)
	}
	require.Equal(t, []string{"relay", "a", "b"}, l.Hosts())
	fromA, fromB := dial(t, l, "a", "relay", "lan"), dial(t, l, "b", "relay", "lan")
	require.NoError(t, ask(fromA, 20*time.Second))
	require.NoError(t, ask(fromB, 20*time.Second))

	// The relay sees the router.
	ln, err := l.Listen("relay", "tcp4", ":8")
	require.NoError(t, err)
	defer ln.Close()
	c, err := l.Dial(t.Context(), "a", "tcp4", at(t, l, "relay", "lan", "8"))
	require.NoError(t, err)
	defer c.Close()
	in, err := ln.Accept()
	require.NoError(t, err)
	defer in.Close()
	router, err := l.Addr("home", "lan")
	require.NoError(t, err)
	seen, _, err := net.SplitHostPort(in.RemoteAddr().String())
	require.NoError(t, err)
	require.Equal(t, router.String(), seen)

	for _, to := range []struct{ from, host, network string }{{"a", "b", "cafe"}, {"b", "a", "home"}, {"relay", "a", "home"}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := l.Dial(ctx, to.from, "tcp4", at(t, l, to.host, to.network, "7"))
		cancel()
		require.Error(t, err, to)
	}

	breaks(t, fromA, func() error {
		err := l.Partition([]string{"a"}, []string{"relay"})
		require.NoError(t, ask(fromB, 20*time.Second))
		return err
	}, func() error { return l.Partition() })
	breaks(t, fromA, func() error { return l.Cut("home", "lan") }, func() error { return l.HealAll() })
}

func TestOthersMayAskTheLab(t *testing.T) {
	l := lab.ForTest(t, lab.Options{})
	do := func(words ...string) string {
		t.Helper()
		text, err := lab.Control(l.Path(), words...)
		require.NoError(t, err, words)
		return text
	}
	require.Equal(t, l.Hostfile(3), do("hostfile", "3"))
	do("cut", "X", "lan")
	do("rate", "Y", "san", "20mbit")
	do("partition", "X,W", "Y")
	do("throttle", "W", "10ms", "20ms")
	text := do("show")
	for _, want := range []string{"10.1.0.1", "20mbit", "cut", "throttled", "partition: X,W Y"} {
		require.Contains(t, text, want)
	}
	do("throttle", "W", "off")
	do("heal")
	text = do("show")
	for _, not := range []string{"cut", "throttled", "partition"} {
		require.NotContains(t, text, not)
	}
	for _, c := range []struct {
		words []string
		says  string
	}{
		{[]string{"explode"}, "nothing that a lab does"},
		{[]string{"cut", "X"}, "usage: cut HOST NETWORK"},
		{[]string{"cut", "Q", "lan"}, `no host "Q"`},
		{[]string{"heal", "X"}, "say which network"},
		{[]string{"rate", "X", "lan", "fast"}, "write a number and kbit"},
		{[]string{"impair", "X", "lan", "soon"}, "write a time"},
		{[]string{"impair", "X", "lan", "1ms", "1"}, "write a share"},
		{[]string{"throttle", "X", "1ms"}, "write how long"},
		{[]string{"cpu", "X", "half"}, "write a number"},
		{[]string{"hostfile", "0"}, "from 1 on"},
		{[]string{"partition", "X,Y"}, "parted from nobody"},
	} {
		_, err := lab.Control(l.Path(), c.words...)
		require.ErrorContains(t, err, c.says, c.words)
	}

	// Who says nothing does not keep the lab from closing.
	c, err := net.Dial("unixpacket", l.Path())
	require.NoError(t, err)
	defer c.Close()
	start := time.Now()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(start), 4*time.Second)
}
