package engine_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// slow is ep, whose connections deliver nothing while closed.
func slow(ep transport.Endpoint, closed *atomic.Bool) transport.Endpoint {
	return wrapped{ep, func(c transport.Conn) transport.Conn { return slowConn{c, closed} }}
}

type slowConn struct {
	transport.Conn
	closed *atomic.Bool
}

func (c slowConn) Poll(in transport.Receiver) (bool, error) {
	if c.closed.Load() {
		return false, nil
	}
	return c.Conn.Poll(in)
}

// newDeafWorld is of processes with that many ranks each, of which the first two are
// connected. The second receives nothing while deaf.
func newDeafWorld(t *testing.T, ranks ...int) (w *world, deaf *atomic.Bool) {
	deaf = new(atomic.Bool)
	w = newWorldOn(t, engine.Config{Keep: true}, func(p int) transport.Endpoint {
		ep := networks["tcp"](t, p)
		if p == 1 {
			return slow(ep, deaf)
		}
		return ep
	}, ranks...)
	require.NoError(t, w.boxes[0].Send(t.Context(), send, from(1, 1), nil, engine.Standard))
	_, err := w.boxes[1].Recv(t.Context(), recv, from(0, 1), nil)
	require.NoError(t, err)
	deaf.Store(true)
	return w, deaf
}

// What is on its way needs nobody's help: whoever waits for it is not waiting for what the
// peer does.
func TestWhatIsOnItsWay(t *testing.T) {
	for _, c := range []struct {
		name   string
		size   int
		mode   engine.Mode
		before int // messages that fill the path
		want   bool
	}{
		{"eager, and the path is full", 64 << 10, engine.Standard, 256, true},
		{"offered", 1 << 20, engine.Standard, 0, false},
		{"synchronous", 8, engine.Synchronous, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, deaf := newDeafWorld(t, 1, 1)
			var before []engine.Request
			for range c.before {
				before = append(before, w.boxes[0].Isend(from(1, 1), make([]byte, c.size), engine.Standard))
			}
			r := w.boxes[0].Isend(from(1, 2), make([]byte, c.size), c.mode)
			done := make(chan error, 1)
			go func() {
				_, err := r.Wait(t.Context(), send)
				done <- err
			}()
			var needs []engine.NeedInfo
			require.Eventually(t, func() bool {
				for _, wait := range w.boxes[0].Waits() {
					needs = wait.Needs
				}
				return needs != nil
			}, 20*time.Second, time.Millisecond)
			require.Len(t, needs, 1)
			require.True(t, needs[0].Receive)
			require.Equal(t, c.want, needs[0].OnItsWay)
			deaf.Store(false)
			for range before {
				_, err := w.boxes[1].Recv(t.Context(), recv, from(0, 1), make([]byte, c.size))
				require.NoError(t, err)
			}
			_, err := w.boxes[1].Recv(t.Context(), recv, from(0, 2), make([]byte, c.size))
			require.NoError(t, err)
			for _, b := range before {
				_, err := b.Wait(t.Context(), send)
				require.NoError(t, err)
			}
			require.NoError(t, <-done)
		})
	}
}

// A send that only waits for its message to be stable, as its buffer is lent to the log, is
// done when its sender would sleep: a receiver that computes holds up nobody.
func TestNobodySleepsForABuffer(t *testing.T) {
	w, deaf := newDeafWorld(t, 1, 1)
	const size = 64 << 10
	bodies, requests := make([][]byte, 3), make([]engine.Request, 3)
	for i := range bodies {
		bodies[i] = bytes.Repeat([]byte{byte(i + 1)}, size)
		requests[i] = w.boxes[0].Isend(from(1, 2), bodies[i], engine.Standard)
	}
	for i, r := range requests {
		_, err := r.Wait(t.Context(), send)
		require.NoError(t, err)
		clear(bodies[i])
	}
	deaf.Store(false)
	for i := range bodies {
		got := make([]byte, size)
		_, err := w.boxes[1].Recv(t.Context(), recv, from(0, 2), got)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, size), got)
	}
}

