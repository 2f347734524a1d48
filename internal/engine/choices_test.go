package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// What a rank does again as it did before is recorded already: a rank that dies again and
// again would have more and more to do again.
func TestChoicesThatAreMadeAgainAreNotRecordedAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	var recorded []engine.Choice
	again := []engine.Choice{{Kind: engine.ChoseMessage, Index: 1, Source: 1, Seq: 1}, {Kind: engine.ChoseNothing, Index: 2}}
	w.boxes[0].Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: again})

	anybody := engine.Match{Peer: engine.AnySource, Tag: 1}
	for range 2 {
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, []byte{1}, engine.Standard))
	}
	for range 2 {
		_, err := w.boxes[0].Irecv(anybody, make([]byte, 1)).Wait(t.Context(), recv)
		require.NoError(t, err)
	}
	require.Equal(t, []engine.Choice{{Kind: engine.ChoseMessage, Index: 2, Source: 1, Seq: 2}}, recorded)

	for range 3 {
		w.boxes[0].Decide()
		w.boxes[0].Chosen()
	}
	require.Equal(t, engine.Choice{Kind: engine.ChoseNothing, Index: 3}, recorded[1])
	require.Len(t, recorded, 2)
}

// Two goroutines of a rank receive, and one before the other than in the life before: a receive that so waits for a
// message that another call has had, or that is none for it, is told.
func TestReceivesInAnotherOrderAreReported(t *testing.T) {
	for name, tags := range map[string][2]int32{
		"another call has it": {1, 1},
		"it is for another":   {3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
			b := w.boxes[0]
			b.Record(engine.Recording{Record: func(engine.Choice) {}, Again: []engine.Choice{{Kind: engine.ChoseMessage, Index: 1, Source: 1, Seq: 1}}})
			for tag := range int32(2) {
				require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1 + 2*tag}, []byte{1}, engine.Standard))
			}
			exact := b.Irecv(engine.Match{Peer: 1, Tag: tags[0]}, make([]byte, 1))
			b.CheckOrder()
			_, err := exact.Wait(t.Context(), recv)
			require.NoError(t, err)
			anybody := b.Irecv(engine.Match{Peer: engine.AnySource, Tag: tags[1]}, make([]byte, 1))
			b.CheckOrder()
			_, err = anybody.Wait(t.Context(), recv)
			ne, ok := errors.AsType[*engine.NondeterminismError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, engine.NondeterminismError{Rank: 0, To: 1, Message: 1, Received: true}, *ne)
			require.ErrorContains(t, err, "message 1 of rank 1 is not there for the call that had it")
		})
	}
}

// In which order the goroutines of a rank do what is numbered apart makes no difference in the next life: receives
// that name their source, receives from any, and tasks.
func TestGoroutinesInAnotherOrder(t *testing.T) {
	any, named := engine.Match{Peer: engine.AnySource, Tag: 1}, engine.Match{Peer: 1, Tag: 3}
	var recorded []engine.Choice
	live := func(again []engine.Choice, order ...func(b *engine.Box) byte) (got []byte) {
		recorded = nil
		w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1, 1)
		b := w.boxes[0]
		b.Record(engine.Recording{Record: func(x engine.Choice) { recorded = append(recorded, x) }, Again: again})
		for _, from := range []int{1, 2, 1, 1} {
			require.NoError(t, w.boxes[from].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, []byte{byte(10*from + len(got))}, engine.Standard))
			got = append(got, 0)
		}
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 3}, []byte{99}, engine.Standard))
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 3}, []byte{98}, engine.Standard))
		got = nil
		for _, do := range order {
			got = append(got, do(b))
		}
		return got
	}
	receive := func(m engine.Match) func(b *engine.Box) byte {
		return func(b *engine.Box) byte {
			into := make([]byte, 1)
			_, err := b.Irecv(m, into).Wait(t.Context(), recv)
			require.NoError(t, err)
			return into[0]
		}
	}
	cancel := func(m engine.Match) func(b *engine.Box) byte {
		return func(b *engine.Box) byte {
			m.Tag = 7
			r := b.Irecv(m, make([]byte, 1))
			b.Cancel(r)
			_, err := r.Wait(t.Context(), recv)
			require.ErrorIs(t, err, engine.ErrCancelled)
			return 0
		}
	}
	task := func(b *engine.Box) byte {
		task, r := b.NewTask(ofTask)
		m := ofTask
		m.Peer = 1
		sent := b.Isend(m, []byte{1}, engine.Standard)
		_, err := sent.Wait(t.Context(), send)
		require.NoError(t, err)
		task.Finish(nil)
		_, err = r.Wait(t.Context(), send)
		require.NoError(t, err)
		return 0
	}
	ofAny, ofNamed := receive(any), receive(named)
	first := live(nil, cancel(any), ofAny, task, ofNamed, ofAny, cancel(named), ofNamed)
	again := recorded
	require.Len(t, again, 5)
	second := live(again, ofNamed, cancel(named), cancel(any), ofAny, ofAny, ofNamed, task)
	require.Empty(t, recorded, "all that was chosen was known")
	require.Equal(t, [][]byte{{first[1], first[4]}, {first[3], first[6]}}, [][]byte{{second[3], second[4]}, {second[0], second[5]}})
}

