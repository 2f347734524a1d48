package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// A rank goes on from a snapshot, and a peer wants the body of a message again that it has
// sent in a life before. It leaves before all of it is sent: the rest comes from where it
// is then, over a new connection.
func TestARankLeavesWhileABodyOfItsIsHalfSent(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1, 0)
	r := w.boxes[1].Irecv(engine.Match{Peer: 0, Tag: 1}, make([]byte, 1))
	require.NoError(t, w.boxes[0].Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, []byte{1}, engine.Standard))
	_, err := r.Wait(t.Context(), recv)
	require.NoError(t, err)
	e := w.engines[0]
	d, err := w.boxes[0].BeginDepart()
	require.NoError(t, err)
	body := pattern(1<<20, 0)
	e.Accepted(0, 1, body)
	before := e.Link(1).Generation
	capsule, err := d.End(2, 2)
	require.NoError(t, err)
	if now := e.Link(1); now.Conn != nil {
		require.Greater(t, now.Generation, before)
	}
	e.Ping(1, 0) // sends what is due
	c, err := engine.ParseCapsule(capsule)
	require.NoError(t, err)
	require.Len(t, c.Streams[0].Log, 1)
	require.Equal(t, body, c.Streams[0].Log[0].Body)
}

// A rank moves out of the process of another, which has sent it what it has not received.
func TestARankMovesWhileAnotherOfItsProcessSendsToIt(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 2, 0)
	sent := w.boxes[0].Isend(from(1, 2), pattern(100, 0), engine.Synchronous)
	capsule, err := w.boxes[1].Depart(t.Context(), 1, 2)
	require.NoError(t, err)
	c, err := engine.ParseCapsule(capsule)
	require.NoError(t, err)
	there, err := w.engines[1].Adopt(c, 2, nil)
	require.NoError(t, err)
	w.engines[0].Place(2, engine.Placement{Rank: 1, Process: 1})
	got := make([]byte, 100)
	_, err = there.Recv(t.Context(), recv, from(0, 2), got)
	require.NoError(t, err)
	require.Equal(t, pattern(100, 0), got)
	_, err = sent.Wait(t.Context(), send)
	require.NoError(t, err)
}

// A rank moves while the connection has bodies for it that are lent. Their senders get the
// buffers back when the log has a copy, and what they do with them goes nowhere.
func TestARankMovesWhileBodiesForItAreLent(t *testing.T) {
	w, deaf := newDeafWorld(t, 1, 1, 0)
	const size = 64 << 10
	var bodies [][]byte
	var requests []engine.Request
	staysLent := func() bool { // the kernel takes more once it knows that what it had has arrived
		for end := time.Now().Add(20 * time.Millisecond); w.engines[0].Lent(1); w.engines[0].Progress() {
			if time.Now().After(end) {
				return true
			}
		}
		return false
	}
	for n := 0; !staysLent(); n++ {
		bodies = append(bodies, pattern(size, n))
		requests = append(requests, w.boxes[0].Isend(from(1, 2), bodies[n], engine.Standard))
	}
	before := w.engines[0].Link(1).Generation
	capsule, err := w.boxes[1].Depart(t.Context(), 2, 2)
	require.NoError(t, err)
	c, err := engine.ParseCapsule(capsule)
	require.NoError(t, err)
	there, err := w.engines[2].Adopt(c, 2, nil)
	require.NoError(t, err)
	moved := engine.Placement{Rank: 1, Process: 2}
	w.engines[1].Place(2, moved)
	w.engines[0].Place(2, moved)
	if now := w.engines[0].Link(1); now.Conn != nil {
		require.Greater(t, now.Generation, before, "the connection that has the bodies")
	}
	deaf.Store(false)
	got := make(chan error, 1)
	go func() {
		for i := range requests {
			body := make([]byte, size)
			if _, err := there.Recv(t.Context(), recv, from(0, 2), body); err != nil {
				got <- err
				return
			}
			if !bytes.Equal(body, pattern(size, i)) {
				got <- fmt.Errorf("message %d is not what was sent", i)
				return
			}
		}
		got <- nil
	}()
	for i, r := range requests {
		_, err := r.Wait(t.Context(), send)
		require.NoError(t, err)
		clear(bodies[i])
	}
	require.NoError(t, <-got)
}

// A rank moves, and a probe takes a message there whose body is with its sender yet, and which has to be offered again: as it
// is, before it is received.
func TestAProbeTakesWhatHasToBeOfferedAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 1, 1, 0)
	body := pattern(100, 0)
	sent := w.boxes[0].Isend(from(1, 2), body, engine.Synchronous)
	_, err := w.boxes[1].Probe(t.Context(), recv, from(0, 2))
	require.NoError(t, err)
	capsule, err := w.boxes[1].Depart(t.Context(), 2, 2)
	require.NoError(t, err)
	c, err := engine.ParseCapsule(capsule)
	require.NoError(t, err)
	there, err := w.engines[2].Adopt(c, 2, nil)
	require.NoError(t, err)
	m, _, err := there.Mprobe(t.Context(), recv, from(0, 2))
	require.NoError(t, err)
	moved := engine.Placement{Rank: 1, Process: 2}
	w.engines[1].Place(2, moved)
	w.engines[0].Place(2, moved)
	// What comes behind the offer is here when that is, too.
	require.NoError(t, w.boxes[0].Send(t.Context(), send, from(1, 3), nil, engine.Standard))
	_, err = there.Recv(t.Context(), recv, from(0, 3), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	got := make([]byte, len(body))
	r, ok := m.Irecv(got)
	require.True(t, ok)
	done := make(chan error, 1)
	go func() { _, err := r.Wait(t.Context(), recv); done <- err }()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	require.NoError(t, err)
	require.Equal(t, body, got)
	_, err = sent.Wait(t.Context(), send)
	require.NoError(t, err)
}

// Two ranks leave a process at once, which is connected to none of those that take them. Each comes over a connection
// that is made before anybody is told the other's map.
func TestRanksLeaveAtOnceForWhoIsNotConnected(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 2, 0, 0)
	for r, to := range []int{1, 2} {
		_, err := w.boxes[r].Depart(t.Context(), to, topology.Epoch(2+r))
		require.NoError(t, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	for to := 1; to <= 2; to++ {
		require.Nil(t, w.engines[0].Link(to).Conn)
		w.engines[to].Box(w.engines[to].Envoy(to)).Irecv(engine.Match{Peer: w.engines[to].Envoy(0), Tag: 1}, make([]byte, 1))
		m := engine.Match{Peer: w.engines[0].Envoy(to), Tag: 1}
		require.NoError(t, w.engines[0].Box(w.engines[0].Envoy(0)).Send(ctx, send, m, []byte{1}, engine.Synchronous))
	}
}
