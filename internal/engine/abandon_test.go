package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

const ofCalls = 17 // a context

func call(tag int32, peer topology.Rank) engine.Match {
	return engine.Match{Context: ofCalls, Tag: tag, Peer: peer, Check: 1}
}

// abandoned checks the error of a wait.
func abandoned(err error, by topology.Rank, cause string) error {
	if ae, ok := errors.AsType[*engine.AbandonedError](err); !ok || ae.By != by || ae.Cause != cause {
		return fmt.Errorf("error %v, want that rank %d abandoned it: %s", err, by, cause)
	}
	return nil
}

// What has come of an abandoned call was dropped. So a receive of it gets nothing that comes later, as that may
// be for the next: neither one that begins then, nor one that has begun, whether or not anybody waits for it.
func TestAnAbandonedCallReceivesNothing(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		begun := b.Irecv(call(1, 0), make([]byte, 1))
		matched := b.Irecv(call(2, 0), make([]byte, 1))
		for range 2 { // one is matched, one is dropped
			require.NoError(t, a.Send(t.Context(), send, call(2, 1), []byte{1}, engine.Standard))
		}
		b.Engine().Progress()
		for tag := range int32(2) {
			a.Abandon(call(1+tag, 1), "why", slices.Values([]topology.Rank{1}))
		}
		for tag := range int32(2) {
			require.NoError(t, a.Send(t.Context(), send, call(1+tag, 1), []byte{2}, engine.Standard))
		}
		require.Eventually(t, func() bool { b.Engine().Progress(); return b.Abandoned(ofCalls, 2) != nil }, 20*time.Second, time.Millisecond)
		require.NoError(t, a.Send(t.Context(), send, call(3, 1), []byte{3}, engine.Standard))
		_, err := b.Recv(t.Context(), recv, call(3, 0), make([]byte, 1))
		require.NoError(t, err, "all that was sent is here")
		_, err = begun.Wait(t.Context(), recv)
		require.NoError(t, abandoned(err, 0, "why"))
		_, err = matched.Wait(t.Context(), recv)
		require.NoError(t, err)
		for tag := range int32(2) {
			_, err = b.Irecv(call(1+tag, 0), make([]byte, 1)).Wait(t.Context(), recv)
			require.NoError(t, abandoned(err, 0, "why"))
		}
	})
}

// What waits for a message of an abandoned call ends, whether it began to wait
// before or after; other calls do not.
func TestAbandonEndsWaits(t *testing.T) {
	big := make([]byte, 1<<20)
	waits := map[string]func(b *engine.Box, tag int32) error{
		"a receive": func(b *engine.Box, tag int32) error {
			_, err := b.Recv(t.Context(), recv, call(tag, 0), make([]byte, 8))
			return err
		},
		"a send": func(b *engine.Box, tag int32) error {
			return b.Send(t.Context(), send, call(tag, 0), big, engine.Standard)
		},
		"a send to oneself": func(b *engine.Box, tag int32) error {
			return b.Send(t.Context(), send, call(tag, 1), big, engine.Standard)
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
				for tag, pause := range []time.Duration{5 * time.Millisecond, 0} {
					ended := make(chan error, 1)
					var other engine.Request
					if pause == 0 {
						a.Abandon(call(int32(tag), 1), "why", slices.Values([]topology.Rank{1}))
						require.Eventually(t, func() bool { return b.Abandoned(ofCalls, int32(tag)) != nil }, 20*time.Second, time.Millisecond)
					} else {
						other = b.Irecv(call(100, 0), make([]byte, 1))
					}
					go func() { ended <- wait(b, int32(tag)) }()
					time.Sleep(pause)
					a.Abandon(call(int32(tag), 1), "why", slices.Values([]topology.Rank{1}))
					select {
					case err := <-ended:
						require.NoError(t, abandoned(err, 0, "why"))
					case <-time.After(20 * time.Second):
						t.Fatalf("the wait for tag %d goes on", tag)
					}
					if !other.Null() {
						require.NoError(t, a.Send(t.Context(), send, call(100, 1), []byte{1}, engine.Standard))
						_, err := other.Wait(t.Context(), recv)
						require.NoError(t, err)
					}
				}
				require.Empty(t, b.Waits())
			})
		})
	}
}

