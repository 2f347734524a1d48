package engine_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// aWitness says of every failure that it is not acknowledged, until acked.
type aWitness struct {
	e       *engine.Engine
	acked   atomic.Int32
	failed  atomic.Int32
	revoked atomic.Int32
}

func (w *aWitness) Failed()                    { w.failed.Add(1) }
func (w *aWitness) Revoked(uint32)             { w.revoked.Add(1) }
func (w *aWitness) Unacknowledged(uint32) bool { return len(w.e.Failed()) > int(w.acked.Load()) }

// witnessed gives the box a witness.
func witnessed(b *engine.Box) *aWitness {
	w := &aWitness{e: b.Engine()}
	b.Witness(w)
	return w
}

const aContext = 16 // of messages that are no collective's

func from(peer topology.Rank, tag int32) engine.Match {
	return engine.Match{Context: aContext, Peer: peer, Tag: tag}
}

// failingWorld is a rank, and a process of two others that fails. Nothing that it
// does is told to anybody by the network.
func failingWorld(t *testing.T) (*world, *engine.Box, *aWitness) {
	w := newWorld(t, engine.Config{Keep: true, Lost: func(int, error) {}}, 1, 2, 1)
	return w, w.boxes[0], witnessed(w.boxes[0])
}

func TestDeclareFailedEndsWhatIsUnderWay(t *testing.T) {
	w, b, told := failingWorld(t)
	big := make([]byte, 1<<20)
	requests := []engine.Request{
		b.Irecv(from(1, 1), make([]byte, 8)),
		b.Irecv(from(2, engine.AnyTag), make([]byte, 8)),
		b.Isend(from(1, 2), big, engine.Standard),
		b.Isend(from(2, 2), []byte{1}, engine.Synchronous),
	}
	other := b.Irecv(from(3, 1), make([]byte, 1))
	probed := make(chan error, 1)
	go func() {
		_, err := b.Probe(t.Context(), recv, from(2, 5))
		probed <- err
	}()
	require.Eventually(t, func() bool { return len(b.Waits()) == 1 }, 20*time.Second, time.Millisecond)
	w.engines[0].DeclareFailed(1)
	require.Equal(t, []topology.Rank{1, 2}, w.engines[0].Failed())
	for i, r := range requests {
		_, err := r.Wait(t.Context(), recv)
		require.ErrorIs(t, err, engine.ErrProcFailed, "request %d", i)
	}
	require.ErrorIs(t, <-probed, engine.ErrProcFailed)
	require.EqualValues(t, 1, told.failed.Load())

	// Others are not concerned, and what comes later ends at once.
	require.NoError(t, w.boxes[3].Send(t.Context(), send, from(0, 1), []byte{7}, engine.Standard))
	_, err := other.Wait(t.Context(), recv)
	require.NoError(t, err)
	require.ErrorIs(t, b.Send(t.Context(), send, from(1, 3), nil, engine.Standard), engine.ErrProcFailed)
	_, err = b.Recv(t.Context(), recv, from(2, 3), nil)
	require.ErrorIs(t, err, engine.ErrProcFailed)
	require.ErrorIs(t, b.Refuses(from(2, 3)), engine.ErrProcFailed)
	require.NoError(t, b.Refuses(from(3, 3)))

	// Nothing is kept for the dead, and once more changes nothing.
	require.Zero(t, w.engines[0].Logged())
	w.engines[0].DeclareFailed(1)
	require.EqualValues(t, 1, told.failed.Load())
	require.NoError(t, b.Idle())
}

