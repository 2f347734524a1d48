//go:build linux

package tcp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/transporttest"
)

func TestIPv6(t *testing.T) {
	member := members(t)
	at := Options{Listen: "[::1]:0", TLS: member()}
	x, err := Listen(t.Context(), at)
	if err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	defer x.Close()
	at.TLS = member()
	y := listenHere(t, at)
	require.Contains(t, y.Addr(), "tcp:[::1]:")
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, x.Addr(), far.Peer())
	require.NoError(t, near.Send(message("hello")))
	require.NoError(t, near.Flush())
	in := new(box)
	eventually(t, "the message", func() bool { poll(t, far, in); return in.got == 1 })
}

// Hosts that have IPv4 and IPv6 may be known to each other by either.
func TestBetweenVersionsOfIP(t *testing.T) {
	member := members(t)
	six, err := Listen(t.Context(), Options{Listen: "[::1]:0", TLS: member()})
	if err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	defer six.Close()
	four := listenHere(t, Options{TLS: member()})
	for _, ends := range [][2]*Endpoint{{six, four}, {four, six}} {
		near, err := ends[0].Dial(t.Context(), ends[1].Addr())
		require.NoError(t, err)
		far, err := ends[1].Accept(t.Context())
		require.NoError(t, err)
		require.Equal(t, ends[0].Addr(), far.Peer())
		require.NoError(t, near.Send(message("hello")))
		require.NoError(t, near.Flush())
		in := new(box)
		eventually(t, "the message", func() bool { poll(t, far, in); return in.got == 1 })
	}
}

func TestWhereDialedConnectionsLeaveFrom(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1": "", "127.3.2.1": "", "::1": "", "0.0.0.0": "", "::": "",
		"10.9.8.7": "10.9.8.7:0", "fd00::7": "[fd00::7]:0", "fe80::7%eth0": "[fe80::7%eth0]:0",
	} {
		a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(listen, "99"))
		require.NoError(t, err)
		got := source(a)
		if want == "" {
			require.Nil(t, got, listen)
		} else {
			require.Equal(t, want, got.String(), listen)
		}
	}
}

func TestBothLanesLeaveFromTheirNetwork(t *testing.T) {
	transporttest.OwnNetwork(t)
	member := members(t)
	// Left to itself, a socket would leave for 127.0.0.1 from there.
	x := listenHere(t, Options{Listen: "10.9.8.7:0", TLS: member()})
	y := listenHere(t, Options{TLS: member()})
	_, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	for _, fd := range far.(*Conn).fds {
		require.Equal(t, [4]byte{10, 9, 8, 7}, peerName(t, fd))
	}
	require.Equal(t, transport.Addr("tcp:10.9.8.7"), far.Peer()[:len("tcp:10.9.8.7")])
}

func peerName(t *testing.T, fd int) [4]byte {
	sa, err := unix.Getpeername(fd)
	require.NoError(t, err)
	return sa.(*unix.SockaddrInet4).Addr
}
