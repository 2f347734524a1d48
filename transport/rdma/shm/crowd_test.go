//go:build linux

package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

func TestWhereCoresAreSharedAReaderCopiesAlone(t *testing.T) {
	for _, crowded := range []bool{false, true} {
		q, peer, _ := alone(t)
		if crowded {
			q.domain.Crowd()
		}
		from, into := postRead(t, q, peer, 2*pollBytes)
		in := &discard{t: t}
		_, err := q.PollCQ(in)
		require.NoError(t, err)
		require.Empty(t, in.pulled, "a PollCQ copies without bound")
		require.Equal(t, crowded, peer[1].active.Load() == 0, "whether its peer is to copy nothing")
		for len(in.pulled) == 0 {
			_, err := q.PollCQ(in)
			require.NoError(t, err)
		}
		require.Equal(t, []error{nil}, in.pulled)
		require.Equal(t, from, into)
	}
}

// Where cores are shared long bodies are read until a copy into the ring was timed, and no new memory is touched for them.
func TestWhereCoresAreSharedLongBodiesAreRead(t *testing.T) {
	q, far := pairOf(t)
	neverTurns(q)
	q.gauge.reach = reachOf(true)
	answers := func(n int) bool {
		require.NoError(t, far.PostSend(rdma.Eager, new([transport.HeaderLen]byte), nil))
		_, err := q.PollCQ(&discard{t: t})
		require.NoError(t, err)
		return q.PrefersRead(n)
	}
	require.False(t, answers(maxBody))
	q.domain.Crowd()
	require.True(t, answers(maxBody))
	require.False(t, answers(muchLen))
	timed(&q.gauge, time.Nanosecond)
	require.False(t, answers(maxBody), "the ring was found to be faster")
}