// What was sent before, and whose body is still with the sender, ends too; what is here
// can be received.
func TestMessagesOfTheFailed(t *testing.T) {
	w, b, _ := failingWorld(t)
	dead := w.boxes[1]
	require.NoError(t, dead.Send(t.Context(), send, from(0, 1), []byte{9}, engine.Standard))
	offered := dead.Isend(from(0, 2), make([]byte, 1<<20), engine.Standard)
	taken := dead.Isend(from(0, 3), make([]byte, 1<<20), engine.Standard)
	var msg *engine.Message
	require.Eventually(t, func() (ok bool) { msg, _, ok = b.Improbe(from(1, 3)); return ok }, 20*time.Second, time.Millisecond)
	w.engines[0].DeclareFailed(1)
	into := make([]byte, 1)
	_, err := b.Recv(t.Context(), recv, from(1, 1), into)
	require.NoError(t, err)
	require.Equal(t, byte(9), into[0])
	_, err = b.Recv(t.Context(), recv, from(1, 2), make([]byte, 1<<20))
	require.ErrorIs(t, err, engine.ErrProcFailed)
	r, ok := msg.Irecv(make([]byte, 1<<20))
	require.True(t, ok)
	_, err = r.Wait(t.Context(), recv)
	require.ErrorIs(t, err, engine.ErrProcFailed)
	offered.Cancel()
	taken.Cancel()
}

// A receive from any source is interrupted once for each failure that was not
// acknowledged, and goes on.
func TestAnySourceIsInterrupted(t *testing.T) {
	w, b, told := failingWorld(t)
	into := make([]byte, 1)
	r, another := b.Irecv(from(engine.AnySource, 1), into), b.Irecv(from(engine.AnySource, 9), nil)
	waited := make(chan error, 2)
	go func() { _, err := r.Wait(t.Context(), recv); waited <- err }()
	go func() { _, err := engine.WaitAny(t.Context(), recv, []engine.Request{another}); waited <- err }()
	require.Eventually(t, func() bool { return len(b.Waits()) == 2 }, 20*time.Second, time.Millisecond)
	w.engines[0].DeclareFailed(1)
	errs := []error{<-waited, <-waited}
	require.Contains(t, errs, nil, "WaitAny names the request, and no error")
	require.True(t, slices.ContainsFunc(errs, func(err error) bool { return err != nil }))
	require.True(t, r.Raised())
	_, err := r.Wait(t.Context(), recv)
	require.ErrorIs(t, err, engine.ErrProcFailedPending)
	_, err = b.Recv(t.Context(), recv, from(engine.AnySource, 2), nil)
	require.ErrorIs(t, err, engine.ErrProcFailedPending)
	require.ErrorIs(t, err, engine.ErrProcFailed)

	told.acked.Store(2)
	require.False(t, r.Raised())
	require.NoError(t, w.boxes[3].Send(t.Context(), send, from(0, 1), []byte{5}, engine.Standard))
	_, err = r.Wait(t.Context(), recv)
	require.NoError(t, err)
	require.Equal(t, byte(5), into[0])
	another.Cancel()
	_, err = another.Wait(t.Context(), recv)
	require.ErrorIs(t, err, engine.ErrCancelled)
	require.NoError(t, b.Idle())
}

// A connection that is lost for good, over which nothing is kept, is told, and does not
// end the job.
func TestLostConnectionIsTold(t *testing.T) {
	lost := make(chan int, 16)
	w := newWorld(t, engine.Config{Lost: func(process int, err error) { lost <- process }}, 1, 1)
	b := w.boxes[0]
	witnessed(b)
	require.NoError(t, b.Send(t.Context(), send, from(1, 1), nil, engine.Standard))
	_, err := w.boxes[1].Recv(t.Context(), recv, from(0, 1), nil)
	require.NoError(t, err)
	r := b.Irecv(from(1, 2), nil)
	w.engines[1].Close()
	require.Equal(t, 1, <-lost)
	require.False(t, r.Finished())
	w.engines[0].DeclareFailed(1)
	_, err = r.Wait(t.Context(), recv)
	require.ErrorIs(t, err, engine.ErrProcFailed)
}

