package engine_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/transport"
)

// A notary is a Ledger that knows what it is told.
type notary struct{ recorded, witnessed, woken atomic.Uint64 }

func (n *notary) Recorded() uint64  { return n.recorded.Load() }
func (n *notary) Witnessed() uint64 { return n.witnessed.Load() }
func (n *notary) Wake()             { n.woken.Add(1) }

// reaches tells whether a message from rank 0 with that tag is at another.
func reaches(b *engine.Box, tag int32) bool {
	_, here := b.Iprobe(engine.Match{Peer: 0, Tag: tag})
	return here
}

// What is sent to a process of another host waits until the choices before it are known
// elsewhere, and comes in order; to a neighbour it goes at once.
func TestMessagesWaitForTheWitness(t *testing.T) {
	for name, listen := range networks {
		for _, size := range []int{100, 300 << 10} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				n := new(notary)
				w := newWorldOn(t, engine.Config{Keep: true, Replay: true, Witness: n}, func(p int) transport.Endpoint { return listen(t, p) }, 1, 1, 1)
				w.engines[0].SetFar(1)
				far, near := w.boxes[1], w.boxes[2]
				var sends []engine.Request
				put := func(to *engine.Box, tag int32, i int) {
					sends = append(sends, w.boxes[0].Isend(engine.Match{Peer: to.Rank(), Tag: tag}, pattern(size, i), engine.Standard))
				}
				take := func(b *engine.Box, tag int32, i int) {
					buf := make([]byte, size)
					_, err := b.Recv(t.Context(), recv, engine.Match{Peer: 0, Tag: tag}, buf)
					require.NoError(t, err)
					require.Equal(t, pattern(size, i), buf)
				}
				put(far, 1, 1)
				take(far, 1, 1) // nothing was chosen yet
				require.Zero(t, n.woken.Load())

				n.recorded.Store(1)
				put(far, 2, 2)
				n.recorded.Store(2)
				put(far, 2, 3)
				put(near, 2, 4)
				take(near, 2, 4)
				for range 20 {
					require.False(t, reaches(far, 2))
					time.Sleep(time.Millisecond)
				}
				require.Positive(t, n.woken.Load())
				n.witnessed.Store(1)
				take(far, 2, 2)
				for range 20 {
					require.False(t, reaches(far, 2))
					time.Sleep(time.Millisecond)
				}
				n.witnessed.Store(2)
				take(far, 2, 3)
				for _, r := range sends {
					_, err := r.Wait(t.Context(), recv)
					require.NoError(t, err)
				}
			})
		}
	}
}

// That a synchronous send was received tells of a choice of its receiver.
func TestSynchronousSendsWaitForTheWitness(t *testing.T) {
	for name, listen := range networks {
		t.Run(name, func(t *testing.T) {
			n := new(notary)
			w := newWorldOn(t, engine.Config{Keep: true, Replay: true, Witness: n}, func(p int) transport.Endpoint { return listen(t, p) }, 1, 1)
			w.engines[1].SetFar(0)
			r := w.boxes[0].Isend(engine.Match{Peer: 1}, []byte("sync"), engine.Synchronous)
			n.recorded.Store(1)
			_, err := w.boxes[1].Recv(t.Context(), recv, engine.Match{Peer: 0}, make([]byte, 4))
			require.NoError(t, err)
			for range 20 {
				_, done, err := r.Test()
				require.NoError(t, err)
				require.False(t, done)
				time.Sleep(time.Millisecond)
			}
			n.witnessed.Store(1)
			_, err = r.Wait(t.Context(), recv)
			require.NoError(t, err)
		})
	}
}

// What a neighbour has had is not for another host before the choices are known: a rank
// that moves away is sent it again.
func TestWhatIsRepeatedWaitsForTheWitness(t *testing.T) {
	n := new(notary)
	w := newWorld(t, engine.Config{Keep: true, Replay: true, Witness: n}, 1, 1, 0)
	w.engines[0].SetFar(2)
	n.recorded.Store(1)
	require.NoError(t, w.boxes[0].Send(t.Context(), send, engine.Match{Peer: 1}, []byte("near"), engine.Standard))
	buf := make([]byte, 4)
	_, err := w.boxes[1].Recv(t.Context(), recv, engine.Match{Peer: 0}, buf)
	require.NoError(t, err)
	b := w.anew(t)
	for range 20 {
		require.False(t, reaches(b, 0))
		time.Sleep(time.Millisecond)
	}
	n.witnessed.Store(1)
	_, err = b.Recv(t.Context(), recv, engine.Match{Peer: 0}, buf)
	require.NoError(t, err)
	require.Equal(t, "near", string(buf))
}

// What an earlier life has only offered comes with its body in the next, though what follows it is here, and
// though it waits for the witness: what has come back meanwhile has not acknowledged it.
func TestAnOfferOfAnEarlierLifeIsNotAcknowledged(t *testing.T) {
	n := new(notary)
	w := newWorld(t, engine.Config{Keep: true, Replay: true, Witness: n}, 1, 1, 0)
	w.engines[2].SetFar(0)
	first, b := w.boxes[1], w.boxes[0]
	take := func(by, from *engine.Box, tag int32) {
		t.Helper()
		buf := make([]byte, 8)
		r := by.Irecv(engine.Match{Peer: from.Rank(), Tag: tag}, buf)
		require.Eventually(t, func() bool {
			for _, e := range w.engines {
				e.Progress()
			}
			return r.Finished()
		}, 5*time.Second, time.Millisecond, "message %d does not come", tag)
		require.Equal(t, pattern(8, int(tag)), buf)
	}
	first.Isend(engine.Match{Peer: 0, Tag: 1}, pattern(8, 1), engine.Synchronous) // as if there were no room for it
	first.Isend(engine.Match{Peer: 0, Tag: 2}, pattern(8, 2), engine.Standard)
	take(b, first, 2)
	next := w.anew(t)
	b.Isend(engine.Match{Peer: 1, Tag: 3}, pattern(8, 3), engine.Standard)
	take(next, b, 3) // they have met
	n.recorded.Store(1)
	next.Isend(engine.Match{Peer: 0, Tag: 1}, pattern(8, 1), engine.Standard)
	b.Isend(engine.Match{Peer: 1, Tag: 4}, pattern(8, 4), engine.Standard)
	take(next, b, 4)
	n.witnessed.Store(1)
	take(b, next, 1)
}
