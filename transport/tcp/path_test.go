//go:build linux

package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
)

// A seen is what the kernel says of a socket at a time, and what is to be observed then.
type seen struct {
	at   time.Duration
	info unix.TCPInfo
	want time.Duration
}

func look(t *testing.T, observe func(time.Time, *unix.TCPInfo) time.Duration, looks []seen) {
	start := time.Unix(1000, 0)
	for _, l := range looks {
		require.Equal(t, l.want, observe(start.Add(l.at), &l.info), "at %v", l.at)
	}
}

func TestStall(t *testing.T) {
	const ms = time.Millisecond
	way := func(delivered, ackRecv, dataSent uint32) unix.TCPInfo { // with segments on their way
		return unix.TCPInfo{Unacked: 2, Snd_wnd: 1000, Delivered: delivered, Last_ack_recv: ackRecv, Last_data_sent: dataSent}
	}
	full := func(unacked uint32, probes uint8, ackRecv, dataSent uint32) unix.TCPInfo { // with its window closed
		return unix.TCPInfo{Unacked: unacked, Probes: probes, Notsent_bytes: 9, Last_ack_recv: ackRecv, Last_data_sent: dataSent}
	}
	tests := map[string][]seen{
		"nothing is on its way":                      {{0, unix.TCPInfo{Snd_wnd: 9, Last_ack_recv: 5000}, 0}, {50 * ms, unix.TCPInfo{Snd_wnd: 9, Last_ack_recv: 5050}, 0}},
		"the first look is late":                     {{0, way(7, 300, 200), 200 * ms}},
		"the first after a long rest":                {{0, way(7, 60_000, 1), 1 * ms}, {10 * ms, way(7, 60_010, 11), 11 * ms}},
		"segments are delivered":                     {{0, way(7, 1, 1), 1 * ms}, {10 * ms, way(8, 1, 1), 1 * ms}, {20 * ms, way(9, 4, 0), 0}},
		"sent again and again":                       {{0, way(7, 100, 100), 100 * ms}, {50 * ms, way(7, 150, 2), 150 * ms}, {200 * ms, way(7, 300, 90), 300 * ms}},
		"old numbers come back":                      {{0, way(7, 1, 1), 1 * ms}, {500 * ms, way(7, 3, 2), 501 * ms}},
		"and then delivered":                         {{0, way(7, 400, 400), 400 * ms}, {10 * ms, way(8, 1, 1), 1 * ms}},
		"the peer does not read":                     {{0, full(0, 0, 900, 950), 0}, {500 * ms, full(0, 0, 1400, 1450), 0}},
		"a probe of it is on its way":                {{0, full(0, 0, 900, 950), 0}, {10 * ms, full(0, 1, 910, 960), 0}, {11 * ms, full(0, 0, 1, 961), 0}},
		"probes of it are not answered":              {{0, full(0, 1, 900, 950), 0}, {500 * ms, full(0, 3, 1400, 1450), 500 * ms}, {600 * ms, full(0, 1, 20, 1550), 20 * ms}},
		"it has no room for what it let come":        {{0, full(2, 0, 900, 900), 0}, {500 * ms, full(2, 0, 10, 11), 0}},
		"it has no room, and then the path is cut":   {{0, full(2, 0, 900, 800), 0}, {500 * ms, full(2, 0, 1400, 100), 500 * ms}},
		"its window opens after an hour, and a send": {{0, full(0, 0, 9, 9), 0}, {3600 * time.Second, way(8, 1, 1), 1 * ms}},
	}
	for name, looks := range tests {
		t.Run(name, func(t *testing.T) { look(t, new(stall).observe, looks) })
	}
}

func TestAge(t *testing.T) {
	const ms = time.Millisecond
	way := func(sent, again, acked uint64) unix.TCPInfo {
		return unix.TCPInfo{Unacked: 1, Snd_wnd: 1000, Bytes_sent: sent + again, Bytes_retrans: again, Bytes_acked: acked}
	}
	rest := func(sent uint64) unix.TCPInfo {
		return unix.TCPInfo{Snd_wnd: 1000, Bytes_sent: sent, Bytes_acked: sent + 1} // what opened it is acknowledged too
	}
	full := way(5000, 0, 4000)
	full.Snd_wnd = 0
	tests := map[string][]seen{
		"nothing is on its way":             {{0, rest(0), 0}, {time.Hour, rest(0), 0}},
		"it has come since":                 {{0, way(500, 0, 1), 0}, {9 * ms, rest(500), 0}, {time.Hour, rest(500), 0}},
		"it comes bit by bit":               {{0, way(5000, 0, 1), 0}, {90 * ms, way(5000, 0, 1000), 90 * ms}, {200 * ms, way(5000, 0, 4999), 200 * ms}, {300 * ms, rest(5000), 0}},
		"others follow":                     {{0, way(5000, 0, 1), 0}, {20 * ms, way(9000, 0, 5000), 0}, {50 * ms, way(14000, 0, 8000), 30 * ms}, {60 * ms, way(14000, 0, 9001), 0}},
		"sent again and again":              {{0, way(500, 0, 1), 0}, {90 * ms, way(500, 1000, 1), 90 * ms}, {200 * ms, way(500, 4000, 1), 200 * ms}},
		"the peer does not read":            {{0, full, 0}, {500 * ms, full, 0}},
		"a kernel that does not count so":   {{0, way(0, 0, 50), 0}, {500 * ms, way(0, 0, 60), 0}},
		"at rest for long, then on its way": {{0, rest(500), 0}, {time.Hour, way(700, 0, 501), 0}, {time.Hour + 20*ms, way(700, 0, 501), 20 * ms}},
	}
	for name, looks := range tests {
		t.Run(name, func(t *testing.T) { look(t, new(age).observe, looks) })
	}
}

