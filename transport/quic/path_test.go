//go:build unix

package quic_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/quic"
)

func path(c transport.Conn) transport.PathInfo { return c.(transport.Measured).Path() }

func TestWhatAPathHasDelivered(t *testing.T) {
	near, far := pair(t, quic.Options{}, quic.Options{})
	before := path(near)
	const size = 100_000
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size)}
	in := &keeper{buf: make([]byte, mib)}
	took := func() { _, err := far.Poll(in); require.NoError(t, err) }
	for i := range 20 {
		m.Bulk = i%2 == 1
		for near.Send(m) != nil {
			took()
			near.Flush()
		}
		require.NoError(t, near.Flush())
	}
	var p transport.PathInfo
	eventually(t, "all to be acknowledged", func() bool { took(); near.Flush(); p = path(near); return p.Unacked == 0 })
	require.GreaterOrEqual(t, p.Delivered-before.Delivered, uint64(20*size))
	require.Less(t, p.Delivered-before.Delivered, uint64(20*size*5/4))
	require.False(t, p.Queued)
	require.NotZero(t, p.RTT)
	require.Less(t, p.RTT, time.Second)
}

func TestAPeerWhoDoesNotRead(t *testing.T) {
	near, _ := pair(t, quic.Options{}, quic.Options{})
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 100_000), Bulk: true}
	full := 0
	eventually(t, "the path to be none that limits", func() bool {
		for near.Send(m) == nil {
		}
		if p := path(near); p.Unacked == 0 || p.Queued {
			full = 0
		} else {
			full++
		}
		return full == 20
	})
}
