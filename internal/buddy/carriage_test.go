package buddy

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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
	sent, came := Carriage{}, Carriage{}
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
		}, 20*time.Second, time.Millisecond)
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
	k := &Keeper{out: h}
	raw, err := near.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	const size, slow = 1 << 20, 4 << 20 // bytes, and bytes a second
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, slow)
	}))
	require.NoError(t, err)

	end := k.watch(h)
	go near.Write(make([]byte, size))
	_, err = io.ReadFull(far, make([]byte, size))
	require.NoError(t, err)
	bytes, busy := uint64(0), time.Duration(0)
	require.Eventually(t, func() bool { // the last acknowledgement comes when it comes
		if c := k.Carried(time.Second); c != nil {
			require.Equal(t, 2, c.Agent)
			require.Equal(t, "127.0.0.1", c.Addr)
			bytes, busy = bytes+c.Bytes, busy+c.Busy
		}
		return bytes == size
	}, 20*time.Second, 10*time.Millisecond)
	require.Positive(t, busy)
	end()
	require.Nil(t, k.Carried(time.Second), "all was told")
	require.Nil(t, new(Keeper).Carried(time.Second), "nothing goes anywhere")
}
