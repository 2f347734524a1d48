package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
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
