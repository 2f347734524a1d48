package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// scraps is a Spill of some bytes, in memory that is overwritten when it is given back.
type scraps struct {
	mu   sync.Mutex
	left int
	full bool
}

func (s *scraps) Take(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full = n > s.left; s.full {
		return nil
	}
	s.left -= n
	return make([]byte, n)
}

func (s *scraps) Give(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b = b[:cap(b)]
	for i := range b {
		b[i] = 0xee
	}
	s.left += len(b)
	s.full = false
}

func (s *scraps) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full
}

// A sender that finds log and Spill full waits, says for what, and goes on when its
// receiver has saved.
func TestSendersWaitForASnapshotWhenTheLogIsFull(t *testing.T) {
	for name, listen := range networks {
		for _, size := range []int{100, 20 << 10, 300 << 10} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				most := 8 << 20
				if testing.Short() {
					most = 1 << 20
				}
				spill := &scraps{left: most}
				asked := make(chan struct{}, 1000)
				cfg := engine.Config{Keep: true, Replay: true, LogBytes: 1 << 20, Spill: spill, Save: func(topology.Rank, topology.Rank, int) { asked <- struct{}{} }}
				w := newWorldOn(t, cfg, func(p int) transport.Endpoint { return listen(t, p) }, 1, 1)
				messages := 2 * (most + 1<<20) / size
				m := func(to int) engine.Match { return engine.Match{Peer: w.boxes[to].Rank(), Tag: 1} }
				sent := make(chan error, 1)
				go func() {
					for i := range messages {
						if err := w.boxes[0].Send(t.Context(), send, m(1), pattern(size, i), engine.Standard); err != nil {
							sent <- err
							return
						}
					}
					sent <- nil
				}()
				waits := func() (save bool) {
					for _, wait := range w.boxes[0].Waits() {
						for _, n := range wait.Needs {
							save = save || n.Save
						}
					}
					return save
				}
				snapshots := 0
				save := func() {
					_, covers, err := w.boxes[1].Capture()
					require.NoError(t, err)
					w.boxes[1].Covered(covers)
					snapshots++
				}
				buf := make([]byte, size)
				for i := range messages {
					for tries := 0; ; tries++ {
						ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
						_, err := w.boxes[1].Recv(ctx, recv, m(0), buf)
						stop()
						if err == nil {
							break
						}
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.Less(t, tries, 500, "message %d does not come, and nobody waits for a snapshot", i)
						if waits() {
							sent, _, _ := w.boxes[0].Counts()
							_, got, _ := w.boxes[1].Counts()
							require.Positive(t, sent[0].Held)
							require.Equal(t, got[0].N, sent[0].N-sent[0].Held, "all that is not held back has come")
							save()
						}
					}
					require.True(t, bytes.Equal(pattern(size, i), buf), "message %d", i)
				}
				require.NoError(t, <-sent)
				require.Positive(t, snapshots)
				require.NotEmpty(t, asked, "snapshots are asked for")
				save()
				require.Eventually(t, func() bool { return spill.free() == most }, 20*time.Second, time.Millisecond, "all is given back")
			})
		}
	}
}

func (s *scraps) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// What the next life of a sender sends again, and its receiver has saved, does not fill the log: the receiver may not
// come to save anew before the message after that.
func TestWhatIsSentAgainDoesNotFillTheLog(t *testing.T) {
	for _, size := range []int{1000, 20 << 10, 100 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const log, most = 256 << 10, 1 << 20
			messages := 2 * (log + most) / size
			cfg := engine.Config{Keep: true, Replay: true, LogBytes: log, Spill: &scraps{left: most}, Save: func(topology.Rank, topology.Rank, int) {}}
			w := newWorld(t, cfg, 1, 1, 0)
			to, from := engine.Match{Peer: 0, Tag: 1}, engine.Match{Peer: 1, Tag: 1}
			pass := func(b *engine.Box, i int) error {
				r := b.Isend(to, pattern(size, i), engine.Standard)
				buf := make([]byte, size)
				_, err := w.boxes[0].Recv(t.Context(), recv, from, buf)
				require.NoError(t, err)
				require.Equal(t, pattern(size, i), buf)
				_, err = r.Wait(t.Context(), send)
				return err
			}
			for i := range messages {
				require.NoError(t, pass(w.boxes[1], i))
				_, covers, err := w.boxes[0].Capture()
				require.NoError(t, err)
				w.boxes[0].Covered(covers)
			}
			next := w.anew(t)
			for i := range messages {
				ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
				require.NoError(t, next.Send(ctx, send, to, pattern(size, i), engine.Standard), "message %d", i)
				stop()
			}
			require.NoError(t, pass(next, messages))
		})
	}
}

// A rank of the same process is asked for snapshots as one elsewhere is, and what they cover is kept no longer.
func TestRanksOfAProcessAreAskedForSnapshots(t *testing.T) {
	const log, step, size = 1 << 20, 256 << 10, 4000
	type ask struct {
		of, from topology.Rank
		bytes    int
	}
	var asked []ask
	cfg := engine.Config{Keep: true, Replay: true, LogBytes: log, SaveBytes: step, Save: func(of, from topology.Rank, bytes int) {
		asked = append(asked, ask{of, from, bytes})
	}}
	w := newWorld(t, cfg, 2)
	a, b := w.boxes[0], w.boxes[1]
	pass := func(bytes int) {
		for range bytes / size {
			require.NoError(t, b.Send(t.Context(), send, engine.Match{Peer: 0}, make([]byte, size), engine.Standard))
			_, err := a.Recv(t.Context(), recv, engine.Match{Peer: 1}, make([]byte, size))
			require.NoError(t, err)
		}
	}
	for range 3 {
		asked = nil
		pass(step)
		require.Empty(t, asked)
		pass(2*log - step/2)
		require.Len(t, asked, 3+5)
		for i, x := range asked {
			require.Equal(t, ask{0, 1, x.bytes}, x)
			if i < 3 {
				require.InDelta(t, (i+1)*step, x.bytes, 2*size)
			} else {
				require.Zero(t, x.bytes, "the log is full")
			}
		}
		_, covers, err := a.Capture()
		require.NoError(t, err)
		a.Covered(covers)
	}
}

// A rank that leaves gives back what its log of messages to ranks that stay had.
func TestWhoLeavesGivesTheSpillBack(t *testing.T) {
	const room = 64 << 20
	spill := &scraps{left: room}
	w := newWorld(t, engine.Config{Keep: true, Replay: true, LogBytes: 64 << 10, Spill: spill}, 2, 0)
	a, b := w.boxes[0], w.boxes[1]
	buf := make([]byte, 4<<10)
	for range 2000 {
		require.NoError(t, a.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, buf, engine.Standard))
		_, err := b.Recv(t.Context(), recv, engine.Match{Peer: 0, Tag: 1}, buf)
		require.NoError(t, err)
	}
	require.Less(t, spill.free(), room)
	_, err := a.Depart(t.Context(), 1, 2)
	require.NoError(t, err)
	require.Equal(t, room, spill.free())
}
