package agent

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/topology"
)

// A copy of a snapshot is the job's own traffic: a host that only sends copies is not flooded, and
// links learn what they deliver beside them.
func TestCopiesAreNotForeign(t *testing.T) {
	const rate, over = 10e6, 200 * time.Millisecond
	var quiet, flooded traffic
	for range 25 {
		_, _, _, out := quiet.take(control.HostReading{Over: int64(over), Out: rate * 1.03, CopiesOut: rate})
		require.Less(t, out, rate/20, "a host that sends copies: foreign traffic")
		flooded.take(control.HostReading{Over: int64(over), Out: rate})
	}
	_, _, _, out := flooded.take(control.HostReading{Over: int64(over), Out: rate})
	require.Greater(t, out, rate/2, "a host that sends what is not the job's")
}

func TestCarriageCountsEachByteOnce(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer a.Close()
	b, err := ln.Accept()
	require.NoError(t, err)
	defer b.Close()
	sent, came := carriage{}, carriage{}
	for range 3 {
		const n = 100_000
		_, err = a.Write(make([]byte, n))
		require.NoError(t, err)
		_, err = io.ReadFull(b, make([]byte, n))
		require.NoError(t, err)
		in, _ := came.since([]net.Conn{b})
		require.EqualValues(t, n, in)
		out := uint64(0)
		require.Eventually(t, func() bool { // acknowledgements come when they come
			_, more := sent.since([]net.Conn{a})
			out += more
			return out >= n
		}, 5*time.Second, time.Millisecond)
		require.LessOrEqual(t, out, uint64(n+1), "a connection's beginning may count as a byte")
	}
	in, out := sent.since(nil)
	require.Zero(t, in+out)
	require.Empty(t, sent, "connections that have ended are forgotten")
}

// The link that copies take is watched while one goes, and all of it is told once.
func TestAHaulIsWatched(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer near.Close()
	far, err := ln.Accept()
	require.NoError(t, err)
	defer far.Close()
	h := &haul{conn: near, agent: 2, addr: "127.0.0.1"}
	b := &buddies{out: h}
	raw, err := near.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	const size, slow = 1 << 20, 4 << 20 // bytes, and bytes a second
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, slow)
	}))
	require.NoError(t, err)

	end := b.watch(h)
	go near.Write(make([]byte, size))
	_, err = io.ReadFull(far, make([]byte, size))
	require.NoError(t, err)
	bytes, busy := uint64(0), time.Duration(0)
	require.Eventually(t, func() bool { // the last acknowledgement comes when it comes
		if c := b.carried(time.Second); c != nil {
			require.Equal(t, 2, c.Agent)
			require.Equal(t, "127.0.0.1", c.Addr)
			bytes, busy = bytes+c.Bytes, busy+c.Busy
		}
		return bytes == size
	}, 5*time.Second, 10*time.Millisecond)
	require.Positive(t, busy)
	end()
	require.Nil(t, b.carried(time.Second), "all was told")
	require.Nil(t, new(buddies).carried(time.Second), "nothing goes anywhere")
}

// A link that ranks share with copies delivers both; over another network copies take nothing of it.
func TestCopiesShareTheLink(t *testing.T) {
	begin := time.Unix(1000, 0)
	r := path.Reading{Over: 200 * time.Millisecond, Busy: 200 * time.Millisecond, Bytes: 800_000}
	r.Slots.Mark(begin, begin.Add(r.Busy-sensors.SlotTime))
	of := func(r path.Reading, class topology.Class) *gathered {
		g := &gathered{over: map[int]time.Duration{}}
		g.add(0, r, sensors.Middle, class)
		return g
	}
	copies := r
	copies.Bytes, copies.Limited, copies.Standing = 1_600_000, true, true
	r.Busy /= 2 // of the time in which copies went, too
	link := sensors.Link{From: "a", To: "b"}
	for name, c := range map[string]struct {
		copies  *gathered
		bytes   uint64
		size    sensors.SizeClass
		limited bool
	}{
		"none":                 {nil, 800_000, sensors.Middle, false},
		"over the same":        {of(copies, topology.LAN), 2_400_000, sensors.Large, true},
		"over another network": {of(copies, topology.SAN), 800_000, sensors.Middle, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := of(r, topology.LAN)
			g.join(c.copies)
			got := g.reading(begin, link)
			require.Equal(t, sensors.Reading{At: begin, Link: link, Size: c.size, Bytes: c.bytes, Over: r.Over, Busy: r.Over, Limited: c.limited, Standing: c.limited}, got)
		})
	}
}
