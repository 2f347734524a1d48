package engine_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// A draft that is finished has what was sent before it, but for what was covered since.
func TestADraftLacksWhatWasCoveredSince(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	from, to := w.boxes[0], w.boxes[1]
	sizes := []int{10, 300 << 10, 0, 70 << 10, 5000, 100 << 10, 3}
	sent := 0
	message := func(size int) {
		buf := make([]byte, size)
		r := to.Irecv(engine.Match{Peer: 0, Tag: 1}, buf)
		require.NoError(t, from.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, pattern(size, sent), engine.Standard))
		_, err := r.Wait(t.Context(), recv)
		require.NoError(t, err)
		sent++
	}
	round := func() {
		for _, size := range sizes {
			message(size)
		}
	}
	logged := func(d *engine.Draft) (n int) {
		for _, l := range d.Logged(nil) {
			require.Equal(t, topology.Rank(1), l.Rank)
			n += l.Bytes
		}
		return n
	}
	round()
	_, covers, err := to.Capture() // the first round
	require.NoError(t, err)
	round()
	d, _, err := from.Draft(func() {})
	require.NoError(t, err)
	whole, _, err := from.Capture()
	require.NoError(t, err)
	before := logged(d)
	round()
	require.Equal(t, before, logged(d), "what is sent later is not in it")
	to.Covered(covers)
	require.Eventually(t, func() bool { return logged(d) < before }, 20*time.Second, time.Millisecond)

	written, err := d.Finish(nil)
	require.NoError(t, err)
	c, err := engine.ParseCapsule(written)
	require.NoError(t, err)
	all, err := engine.ParseCapsule(whole)
	require.NoError(t, err)
	n := uint64(len(sizes))
	require.Equal(t, 2*n, c.Streams[0].Sent)
	require.Equal(t, numbers(all), append(upTo(n), numbers(c)...))
	require.Equal(t, upTo(2 * n)[n:], numbers(c))
}

// upTo is 1 … n.
func upTo(n uint64) (all []uint64) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

// numbers is those of the messages in the log of a capsule with one stream.
func numbers(c *engine.Capsule) (all []uint64) {
	s := &c.Streams[0]
	for _, m := range s.Log {
		all = append(all, m.Header.Seq)
	}
	all = append(all, s.Recorded()...)
	slices.Sort(all)
	return all
}

// A rank does nothing while it is saved, but others may take back what they have sent to it. What
// is recorded of that before begin must be in the capsule: nobody reads it again.
func TestWhatIsGivenBackWhileASnapshotIsTaken(t *testing.T) {
	for name, ranks := range map[string][]int{"in one process": {2}, "in two processes": {1, 1}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true, Replay: true}, ranks...)
			b, peer := w.boxes[0], w.boxes[1]
			var recorded []engine.Choice
			b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }})
			done := make(chan error, 1)
			go func() {
				for range 300 {
					r := peer.Isend(engine.Match{Peer: 0, Tag: 1}, []byte("never"), engine.Synchronous)
					r.Cancel()
					if _, err := r.Wait(t.Context(), send); !errors.Is(err, engine.ErrCancelled) {
						done <- err
						return
					}
				}
				done <- nil
			}()
			drafts := 0
			for over := false; !over; drafts++ {
				b.Engine().Progress()
				before := 0
				d, _, err := b.Draft(func() { before = len(recorded) })
				require.NoError(t, err)
				raw, err := d.Finish(nil)
				require.NoError(t, err)
				c, err := engine.ParseCapsule(raw)
				require.NoError(t, err)
				last := uint64(0)
				b.Saved(func() {
					for _, x := range recorded[:before] {
						last = max(last, x.Seq)
					}
				})
				got := uint64(0)
				for _, s := range c.Streams {
					if s.Peer == 1 {
						got = s.Got
					}
				}
				require.GreaterOrEqual(t, got, last, "message %d was given back, and the capsule has %d", last, got)
				select {
				case err := <-done:
					require.NoError(t, err)
					over = true
				default:
				}
			}
			require.NotEmpty(t, recorded)
			t.Logf("%d drafts", drafts)
		})
	}
}
