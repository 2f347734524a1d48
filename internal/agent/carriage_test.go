package agent

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
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
