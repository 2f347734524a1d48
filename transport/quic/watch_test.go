//go:build linux

package quic_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/transport/quic"
)

func TestMain(m *testing.M) { lab.Main(m) }

// onHost is set where this binary runs on a host of the lab.
const onHost = "QUIC_TEST_ON_HOST"

// The address of a host changes: its endpoint and what it dialed move.
func TestAnAddressChanges(t *testing.T) {
	if os.Getenv(onHost) == "" {
		l := lab.ForTest(t, lab.Options{})
		self, err := os.Executable()
		require.NoError(t, err)
		c := l.Command(t.Context(), "X", self, "-test.run=^TestAnAddressChanges$", "-test.v")
		c.Env = append(os.Environ(), onHost+"=1")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS")
		return
	}
	change := func(link string, f func(netlink.Link, *netlink.Addr) error, text string) {
		at, err := netlink.LinkByName(link)
		require.NoError(t, err)
		a, err := netlink.ParseAddr(text)
		require.NoError(t, err)
		require.NoError(t, f(at, a))
	}
	change("lo", netlink.AddrAdd, "10.7.0.1/32") // stands for another host's
	x, y := listen(t, quic.Options{Listen: "10.1.0.1:0"}), listen(t, quic.Options{Listen: "10.7.0.1:0"})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	at := &numbers{t: t}
	exchange(t, near, far, at, 100)

	old := x.Addr()
	change("lan", netlink.AddrAdd, "10.1.0.98/32")
	require.Equal(t, old, x.Addr(), "it has moved for an address more")
	change("lan", netlink.AddrDel, "10.1.0.98/32")
	change("lan", netlink.AddrDel, "10.1.0.1/16")
	change("lan", netlink.AddrAdd, "10.1.0.99/16")
	require.Eventually(t, func() bool { return strings.HasPrefix(string(x.Addr()), "quic:10.1.0.99:") }, 10*time.Second, time.Millisecond)
	exchange(t, near, far, at, 100)
	back := &numbers{t: t}
	exchange(t, far, near, back, 100)
	_, err = y.Dial(t.Context(), x.Addr())
	require.NoError(t, err, "it is found at its new address")
}
