//go:build linux

package tcp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/transport"
)

func TestMain(m *testing.M) { lab.Main(m) }

func TestOutlook(t *testing.T) {
	const us, ms = uint32(1), uint32(1000)
	sent := func(segments, resent uint32) unix.TCPInfo {
		return unix.TCPInfo{Delivered: segments - resent, Min_rtt: 20 * us, Rtt: 40 * us, Segs_out: segments, Total_retrans: resent}
	}
	way := func(segments, answers, rtt uint32) unix.TCPInfo { // they are on their way
		return unix.TCPInfo{Delivered: 100, Min_rtt: 20 * us, Rtt: rtt, Unacked: segments, Segs_in: answers}
	}
	tests := map[string]struct {
		looks []unix.TCPInfo
		free  bool
	}{
		"nothing was sent":                        {[]unix.TCPInfo{{Min_rtt: ^uint32(0)}}, true},
		"a near host":                             {[]unix.TCPInfo{way(20, 100, 40*us)}, true},
		"a far one":                               {[]unix.TCPInfo{{Delivered: 100, Min_rtt: 2 * ms}}, false},
		"the handshake alone took long":           {[]unix.TCPInfo{{Delivered: 1, Min_rtt: 2 * ms, Rtt: 2 * ms}}, true},
		"a queue on the way":                      {[]unix.TCPInfo{way(20, 100, 40*us), way(20, 200, 9*ms)}, false},
		"a queue that was there once":             {[]unix.TCPInfo{way(20, 100, 9*ms), way(0, 200, 40*us)}, false},
		"an answer that was held back":            {[]unix.TCPInfo{way(0, 100, 40*ms)}, true},
		"and then much is sent":                   {[]unix.TCPInfo{way(0, 100, 40*ms), way(200, 110, 20*ms)}, true},
		"which is answered late, too":             {[]unix.TCPInfo{way(0, 100, 40*ms), way(200, 110, 20*ms), way(100, 130, 18*ms)}, false},
		"a burst that was lost":                   {[]unix.TCPInfo{sent(10_000, 500), sent(20_000, 500), sent(30_000, 1000), sent(40_000, 1000)}, true},
		"one in twenty is lost all the time":      {[]unix.TCPInfo{sent(10_000, 500), sent(20_000, 1000), sent(30_000, 1500), sent(40_000, 2000)}, false},
		"one in a hundred is":                     {[]unix.TCPInfo{sent(10_000, 100), sent(20_000, 200), sent(30_000, 300), sent(40_000, 400)}, true},
		"one in twenty, looked at before that":    {[]unix.TCPInfo{sent(1000, 50), sent(2000, 100), sent(3000, 150), sent(4000, 200)}, true},
		"one in twenty, and segments count round": {[]unix.TCPInfo{sent(1<<32-6000, 0), sent(1<<32-1000, 250), sent(4000, 500), sent(9000, 750), sent(14_000, 1000)}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(fd)
			o := outlook{free: true}
			for i := range test.looks {
				if o.free {
					o.see(fd, &test.looks[i])
				}
			}
			require.Equal(t, test.free, o.free)
		})
	}
}

// Within a host nothing paces. Between two that have a slow cable the lane that fills it has the
// system's congestion control from then on.
func TestCongestionControl(t *testing.T) {
	member := members(t)
	for name, options := range map[string]func() Options{
		"clear": func() Options { return Options{} },
		"tls":   func() Options { return Options{TLS: member()} },
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.ForTest(t, lab.Options{Networks: []lab.Network{{Name: "lan", Rate: 50 * lab.Mbit}}, Hosts: []lab.Host{{Name: "X"}, {Name: "Y"}}})
			var ends [2]*Endpoint
			var system string
			for i, host := range l.Hosts() {
				at, err := l.Addr(host, "lan")
				require.NoError(t, err)
				o := options()
				o.Listen = net.JoinHostPort(at.String(), "0")
				require.NoError(t, l.Do(host, func() (err error) {
					fresh, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fresh)
					system = congestionOf(t, fresh)
					ends[i], err = Listen(t.Context(), o)
					return err
				}))
				defer ends[i].Close()
				require.Equal(t, system, ends[i].congestion, "what the system has is known")
			}
			var near transport.Conn
			require.NoError(t, l.Do("X", func() (err error) {
				near, err = ends[0].Dial(t.Context(), ends[1].Addr())
				return err
			}))
			far, err := ends[1].Accept(t.Context())
			require.NoError(t, err)

			begins := system
			if paces(system) {
				begins = unpaced
			}
			c := near.(*Conn)
			for _, fd := range c.fds {
				require.Equal(t, begins, congestionOf(t, fd))
			}
			in, m := new(box), transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 100_000), Bulk: true}
			eventually(t, "the queue to be seen", func() bool {
				for c.Send(m) == nil {
				}
				poll(t, c, in)
				poll(t, far, in)
				return !c.lanes[1].outlook.free
			})
			require.Equal(t, begins, congestionOf(t, c.fds[0]), "of the lane that is idle")
			require.Equal(t, system, congestionOf(t, c.fds[1]), "of the one that fills the cable")
			least, err := unix.GetsockoptInt(c.fds[1], unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
			require.NoError(t, err)
			require.Equal(t, notSentMost, least)
		})
	}
	t.Run("within a host", func(t *testing.T) {
		near, far := connected(t)
		for _, c := range []*Conn{near.(*Conn), far.(*Conn)} {
			for i, fd := range c.fds {
				require.False(t, paces(congestionOf(t, fd)))
				require.False(t, c.lanes[i].outlook.free, "there is nothing to look for")
			}
		}
	})
}

func congestionOf(t *testing.T, fd int) string {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	require.NoError(t, err)
	return name
}
