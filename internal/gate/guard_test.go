//go:build linux

package gate

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport/transporttest"
)

func TestFilterDropsLongHeadersOnly(t *testing.T) {
	const at = 16 // of the QUIC header: what packet makes is 20 bytes, of which the last 4 are nothing to the filter
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	vm, err := bpf.NewVM(longHeaders(at, program(0, []netip.Addr{a})))
	require.NoError(t, err)
	for _, c := range []struct {
		from    netip.Addr
		first   byte
		dropped bool
	}{{a, 0xc3, true}, {a, 0x80, true}, {a, 0x43, false}, {a, 0x00, false}, {b, 0xc3, false}, {b, 0x43, false}} {
		p := packet(c.from)
		p[at] = c.first
		n, err := vm.Run(p)
		require.NoError(t, err)
		require.Equal(t, c.dropped, n == 0, "%v, %#x", c.from, c.first)
	}
}

// A lobby is a guarded socket that charges for every long header.
type lobby struct {
	*Guard
	*net.UDPConn
}

func guarded(t *testing.T, network, ip string) lobby {
	c, err := net.ListenUDP(network, &net.UDPAddr{IP: net.ParseIP(ip)})
	require.NoError(t, err)
	l := lobby{NewGuard(), c}
	require.NoError(t, l.Watch(c))
	t.Cleanup(func() {
		l.Guard.Close()
		l.Guard.Close()
		c.Close()
	})
	return l
}

const long, short = 0xc0, 0x40

// comes tells whether a datagram of c with this first byte gets to the lobby. On the
// loopback it is there when Write returns, or never.
func (l lobby) comes(t *testing.T, c net.Conn, first byte) bool {
	_, err := c.Write([]byte{first})
	require.NoError(t, err)
	var b [1]byte
	n, from := 0, unix.Sockaddr(nil)
	raw, err := l.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { n, from, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT) }))
	if err == unix.EAGAIN {
		return false
	}
	require.NoError(t, err)
	require.Equal(t, []byte{first}, b[:n])
	if first&0x80 != 0 {
		l.Charge(net.UDPAddrFromAddrPort(addrPort(from)))
	}
	return true
}

func stranger(t *testing.T, from string, to lobby) net.Conn {
	at := to.LocalAddr().(*net.UDPAddr)
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("udp", (&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.Port}).String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestTheKernelDropsInitialsOfWhoHasSpentTheBudget(t *testing.T) {
	for _, c := range []struct{ name, network, ip string }{{"IPv4", "udp4", "127.0.0.1"}, {"IPv4 at a socket of IPv6", "udp", "::"}} {
		t.Run(c.name, func(t *testing.T) {
			transporttest.OwnNetwork(t)
			l := guarded(t, c.network, c.ip)
			bad, local := stranger(t, "10.9.8.7", l), stranger(t, "127.0.0.1", l)
			start := time.Now()
			n := 0
			for l.comes(t, bad, long) {
				n++
				require.LessOrEqual(t, n, burst+1+int(perSecond*time.Since(start).Seconds()), "nobody was dropped")
			}
			require.Greater(t, n, burst)
			require.True(t, l.comes(t, bad, short), "a packet of an open connection")
			for range 2 * burst {
				require.True(t, l.comes(t, local, long), "another address")
			}
			eventually(t, "the end of the second", func() bool { return l.comes(t, bad, long) })
			require.GreaterOrEqual(t, time.Since(start), shutFor)

			for l.comes(t, bad, long) {
			}
			l.Member(bad.LocalAddr())
			for range 2 * burst {
				require.True(t, l.comes(t, bad, long), "members are there")
			}
		})
	}
}

func TestWhoIsShutOutIsSoOfEverySocket(t *testing.T) {
	transporttest.OwnNetwork(t)
	one, later := guarded(t, "udp4", "127.0.0.1"), guarded(t, "udp4", "127.0.0.1")
	gone := guarded(t, "udp4", "127.0.0.1")
	require.NoError(t, one.Watch(gone.UDPConn))
	gone.UDPConn.Close()
	bad := stranger(t, "10.9.8.7", one)
	for one.comes(t, bad, long) {
	}
	require.NoError(t, one.Watch(later.UDPConn))
	require.Len(t, one.sockets, 2)
	require.False(t, later.comes(t, stranger(t, "10.9.8.7", later), long))
	one.Guard.Close()
	require.False(t, one.Charge(bad.LocalAddr()), "a guard that is closed does nothing")
}

// TestWhoIsShutOutAgainIsLetInAgain: for one second each time, also where others are shut out meanwhile.
func TestWhoIsShutOutAgainIsLetInAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		a, b := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2)}
		shut := func() (all []netip.Addr) {
			synctest.Wait()
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.budget.shutPlaces()
		}
		spend := func(from net.Addr) {
			for n := len(shut()); len(shut()) == n; {
				g.Charge(from)
			}
		}
		for range 3 {
			spend(a)
			time.Sleep(shutFor / 2)
			spend(b)
			time.Sleep(shutFor / 2)
			require.Equal(t, []netip.Addr{place(host(b))}, shut())
			time.Sleep(shutFor / 2)
			require.Empty(t, shut())
		}
		spend(a)
		time.Sleep(shutFor / 2)
		spend(b)
		closing := time.Now()
		g.Close()
		require.Zero(t, time.Since(closing), "it waits for who is shut out")
	})
}

// TestWhoHasSpentIsTold: until a member comes from there.
func TestWhoHasSpentIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		defer g.Close()
		a := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1)}
		for n := range burst + 2 {
			require.Equal(t, n >= burst-1, g.Charge(a), n)
		}
		require.False(t, g.Expects(a))
		g.Member(a)
		require.True(t, g.Expects(a))
		require.False(t, g.Charge(a), "members are there")
	})
}