func path(c transport.Conn) transport.PathInfo { return c.(transport.Measured).Path() }

func TestAHealthyPath(t *testing.T) {
	near, far := connected(t)
	eventually(t, "the handshake to be acknowledged", func() bool { return path(near).Unacked == 0 })
	before := path(near)
	const size = 100_000
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size)}
	in := new(box)
	for i := range 20 {
		m.Bulk = i%2 == 1
		for near.Send(m) != nil {
			poll(t, far, in)
		}
		eventually(t, "the message", func() bool { poll(t, far, in); return in.got == i+1 })
		require.Less(t, path(near).Stalled, time.Second)
	}
	var p transport.PathInfo
	eventually(t, "all to be acknowledged", func() bool { p = path(near); return p.Unacked == 0 })
	p = path(near) // what is outstanding is read after what was delivered
	require.EqualValues(t, 20*(prefixLen+size), p.Delivered-before.Delivered)
	require.Zero(t, p.Stalled)
	require.NotZero(t, p.RTT)
	require.Less(t, p.RTT, time.Second)

	require.NoError(t, near.Close())
	require.Zero(t, path(near))
}

func TestAPeerThatDoesNotReadIsNoStall(t *testing.T) {
	near, _ := connected(t)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 100_000)}
	longest := time.Duration(0)
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for near.Send(m) == nil {
		}
		longest = max(longest, path(near).Stalled, path(near).Oldest)
	}
	require.Less(t, longest, time.Second)
	require.NotZero(t, path(near).Unacked)
	require.False(t, path(near).Queued, "it is the peer who does not take more")
}

// A path that takes less than is written limits the sender; one that takes all at once does not.
func TestAPathThatIsTooSlow(t *testing.T) {
	near, far := connected(t)
	in := new(box)
	const size, slow = 512 << 10, 10 << 20
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size), Bulk: true}
	for _, fd := range near.(*Conn).fds {
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, slow))
	}
	looks, queued := 0, 0
	const warm, messages = 8, 16
	for i := range messages {
		require.NoError(t, near.Send(m))
		eventually(t, "the message", func() bool {
			near.Flush()
			poll(t, far, in)
			if i >= warm { // the peer's window has grown
				if looks++; path(near).Queued {
					queued++
				}
			}
			return in.got == i+1
		})
	}
	require.Greater(t, 2*queued, looks, "of all looks")
	eventually(t, "a path that is not", func() bool { return !path(near).Queued })
}

// deafen has the kernel drop what comes to a Conn's sockets, as a cut path does;
// what they send still goes.
func deafen(t *testing.T, c transport.Conn) (undo func()) {
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	for _, fd := range c.(*Conn).fds {
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		require.NoError(t, err)
	}
	return func() {
		for _, fd := range c.(*Conn).fds {
			require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0))
		}
	}
}

func TestACutPathStalls(t *testing.T) {
	near, far := connected(t)
	eventually(t, "a quiet path", func() bool { return path(near).Unacked == 0 })
	before := path(near)
	undo := deafen(t, far)
	require.NoError(t, near.Send(message("nobody hears this")))
	require.NoError(t, near.Flush())
	// What comes from the peer tells nothing of the way to it.
	in := new(box)
	eventually(t, "the stall to be seen", func() bool {
		require.NoError(t, far.Send(message("but this")))
		require.NoError(t, far.Flush())
		poll(t, near, in)
		return path(near).Stalled > 300*time.Millisecond
	})
	require.NotZero(t, in.got)
	p := path(near)
	require.Equal(t, prefixLen+17, p.Unacked)
	require.NotZero(t, p.Retransmits)
	require.Greater(t, p.Oldest, 200*time.Millisecond)
	require.Equal(t, before.Delivered, p.Delivered)

	undo()
	eventually(t, "the path to be well", func() bool { p = path(near); return p.Stalled == 0 && p.Oldest == 0 && p.Unacked == 0 })
	require.EqualValues(t, prefixLen+17, p.Delivered-before.Delivered)
}

func BenchmarkPath(b *testing.B) {
	x, err := Listen(b.Context(), Options{})
	require.NoError(b, err)
	defer x.Close()
	near, err := x.Dial(b.Context(), x.Addr())
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		path(near)
	}
}
