//go:build linux

package gate

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport/transporttest"
)

func TestTheKernelDropsWhoHasSpentTheBudget(t *testing.T) {
	transporttest.OwnNetwork(t)
	h := open(t, Options{})
	from := func(ip string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: 200 * time.Millisecond, FallbackDelay: -1}
		return d.Dial("tcp", h.Addr().String())
	}
	dropped, begun := 0, time.Now()
	for range 2 * burst {
		c, err := from("10.9.8.7")
		if err != nil {
			dropped++
			break
		}
		_, _ = c.Write([]byte("garbage")) // it may be thrown out already
		thrownOut(t, c)
		c.Close()
	}
	require.NotZero(t, dropped, "nobody was dropped")
	require.LessOrEqual(t, h.Strangers(), uint64(burst+perSecond*time.Since(begun).Seconds()+1))

	c, err := from("127.0.0.1")
	require.NoError(t, err, "another address")
	_, err = c.Write(hello(t))
	require.NoError(t, err)
	in := <-h.in
	raw, err := in.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	}))
	require.ErrorIs(t, err, unix.ENOENT, "the filter has come along")
	in.Close()
	c.Close()

	h.Expect(netip.MustParseAddr("10.9.8.7"))
	for range 2 * burst {
		c, err := from("10.9.8.7")
		require.NoError(t, err, "members are there")
		c.Close()
	}
}

// TestAGateThatIsClosedShutsNobodyOut: its descriptor is another's by then.
func TestAGateThatIsClosedShutsNobodyOut(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	a, b := netip.MustParseAddr("10.9.8.7"), netip.MustParseAddr("10.9.8.8")
	for range burst + 1 {
		g.budget.charge(a, time.Now())
		g.budget.charge(b, time.Now())
	}
	require.Len(t, g.budget.shut, 2)
	require.NoError(t, g.Close())
	for another := -1; another < g.fd; {
		another, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(another)
	}
	g.Expect(a) // as who shows to be a member while the gate is closed
	require.ErrorIs(t, detach(g.fd), unix.ENOENT, "another's socket has got a filter")
}

// TestAGateLetsInAgain whose second is over, and wakes up for it.
func TestAGateLetsInAgain(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	defer g.Close()
	now := time.Now()
	for range burst + 1 {
		g.budget.charge(netip.MustParseAddr("10.9.8.7"), now)
	}
	g.filterLocked()
	require.Equal(t, now.Add(shutFor), g.tickLocked(now))
	require.Zero(t, g.tickLocked(now.Add(shutFor)))
	require.ErrorIs(t, detach(g.fd), unix.ENOENT, "it is still shut out")
}
