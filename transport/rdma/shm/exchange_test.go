//go:build linux

package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// A process that exchanges long bodies with several others has them read, until it has timed a copy.
func TestLongBodiesAmongSeveralAreRead(t *testing.T) {
	type peer struct {
		q, far *QueuePair
		dirs   *directions
	}
	header := new([transport.HeaderLen]byte)
	for what, way := range map[string]struct {
		to, from func(t *testing.T, p peer, n int)
	}{
		"by the ring": {
			to: func(t *testing.T, p peer, n int) {
				require.NoError(t, p.q.PostSend(rdma.Eager, header, make([]byte, n)))
			},
			from: func(t *testing.T, p peer, n int) {
				require.NoError(t, p.far.PostSend(rdma.Eager, header, make([]byte, n)))
			},
		},
		"by reads": {
			to: func(t *testing.T, p peer, n int) {
				_, ok := p.q.Register(make([]byte, n), rdma.RemoteRead)
				require.True(t, ok)
			},
			from: func(t *testing.T, p peer, n int) { postRead(t, p.q, p.dirs, n) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			var peers [2]peer
			for i := range peers {
				near, far := pairOf(t)
				neverTurns(near)
				neverTurns(far)
				near.gauge.reach = reachOf(true)
				peers[i] = peer{near, far, near.segment.dirs}
			}
			peers[1].q.domain = peers[0].q.domain
			// read tells whether an answer of n bytes is, for both peers.
			read := func(n int) bool {
				for _, p := range peers {
					require.NoError(t, p.far.PostSend(rdma.Eager, header, nil))
					for moved := true; moved; {
						var err error
						moved, err = p.q.PollCQ(&discard{t: t})
						require.NoError(t, err)
					}
				}
				is := peers[0].q.PrefersRead(n)
				require.Equal(t, is, peers[1].q.PrefersRead(n))
				return is
			}

			for _, p := range peers {
				way.to(t, p, muchLen)
				way.from(t, p, muchLen)
			}
			require.False(t, read(maxBody), "no body was long")
			for _, p := range peers {
				require.False(t, read(maxBody))
				way.to(t, p, maxBody)
			}
			for _, p := range peers {
				require.False(t, read(maxBody), "long bodies go to two peers, but do not come from two")
				way.from(t, p, maxBody)
			}
			require.True(t, read(maxBody))
			require.False(t, read(muchLen))

			timed(&peers[0].q.gauge, time.Nanosecond)
			require.False(t, peers[0].q.PrefersRead(maxBody), "the ring was found to be faster")
			require.True(t, peers[1].q.PrefersRead(maxBody))

			peers[0].q.gone.Store(true)
			require.NoError(t, peers[0].q.Close())
			require.False(t, peers[1].q.PrefersRead(maxBody), "one peer is left")
			way.to(t, peers[1], maxBody)
			require.EqualValues(t, 1, peers[1].q.domain.exchange.to.Load())
		})
	}
}