// A message that is offered is told of by its number until a receive has it, also while its body is on
// its way.
func TestOffered(t *testing.T) {
	w := newWorldOn(t, engine.Config{Keep: true}, func(p int) transport.Endpoint { return networks["tcp"](t, p) }, 1, 1)
	const size, messages = 16 << 20, 4
	var sends []engine.Request
	for tag := range int32(messages) {
		sends = append(sends, w.boxes[0].Isend(from(1, tag), make([]byte, size), engine.Standard))
	}
	offered := func() []engine.Numbers {
		w.engines[1].Progress()
		_, _, all := w.boxes[1].Counts()
		return all
	}
	require.Eventually(t, func() bool {
		return slices.Equal(offered(), []engine.Numbers{{Peer: 0, First: 1, Last: messages}})
	}, 20*time.Second, time.Millisecond)
	r := w.boxes[1].Irecv(from(0, 1), make([]byte, size))
	require.Equal(t, []engine.Numbers{{Peer: 0, First: 1, Last: 1}, {Peer: 0, First: 3, Last: messages}}, offered())
	_, err := r.Wait(t.Context(), recv)
	require.NoError(t, err)
	for _, tag := range []int32{0, 2, 3} {
		_, err := w.boxes[1].Recv(t.Context(), recv, from(0, tag), make([]byte, size))
		require.NoError(t, err)
	}
	require.Empty(t, offered())
	for _, s := range sends {
		_, err := s.Wait(t.Context(), send)
		require.NoError(t, err)
	}
}

// A call that waits for any of several needs nobody's help while the message of one is on its way, whoever that is from.
func TestAnyOfWhichOneIsOnItsWay(t *testing.T) {
	for _, source := range []engine.Match{from(0, 2), from(engine.AnySource, 2)} {
		w, deaf := newDeafWorld(t, 1, 1)
		deaf.Store(false)
		const size = 1 << 20
		s := w.boxes[0].Isend(from(1, 2), make([]byte, size), engine.Standard)
		require.Eventually(t, func() bool {
			w.engines[1].Progress()
			_, _, offered := w.boxes[1].Counts()
			return len(offered) == 1
		}, 20*time.Second, time.Millisecond)
		deaf.Store(true)
		rs := []engine.Request{w.boxes[1].Irecv(from(0, 9), nil), w.boxes[1].Irecv(source, make([]byte, size))}
		done := make(chan int, 1)
		go func() {
			i, _ := engine.WaitAny(t.Context(), recv, rs)
			done <- i
		}()
		var wait []engine.WaitInfo
		require.Eventually(t, func() bool {
			wait = w.boxes[1].Waits()
			return len(wait) == 1
		}, 20*time.Second, time.Millisecond)
		onItsWay := len(wait[0].Needs) == 0 || slices.ContainsFunc(wait[0].Needs, func(n engine.NeedInfo) bool { return n.OnItsWay })
		require.True(t, onItsWay, "%+v", wait[0].Needs)
		deaf.Store(false)
		_, err := s.Wait(t.Context(), send)
		require.NoError(t, err)
		require.Equal(t, 1, <-done)
		_, err = rs[1].Wait(t.Context(), recv)
		require.NoError(t, err)
		rs[0].Cancel()
		_, err = rs[0].Wait(t.Context(), recv)
		require.ErrorIs(t, err, engine.ErrCancelled)
	}
}

// Who sends to a receive from any source is of the context's ranks.
func TestContextRanks(t *testing.T) {
	w := newWorld(t, engine.Config{}, 1, 1, 1)
	b := w.boxes[0]
	b.ContextRanks(8, []topology.Rank{0, 2})
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, context := range []uint32{8, 12} {
		all.Go(func() { b.Recv(ctx, recv, engine.Match{Context: context, Peer: engine.AnySource}, nil) })
	}
	require.Eventually(t, func() bool { return len(b.Waits()) == 2 }, 20*time.Second, time.Millisecond)
	for _, wait := range b.Waits() {
		require.Equal(t, wait.Needs[0].Context == 8, wait.Needs[0].Of != nil)
	}
	b.ForgetContext(8)
	require.Nil(t, b.Waits()[0].Needs[0].Of)
}