// A decision that takes its time is recorded as what it is, whatever another goroutine has decided
// meanwhile.
func TestADecisionKeepsItsNumber(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	recorded := make(chan engine.Choice, 10)
	b.Record(engine.Recording{Record: func(c engine.Choice) { recorded <- c }})
	found := make(chan error, 1)
	go func() {
		_, err := b.Probe(t.Context(), recv, engine.Match{Peer: engine.AnySource, Tag: 1})
		found <- err
	}()
	require.Eventually(t, func() bool { return b.Chosen()[engine.OfDecisions] == 1 }, 20*time.Second, time.Millisecond)
	for len(recorded) > 0 {
		<-recorded // that nothing had come of it
	}
	n, _, known := b.Decide()
	require.False(t, known)
	b.Decided(n, 0, 7)
	require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, []byte{1}, engine.Standard))
	require.NoError(t, <-found)
	require.Equal(t, engine.Choice{Kind: engine.ChoseOutcome, Index: 2, Seq: 7}, <-recorded)
	require.Equal(t, engine.Choice{Kind: engine.ChoseOutcome, Index: 1, Source: 1, Seq: 1}, <-recorded)
}

// A receive that was cancelled in an earlier life gets nothing in the next, which has the message
// where it was then; and one for which it was too late gets its message though it comes late.
func TestACancelledReceiveIsCancelledAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	var recorded []engine.Choice
	m := engine.Match{Peer: 1, Tag: 1}
	wish := engine.WishOf(m)
	again := []engine.Choice{{Kind: engine.ChoseCancel, Index: 1, Source: wish, Seq: 1}, {Kind: engine.ChoseCancel, Index: 2, Source: wish, Seq: 0}}
	b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: again})

	var requests []engine.Request
	into := make([][]byte, 3)
	for i := range into {
		into[i] = make([]byte, 1)
		requests = append(requests, b.Irecv(m, into[i]))
	}
	b.Cancel(requests[1])
	require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, []byte("a"), engine.Standard))
	_, err := requests[1].Wait(t.Context(), recv)
	require.NoError(t, err)
	require.Equal(t, "a", string(into[1]))
	b.Cancel(requests[0])
	_, err = requests[0].Wait(t.Context(), recv)
	require.ErrorIs(t, err, engine.ErrCancelled)
	require.Empty(t, recorded)

	b.Cancel(requests[2])
	_, err = requests[2].Wait(t.Context(), recv)
	require.ErrorIs(t, err, engine.ErrCancelled)
	require.Equal(t, []engine.Choice{{Kind: engine.ChoseCancel, Index: 3, Source: wish, Seq: 1}}, recorded)
}

// It is known by what it wants: goroutines of the rank that receive other messages may come sooner or later than then.
func TestACancelledReceiveIsKnownByWhatItWants(t *testing.T) {
	cancelled, other := engine.Match{Peer: 1, Tag: 7}, engine.Match{Peer: 1, Tag: 9}
	live := func(again []engine.Choice, order ...engine.Match) (recorded []engine.Choice) {
		w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
		b := w.boxes[0]
		b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: again})
		require.Equal(t, len(again) > 0, b.Replaying())
		requests := map[engine.Match]engine.Request{}
		for _, m := range order {
			requests[m] = b.Irecv(m, make([]byte, 1))
		}
		require.False(t, b.Replaying())
		b.Cancel(requests[cancelled])
		_, err := requests[cancelled].Wait(t.Context(), recv)
		require.ErrorIs(t, err, engine.ErrCancelled)
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 9}, []byte("a"), engine.Standard))
		_, err = requests[other].Wait(t.Context(), recv)
		require.NoError(t, err)
		return recorded
	}
	again := live(nil, cancelled, other)
	require.Len(t, again, 1)
	require.Empty(t, live(again, other, cancelled))
}