// A receive whose body is on its way does not end before all of it is here: a
// buffer that was given back would still be written to.
func TestAbandonedReceiveUnderWayKeepsItsBuffer(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Stepped: true}, 1, 1)
	a, b := w.boxes[0], w.boxes[1]
	body := pattern(1<<20, 1)
	sent := a.Isend(call(1, 1), body, engine.Standard)
	require.Eventually(t, func() bool { // until the offer is there, and who has connected a does not poll it any more
		a.Engine().Progress()
		_, ok := b.Iprobe(call(1, 0))
		links := w.fabrics[0].Links()
		return ok && len(links) == 1 && links[0].InUse >= 0
	}, 20*time.Second, time.Millisecond)
	into := make([]byte, len(body))
	ended := make(chan error, 1)
	go func() {
		_, err := b.Recv(t.Context(), recv, call(1, 0), into)
		ended <- err
	}()
	require.Eventually(t, func() bool { return len(b.Waits()) > 0 }, 20*time.Second, time.Millisecond)
	a.Abandon(call(1, 1), "why", slices.Values([]topology.Rank{1}))
	require.Eventually(t, func() bool { // a is not polled, so it sends no part
		b.Engine().Progress()
		return b.Abandoned(ofCalls, 1) != nil
	}, 20*time.Second, time.Millisecond)
	select {
	case err := <-ended:
		t.Fatalf("the receive ended with %v and its body is on its way", err)
	case <-time.After(20 * time.Millisecond):
	}
	require.Eventually(t, func() bool {
		a.Engine().Progress()
		b.Engine().Progress()
		return sent.Finished()
	}, 20*time.Second, time.Millisecond)
	require.NoError(t, <-ended)
	require.Equal(t, body, into)
}

// Only the first to abandon a call says so.
func TestFirstAbandonerIsHeard(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		a.Abandon(call(1, 0), "first", slices.Values([]topology.Rank{1}))
		require.Eventually(t, func() bool { return b.Abandoned(ofCalls, 1) != nil }, 20*time.Second, time.Millisecond)
		sent, _, _ := b.Counts()
		b.Abandon(call(1, 0), "second", slices.Values([]topology.Rank{0}))
		again, _, _ := b.Counts()
		require.Equal(t, sent, again, "it sent messages")
		require.NoError(t, abandoned(a.Abandoned(ofCalls, 1), 0, "first"))
		require.NoError(t, abandoned(b.Abandoned(ofCalls, 1), 0, "first"))
	})
}

// Messages of an abandoned call do not stay, even if they come after the news.
func TestMessagesOfAbandonedCallsGo(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		for _, tag := range []int32{1, 2, 3} {
			require.NoError(t, a.Send(t.Context(), send, call(tag, 1), make([]byte, 1000), engine.Standard))
		}
		a.Abandon(call(1, 1), "why", slices.Values([]topology.Rank{1}))
		require.NoError(t, a.Send(t.Context(), send, call(1, 1), make([]byte, 1000), engine.Standard))
		a.Abandon(call(2, 1), "why", slices.Values([]topology.Rank{1}))
		require.Eventually(t, func() bool { return b.Abandoned(ofCalls, 2) != nil }, 20*time.Second, time.Millisecond)
		require.Equal(t, []engine.Match{{Context: ofCalls, Tag: 3, Check: 1}}, b.Unreceived())
	})
}

// What a box remembers has a bound.
func TestOldAbandonedCallsAreForgotten(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		const calls = 1000
		for tag := range int32(calls) {
			a.Abandon(call(tag, 1), fmt.Sprint(tag, strings.Repeat(" long", 1000)), slices.Values([]topology.Rank{1}))
		}
		require.Eventually(t, func() bool { return b.Abandoned(ofCalls, calls-1) != nil }, 20*time.Second, time.Millisecond)
		kept := 0
		for tag := range int32(calls) {
			if why := b.Abandoned(ofCalls, tag); why != nil {
				kept++
				require.Less(t, len(why.Cause), 2000)
			}
		}
		require.Equal(t, 256, kept)
	})
}

// Calls in a row that are given up for the same cause are remembered, however many.
func TestManyAbandonedCallsAreRemembered(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		const calls = 1000
		for tag := range int32(calls) {
			a.Abandon(call(tag, 1), "enough", slices.Values([]topology.Rank{1}))
		}
		require.Eventually(t, func() bool { return b.Abandoned(ofCalls, calls-1) != nil }, 20*time.Second, time.Millisecond)
		for tag := range int32(calls) {
			require.NoError(t, abandoned(b.Abandoned(ofCalls, tag), 0, "enough"))
		}
		require.Nil(t, b.Abandoned(ofCalls, calls))
		require.Nil(t, b.Abandoned(ofCalls, -1))
	})
}

