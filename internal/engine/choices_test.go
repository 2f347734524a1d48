package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

// What a rank does again as it did before is recorded already: a rank that dies again and
// again would have more and more to do again.
func TestChoicesThatAreMadeAgainAreNotRecordedAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	var recorded []engine.Choice
	again := []engine.Choice{{Kind: engine.ChoseMessage, Index: 1, Source: 1, Seq: 1}, {Kind: engine.ChoseNothing, Index: 2}}
	w.boxes[0].Record(func(c engine.Choice) { recorded = append(recorded, c) }, again, 0, 0)

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