// Two wishes that are counted at one place are numbered apart all the same, whichever comes first, also after a snapshot.
func TestWishesOfOnePlaceAreNumberedApart(t *testing.T) {
	one, other := engine.Match{Context: 2, Peer: 0, Tag: 110}, engine.Match{Context: 2, Peer: 6, Tag: 0}
	const place = 31 - 12
	require.Equal(t, engine.WishOf(one)>>place, engine.WishOf(other)>>place)
	var recorded []engine.Choice
	live := func(c *engine.Capsule, again []engine.Choice, order ...engine.Match) *engine.Capsule {
		recorded = nil
		w := newWorld(t, engine.Config{Keep: true, Replay: true}, 7, 0)
		b, r := w.boxes[0], engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: again}
		if c != nil {
			var err error
			b, err = w.engines[1].Adopt(c, topology.Epoch(2), &r)
			require.NoError(t, err)
		} else {
			b.Record(r)
		}
		for _, m := range order {
			q := b.Irecv(m, nil)
			b.Cancel(q)
			_, err := q.Wait(t.Context(), recv)
			require.ErrorIs(t, err, engine.ErrCancelled)
		}
		require.False(t, b.Replaying())
		written, _, err := b.Capture()
		require.NoError(t, err)
		c, err = engine.ParseCapsule(written)
		require.NoError(t, err)
		return c
	}
	live(nil, nil, one, other, other)
	again := recorded
	c := live(nil, again, other, one, other)
	require.Empty(t, recorded, "all that was chosen was known")
	live(c, nil, other, one)
	again = recorded
	live(c, again, one, other)
	require.Empty(t, recorded, "all that was chosen was known")
}

// A receive whose ctx ends, and that had its message in the earlier life, waits for it: otherwise there would be one more.
// What that life has not come to yet is as ever; and so is all, where the rank does less than it did.
func TestAReceiveThatHadItsMessageWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
		b := w.boxes[0]
		m := engine.Match{Peer: 1, Tag: 7}
		var recorded []engine.Choice
		again := []engine.Choice{{Kind: engine.ChoseCancel, Index: 2, Source: engine.WishOf(m), Seq: 1}, {Kind: engine.ChoseNothing, Index: 3}}
		b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: again})
		get := func() error {
			soon, stop := context.WithTimeout(t.Context(), time.Millisecond)
			defer stop()
			_, err := b.Recv(soon, recv, m, make([]byte, 1))
			return err
		}
		sent := make(chan error, 1)
		go func() {
			time.Sleep(50 * time.Millisecond)
			sent <- w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 7}, []byte("a"), engine.Standard)
		}()
		require.NoError(t, get())
		require.NoError(t, <-sent)
		require.ErrorIs(t, get(), context.DeadlineExceeded, "it was cancelled then")
		require.Empty(t, recorded)
		require.True(t, b.Replaying(), "it has decided three times")
		for _, long := range []bool{true, false} { // and does not any more
			began := time.Now()
			require.ErrorIs(t, get(), context.DeadlineExceeded)
			require.Equal(t, long, time.Since(began) > time.Second)
		}
		require.Len(t, recorded, 2)
	})
}

// A rank that does less than it did, as there was less time, is one that goes on.
func TestWhatDoesNotComeAgainIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
		b := w.boxes[0]
		m := engine.Match{Peer: 1, Tag: 7}
		again := []engine.Choice{{Kind: engine.ChoseCancel, Index: 1, Source: engine.WishOf(m), Seq: 1}}
		b.Record(engine.Recording{Record: func(engine.Choice) {}, Again: again})
		require.True(t, b.Replaying())
		time.Sleep(time.Minute)
		require.False(t, b.Replaying())
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 7}, []byte("a"), engine.Standard))
		_, err := b.Recv(t.Context(), recv, m, make([]byte, 1))
		require.NoError(t, err)
	})
}

