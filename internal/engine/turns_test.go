package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

var (
	ofTask    = engine.Match{Peer: 1, Context: 2, Tag: 5, Check: 1}
	ofProgram = engine.Match{Peer: 1, Tag: 7}
)

// While a task is under way it is recorded whose turn it is to send; before that, and when
// the program has ended it, a program's order is its own.
func TestTurnsAreRecorded(t *testing.T) {
	for name, ranks := range map[string][]int{"in one process": {2}, "in two processes": {1, 1}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true, Replay: true}, ranks...)
			b := w.boxes[0]
			var recorded []engine.Choice
			b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }})
			sends := func(m engine.Match) {
				require.NoError(t, b.Send(t.Context(), send, m, []byte{1}, engine.Standard))
			}

			sends(ofProgram)
			require.Empty(t, recorded)
			b.Irecv(ofProgram, nil) // has a number of another series
			task, r := b.NewTask(ofTask)
			sends(ofTask)
			sends(ofProgram)
			_, err := b.Isend(ofTask, []byte{1}, engine.Standard).Wait(t.Context(), send)
			require.NoError(t, err)
			task.Finish(nil)
			sends(ofProgram) // the program does not know that it is finished
			require.Equal(t, []engine.Choice{
				{Kind: engine.ChoseTask, Index: 1, Source: 1, Seq: 2},
				{Kind: engine.ChoseProgram, Source: 1, Seq: 3},
				{Kind: engine.ChoseTask, Index: 1, Source: 1, Seq: 4},
				{Kind: engine.ChoseProgram, Source: 1, Seq: 5},
			}, recorded)
			_, err = r.Wait(t.Context(), send)
			require.NoError(t, err)
			sends(ofProgram)
			require.Len(t, recorded, 4)
		})
	}
}

// In the next life each waits for its turn, and says so; what was not recorded any more is
// free, and recorded.
func TestTurnsAreTakenAgain(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	var recorded []engine.Choice
	b.Record(engine.Recording{Record: func(c engine.Choice) { recorded = append(recorded, c) }, Again: []engine.Choice{
		{Kind: engine.ChoseTask, Index: 1, Source: 1, Seq: 1},
		{Kind: engine.ChoseProgram, Source: 1, Seq: 2},
		{Kind: engine.ChoseTask, Index: 1, Source: 1, Seq: 3},
	}})
	require.True(t, b.Replaying())
	task, r := b.NewTask(ofTask)
	require.False(t, b.HasTurn(ofProgram))
	require.True(t, b.HasTurn(ofTask))
	programs := make(chan error, 1)
	go func() {
		for range 2 {
			if err := b.Send(t.Context(), send, ofProgram, []byte{1}, engine.Standard); err != nil {
				programs <- err
				return
			}
		}
		programs <- nil
	}()
	waits := func() bool {
		all := b.Waits()
		return len(all) == 1 && len(all[0].Needs) == 1 && all[0].Needs[0].Turn && all[0].Needs[0].Peer == 1
	}
	require.Eventually(t, waits, 20*time.Second, time.Millisecond)
	for range 2 {
		require.NoError(t, b.Send(t.Context(), send, ofTask, []byte{1}, engine.Standard))
	}
	require.NoError(t, <-programs)
	require.False(t, b.Replaying())
	require.Equal(t, []engine.Choice{{Kind: engine.ChoseProgram, Source: 1, Seq: 4}}, recorded)
	task.Finish(nil)
	_, err := r.Wait(t.Context(), send)
	require.NoError(t, err)

	var numbers []uint64
	for _, m := range []engine.Match{ofTask, ofProgram, ofTask, ofProgram} {
		m.Peer = 0
		r, bin := w.boxes[1].Irecv(m, make([]byte, 1)), engine.Bin{}
		_, err := r.WaitBin(t.Context(), recv, &bin)
		require.NoError(t, err)
		numbers = append(numbers, r.Number())
		bin.Empty()
	}
	require.Equal(t, []uint64{1, 2, 3, 4}, numbers)
}

// A task that ends without a message that it had sent is another, and those who wait for
// their turn after it do not wait for ever.
func TestATaskThatSendsLessIsReported(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true, Replay: true}, 1, 1)
	b := w.boxes[0]
	b.Record(engine.Recording{Record: func(engine.Choice) {}, Again: []engine.Choice{{Kind: engine.ChoseTask, Index: 1, Source: 1, Seq: 1}}})
	task, r := b.NewTask(ofTask)
	programs := make(chan error, 1)
	go func() { programs <- b.Send(t.Context(), send, ofProgram, []byte{1}, engine.Synchronous) }()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(b.Waits(), func(w engine.WaitInfo) bool { return w.Needs[0].Turn })
	},
		20*time.Second, time.Millisecond)
	task.Finish(nil)
	_, err := r.Wait(t.Context(), send)
	require.NoError(t, err)
	var ne *engine.NondeterminismError
	require.ErrorAs(t, <-programs, &ne)
	require.Equal(t, engine.NondeterminismError{Rank: 0, To: 1, Message: 1}, *ne)
}
