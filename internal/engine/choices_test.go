package engine_test

import (
	"testing"
	"time"

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

// A decision that takes its time is recorded as what it is, whatever another goroutine has decided
// meanwhile.
func TestADecisionKeepsItsNumber(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	recorded := make(chan engine.Choice, 10)
	b.Record(func(c engine.Choice) { recorded <- c }, nil, 0, 0)
	found := make(chan error, 1)
	go func() {
		_, err := b.Probe(t.Context(), recv, engine.Match{Peer: engine.AnySource, Tag: 1})
		found <- err
	}()
	require.Eventually(t, func() bool { _, polls := b.Chosen(); return polls == 1 }, 5*time.Second, time.Millisecond)
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