// A send that came back in an earlier life does not end before it is asked back again, short as
// its message may be; and one for which it was too late does not come back.
func TestASendComesBackAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	again := []engine.Choice{
		{Kind: engine.ChoseRetract, Index: uint32(engine.AskedInTime), Source: 1, Seq: 1},
		{Kind: engine.ChoseRetract, Index: uint32(engine.AskedTooLate), Source: 1, Seq: 2},
		{Kind: engine.ChoseOutcome, Index: 1, Seq: 1},
		{Kind: engine.ChoseOutcome, Index: 2, Seq: 1},
	}
	b.Record(engine.Recording{Record: func(c engine.Choice) { t.Errorf("recorded %v, which was known", c) }, Again: again})
	require.True(t, b.Replaying())
	first := b.Isend(engine.Match{Peer: 1, Tag: 1}, []byte("a"), engine.Standard)
	second := b.Isend(engine.Match{Peer: 1, Tag: 2}, []byte("b"), engine.Synchronous)
	_, done, err := first.Test()
	require.NoError(t, err)
	require.False(t, done)
	b.Cancel(first)
	_, err = first.Wait(t.Context(), send)
	require.ErrorIs(t, err, engine.ErrCancelled)
	b.Cancel(second)
	require.False(t, b.Replaying())
	into := make([]byte, 1)
	_, err = w.boxes[1].Recv(t.Context(), recv, engine.Match{Peer: 0, Tag: 2}, into)
	require.NoError(t, err)
	require.Equal(t, "b", string(into))
	_, err = second.Wait(t.Context(), send)
	require.NoError(t, err)
}

// What a rank gave back in an earlier life it gives back again when it comes, and no receive gets
// it; but the probe that had found it before does again.
func TestAMessageIsGivenBackAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	again := []engine.Choice{{Kind: engine.ChoseOutcome, Index: 1, Source: 1, Seq: 1}, {Kind: engine.ChoseReturn, Source: 1, Seq: 1}}
	b.Record(engine.Recording{Record: func(engine.Choice) {}, Again: again})

	sender := w.boxes[1]
	r := sender.Isend(engine.Match{Peer: 0, Tag: 1}, []byte("a"), engine.Synchronous)
	sender.Cancel(r)
	_, err := r.Wait(t.Context(), send)
	require.ErrorIs(t, err, engine.ErrCancelled)
	require.NoError(t, sender.Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, []byte("bc"), engine.Standard))

	st, found := b.Iprobe(engine.Match{Peer: engine.AnySource, Tag: 1})
	require.True(t, found)
	require.Equal(t, 1, st.Bytes)
	into := make([]byte, 2)
	_, err = b.Recv(t.Context(), recv, engine.Match{Peer: 1, Tag: engine.AnyTag}, into)
	require.NoError(t, err)
	require.Equal(t, "bc", string(into))
}

// A probe whose ctx ended does not find in the next life what came after that: else all later decisions would be others'.
func TestAProbeThatRanOutOfTimeDoesSoAgain(t *testing.T) {
	anybody := engine.Match{Peer: engine.AnySource, Tag: 1}
	live := func(again []engine.Choice) (recorded []engine.Choice) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
			b := w.boxes[0]
			b.Record(engine.Recording{Record: func(x engine.Choice) { recorded = append(recorded, x) }, Again: again})
			come := func() {
				require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, []byte{7}, engine.Standard))
			}
			if again != nil {
				come()
			}
			look := func() error {
				soon, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer stop()
				_, err := b.Probe(soon, recv, anybody)
				return err
			}
			require.ErrorIs(t, look(), context.DeadlineExceeded)
			if again == nil {
				come()
			}
			require.NoError(t, look())
			_, err := b.Recv(t.Context(), recv, anybody, make([]byte, 1))
			require.NoError(t, err)
			_, found := b.Iprobe(anybody)
			require.False(t, found)
			b.Chosen()
		})
		return recorded
	}
	again := live(nil)
	require.Len(t, again, 4)
	require.Empty(t, live(again))
}

// A rank that asks with a deadline fewer times than it did, as there was less time, and then waits, gets what it waited
// for then, and all after that.
func TestARankThatAsksFewerTimesGoesOn(t *testing.T) {
	for name, peer := range map[string]topology.Rank{"of one": 1, "of any": engine.AnySource} {
		t.Run(name, func(t *testing.T) {
			live := func(rounds int, again []engine.Choice) (recorded []engine.Choice) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
					b := w.boxes[0]
					m := engine.Match{Peer: peer, Tag: 7}
					b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: again})
					ask := func(rounds int) {
						for range rounds {
							soon, stop := context.WithTimeout(t.Context(), time.Millisecond)
							_, err := b.Recv(soon, recv, m, make([]byte, 1))
							require.ErrorIs(t, err, context.DeadlineExceeded)
							stop()
						}
					}
					ask(rounds)
					for i := range byte(2) {
						require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 7}, []byte{i}, engine.Standard))
					}
					for i := range byte(2) {
						into := []byte{9}
						_, err := b.Recv(t.Context(), recv, m, into)
						require.NoError(t, err)
						require.Equal(t, []byte{i}, into)
					}
					ask(1)
					require.False(t, b.Replaying())
				})
				return recorded
			}
			again := live(5, nil)
			require.Empty(t, live(3, again), "all that was chosen was known")
		})
	}
}
