package transporttest

import (
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// OwnNetwork gives the test's thread a network of its own, in which the loopback has
// the address 10.9.8.7 too. The thread ends with the test's goroutine. Where that is not
// allowed the test is skipped.
func OwnNetwork(t *testing.T) {
	t.Helper()
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
	require.NoError(t, alias.SetInet4Addr(net.IPv4(10, 9, 8, 7).To4()))
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias))
}
