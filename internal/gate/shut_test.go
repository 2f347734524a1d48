//go:build linux

package gate

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newNetwork gives the test's thread a network of its own, in which the loopback
// has the address ip too. The thread ends with the test's goroutine.
func newNetwork(t *testing.T, ip string) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("this test needs a network namespace, which takes root: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	lo.SetUint16(unix.IFF_UP)
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
	alias, err := unix.NewIfreq("lo:1")
	require.NoError(t, err)
	require.NoError(t, alias.SetInet4Addr(net.ParseIP(ip).To4()))
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias))
}

func TestTheKernelDropsWhoHasSpentTheBudget(t *testing.T) {
	newNetwork(t, "10.9.8.7")
	h := open(t, Options{})
	from := func(ip string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: 200 * time.Millisecond, FallbackDelay: -1}
		return d.Dial("tcp", h.Addr().String())
	}
	dropped := 0
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
	require.LessOrEqual(t, h.Strangers(), uint64(burst+perSecond))

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
