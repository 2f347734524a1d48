//go:build linux

package quic_test

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/transport/quic"
)

func TestMain(m *testing.M) { lab.Main(m) }

// onHost is set where this binary runs on a host of the lab.
const onHost = "QUIC_TEST_ON_HOST"

// onLab runs the test that calls it again, on a host of a lab: true there.
func onLab(t *testing.T) bool {
	if os.Getenv(onHost) != "" {
		return true
	}
	l := lab.ForTest(t, lab.Options{})
	self, err := os.Executable()
	require.NoError(t, err)
	c := l.Command(t.Context(), "X", self, "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), onHost+"=1")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS")
	return false
}

// change adds an address to a link of this host, or deletes it.
func change(t *testing.T, link string, f func(netlink.Link, *netlink.Addr) error, text string, flags int) {
	t.Helper()
	at, err := netlink.LinkByName(link)
	require.NoError(t, err)
	a, err := netlink.ParseAddr(text)
	require.NoError(t, err)
	a.Flags = flags
	require.NoError(t, f(at, a))
}

// The address of a host changes: its endpoint and what it dialed move.
func TestAnAddressChanges(t *testing.T) {
	if !onLab(t) {
		return
	}
	change(t, "lo", netlink.AddrAdd, "10.7.0.1/32", 0) // stands for another host's
	x, y := listen(t, quic.Options{Listen: "10.1.0.1:0"}), listen(t, quic.Options{Listen: "10.7.0.1:0"})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	at := &numbers{t: t}
	exchange(t, near, far, at, 100)

	old := x.Addr()
	change(t, "lan", netlink.AddrAdd, "10.1.0.98/32", 0)
	require.Equal(t, old, x.Addr(), "it has moved for an address more")
	change(t, "lan", netlink.AddrDel, "10.1.0.98/32", 0)
	change(t, "lan", netlink.AddrDel, "10.1.0.1/16", 0)
	change(t, "lan", netlink.AddrAdd, "10.1.0.99/16", 0)
	require.Eventually(t, func() bool { return strings.HasPrefix(string(x.Addr()), "quic:10.1.0.99:") }, 20*time.Second, time.Millisecond)
	exchange(t, near, far, at, 100)
	back := &numbers{t: t}
	exchange(t, far, near, back, 100)
	_, err = y.Dial(t.Context(), x.Addr())
	require.NoError(t, err, "it is found at its new address")
}

// Nobody can listen on an IPv6 address before the kernel has looked for another host
// that has it.
func TestAnAddressIsNotReadyWhenItComes(t *testing.T) {
	if !onLab(t) {
		return
	}
	change(t, "lan", netlink.AddrAdd, "fd00::1/64", unix.IFA_F_NODAD)
	x := listen(t, quic.Options{Listen: "[fd00::1]:0"})
	change(t, "lan", netlink.AddrDel, "fd00::1/64", 0)
	change(t, "lan", netlink.AddrAdd, "fd00::2/64", 0)
	_, err := net.ListenPacket("udp", "[fd00::2]:0")
	require.Error(t, err, "the address is ready at once: this test shows nothing")
	require.Eventually(t, func() bool { return strings.HasPrefix(string(x.Addr()), "quic:[fd00::2]:") }, 20*time.Second, time.Millisecond)
}