func TestRevokeEndsWhatIsUnderWay(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		const collective, group, survivors, other = aContext + 1, aContext + 2, aContext + 3, aContext + 4
		told := witnessed(b)
		in := func(context uint32, tag int32) engine.Match {
			return engine.Match{Context: context, Peer: 0, Tag: tag}
		}
		require.NoError(t, a.Send(t.Context(), send, engine.Match{Context: aContext, Peer: 1, Tag: 50}, []byte{1}, engine.Standard))
		require.Eventually(t, func() bool { return len(b.Unreceived()) == 1 }, 20*time.Second, time.Millisecond)
		revoked := []engine.Request{
			b.Irecv(in(aContext, 1), nil),
			b.Irecv(engine.Match{Context: aContext, Peer: engine.AnySource, Tag: 2}, nil),
			b.Irecv(in(collective, 1), nil),
			b.Irecv(in(group, 1), nil),
			b.Isend(in(aContext, 1), make([]byte, 1<<20), engine.Standard),
			b.Isend(in(aContext, 1), nil, engine.Synchronous),
		}
		stay := []engine.Request{b.Irecv(in(survivors, 1), nil), b.Irecv(in(other, 1), nil)}
		a.Revoke(aContext, slices.Values([]topology.Rank{1}))
		for i, r := range revoked {
			_, err := r.Wait(t.Context(), recv)
			require.ErrorIs(t, err, engine.ErrRevoked, "request %d", i)
		}
		by, is := b.RevokedBy(aContext)
		require.True(t, is)
		require.EqualValues(t, 0, by)
		require.EqualValues(t, 1, told.revoked.Load())
		_, err := b.Recv(t.Context(), recv, in(aContext, 9), nil)
		require.ErrorIs(t, err, engine.ErrRevoked)
		require.ErrorIs(t, b.Send(t.Context(), send, in(aContext, 9), nil, engine.Synchronous), engine.ErrRevoked)
		for _, context := range []uint32{survivors, other} {
			require.NoError(t, a.Send(t.Context(), send, engine.Match{Context: context, Peer: 1, Tag: 1}, nil, engine.Standard))
		}
		for i, r := range stay {
			_, err := r.Wait(t.Context(), recv)
			require.NoError(t, err, "request %d on another context", i)
		}
		require.Empty(t, b.Unreceived())
	})
}

// Requests begun at the moment of a revocation end as well as others.
func TestRevokeWhileOthersBegin(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		for round := range uint32(100) {
			base := aContext + 4*round
			var all sync.WaitGroup
			for tag := range int32(4) {
				all.Go(func() {
					m := engine.Match{Context: base + uint32(tag)%3, Peer: 0, Tag: tag}
					var err error
					if tag%2 == 0 {
						_, err = b.Recv(ctx, recv, m, nil)
					} else {
						err = b.Send(ctx, send, m, make([]byte, 100<<10), engine.Synchronous)
					}
					if err == nil || ctx.Err() != nil {
						t.Errorf("round %d, tag %d: %v", round, tag, err)
					}
				})
			}
			a.Revoke(base, slices.Values([]topology.Rank{1}))
			all.Wait()
		}
	})
}

// What a process had sent before it died, and is here, is received, though nobody had looked at the connection yet. What it
// only offered is no message: it is found by no probe, and its receive ends.
func TestWhatIsHereOfAProcessThatHasFailed(t *testing.T) {
	w, b, _ := failingWorld(t)
	a := w.boxes[1]
	a.Isend(from(0, 1), []byte{1}, engine.Synchronous)
	require.Eventually(t, func() bool { _, ok := b.Iprobe(from(1, 1)); return ok }, 20*time.Second, time.Millisecond)
	require.NoError(t, a.Send(t.Context(), send, from(0, 2), []byte{2}, engine.Standard))
	w.engines[0].DeclareFailed(1)
	_, offered := b.Iprobe(from(1, 1))
	require.False(t, offered)
	_, err := b.Recv(t.Context(), recv, from(1, 1), make([]byte, 1))
	require.ErrorIs(t, err, engine.ErrProcFailed)
	got := make([]byte, 1)
	_, err = b.Recv(t.Context(), recv, from(1, 2), got)
	require.NoError(t, err)
	require.Equal(t, byte(2), got[0])
}
