//go:build linux

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
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