// A rank that goes on elsewhere knows of what was given up, and of what was revoked.
func TestWhatWasAbandonedIsKnownElsewhere(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 1, 1, 0)
	a, b := w.boxes[0], w.boxes[1]
	peers := slices.Values([]topology.Rank{1})
	a.Abandon(call(1, 1), "why", peers)
	a.Abandon(call(2, 1), "why", peers)
	a.Abandon(call(5, 1), "", peers)
	a.Revoke(64, peers)
	a.Revoke(32, peers)
	require.Eventually(t, func() bool { _, is := b.RevokedBy(32); return is }, 20*time.Second, time.Millisecond)
	capsule, err := b.Depart(t.Context(), 2, 2)
	require.NoError(t, err)
	c, err := engine.ParseCapsule(capsule)
	require.NoError(t, err)
	there, err := w.engines[2].Adopt(c, 2, nil)
	require.NoError(t, err)
	for tag, cause := range map[int32]string{1: "why", 2: "why", 5: ""} {
		require.NoError(t, abandoned(there.Abandoned(ofCalls, tag), 0, cause))
	}
	require.Nil(t, there.Abandoned(ofCalls, 3))
	for _, base := range []uint32{32, 64} {
		by, is := there.RevokedBy(base)
		require.True(t, is)
		require.Zero(t, by)
	}
	var alarm atomic.Bool
	there.Alarm(&alarm)
	require.True(t, alarm.Load())
}

// Two ranks of one process are lost with it, and go on in two. What one had said to the other is
// in its log, with a number, and comes again.
func TestNoticesWithinAProcessAreKept(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 2, 0, 0)
	a := w.boxes[0]
	a.Abandon(call(1, 1), "why", slices.Values([]topology.Rank{1}))
	a.Revoke(64, slices.Values([]topology.Rank{1}))
	require.NoError(t, a.Send(t.Context(), send, engine.Match{Peer: 1}, []byte("after"), engine.Standard))
	later, _, err := a.Capture() // b goes on from its beginning
	require.NoError(t, err)
	c, err := engine.ParseCapsule(later)
	require.NoError(t, err)
	lost := []engine.Placement{{Rank: 0, Process: 1, Lost: true}, {Rank: 1, Process: 2, Lost: true}}
	w.fabrics[1].Fence(0)
	w.fabrics[2].Fence(0)
	_, err = w.engines[1].Adopt(c, 2, nil, lost[1])
	require.NoError(t, err)
	b, err := w.engines[2].Adopt(&engine.Capsule{Rank: 1}, 2, nil, lost[0])
	require.NoError(t, err)
	buf := make([]byte, 5)
	_, err = b.Recv(t.Context(), recv, engine.Match{Peer: 0}, buf)
	require.NoError(t, err)
	require.Equal(t, "after", string(buf))
	require.NoError(t, abandoned(b.Abandoned(ofCalls, 1), 0, "why"))
	_, revoked := b.RevokedBy(64)
	require.True(t, revoked)
	_, received, _ := b.Counts()
	require.Equal(t, uint64(3), received[0].N)
}

// Who has given up a call, or has revoked a communicator, has nothing under way when others know:
// it may be saved, and move.
func TestWhoHasAbandonedIsIdle(t *testing.T) {
	for name, replay := range map[string]bool{"moves": false, "crashes": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true, Replay: replay}, 1, 1)
			a, b := w.boxes[0], w.boxes[1]
			peers := slices.Values([]topology.Rank{1})
			a.Abandon(call(1, 1), strings.Repeat("why ", 100), peers)
			a.Revoke(64, peers)
			require.Eventually(t, func() bool {
				w.engines[0].Progress()
				w.engines[1].Progress()
				_, revoked := b.RevokedBy(64)
				return revoked && b.Abandoned(ofCalls, 1) != nil
			}, 20*time.Second, time.Millisecond)
			require.NoError(t, a.Idle())
			require.NoError(t, b.Idle())
		})
	}
}

// The news is numbered and logged as messages are: it is not lost when the
// connection is.
func TestAbandonSurvivesCuts(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 1, 1)
	a, b := w.boxes[0], w.boxes[1]
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	cuts := 0
	var both sync.WaitGroup
	both.Go(func() {
		for tag := range int32(100) {
			a.Abandon(call(tag, 1), "why", slices.Values([]topology.Rank{1}))
			if tag%10 == 5 && w.network.Cut(func(n int) int { return 0 }) {
				cuts++
			}
			if err := a.Send(ctx, send, call(tag+1000, 1), nil, engine.Standard); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for tag := range int32(100) {
		_, err := b.Recv(ctx, recv, call(tag, 0), make([]byte, 8))
		require.NoError(t, abandoned(err, 0, "why"))
		_, err = b.Recv(ctx, recv, call(tag+1000, 0), nil)
		require.NoError(t, err)
	}
	both.Wait()
	require.Greater(t, cuts, 3)
}
