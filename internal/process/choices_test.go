package process

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/witness"
)

func message(index uint32, seq, after uint64) checkpoint.Determinant {
	return determinantOf(engine.Choice{Kind: engine.ChoseMessage, Index: index, Source: 1, Seq: seq}, after)
}

func outcome(index uint32, seq, after uint64) checkpoint.Determinant {
	return determinantOf(engine.Choice{Kind: engine.ChoseOutcome, Index: index, Seq: seq}, after)
}

func cancel(index uint32, after uint64) checkpoint.Determinant {
	return determinantOf(engine.Choice{Kind: engine.ChoseCancel, Index: index, Source: 77, Seq: 1}, after)
}

func retract(seq, after uint64) checkpoint.Determinant {
	return determinantOf(engine.Choice{Kind: engine.ChoseRetract, Index: uint32(engine.AskedInTime), Source: 1, Seq: seq}, after)
}

// mark is of a snapshot before which there were so many receives from any source, and decisions; and two tasks more.
func mark(number uint64, receives, decisions uint32) checkpoint.Determinant {
	var n engine.Counts
	n[engine.OfAny], n[engine.OfDecisions], n[engine.OfTasks] = receives, decisions, receives+2
	return markOf(number, n)
}

func choicesOf(posts, polls map[uint32]uint64) map[engine.Choice]bool {
	all := map[engine.Choice]bool{}
	for i, seq := range posts {
		all[engine.Choice{Kind: engine.ChoseMessage, Index: i, Source: 1, Seq: seq}] = true
	}
	for i, seq := range polls {
		all[engine.Choice{Kind: engine.ChoseOutcome, Index: i, Seq: seq}] = true
	}
	return all
}

// Choices after a later snapshot are numbered on from those before it, however old the
// snapshot is from which the rank goes on.
func TestChoicesSince(t *testing.T) {
	all := []checkpoint.Determinant{
		message(1, 11, 4), outcome(2, 12, 4),
		mark(5, 3, 7), // two receives more than were recorded, and five decisions
		message(1, 21, 5), outcome(1, 22, 5),
		mark(6, 1, 1),
		message(2, 31, 6),
	}
	for _, c := range []struct {
		name         string
		number       uint64
		posts, polls map[uint32]uint64
	}{
		{"the oldest", 4, map[uint32]uint64{1: 11, 4: 21, 6: 31}, map[uint32]uint64{2: 12, 8: 22}},
		{"one between", 5, map[uint32]uint64{1: 21, 3: 31}, map[uint32]uint64{1: 22}},
		{"the newest", 6, map[uint32]uint64{2: 31}, nil},
		{"one that is not marked yet", 7, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := map[engine.Choice]bool{}
			for _, x := range choicesSince(all, c.number) {
				got[x] = true
			}
			require.Equal(t, choicesOf(c.posts, c.polls), got)
			// The next life finds the same, from here and from before.
			next := goingOn(all, c.number)
			for from := uint64(4); from <= c.number; from++ {
				require.ElementsMatch(t, choicesSince(all, from), choicesSince(next, from), "since snapshot %d", from)
			}
		})
	}
}

// What was asked back is numbered as receives are: those that name their source from the beginning, others from the
// snapshot on; and messages have numbers of their own.
func TestChoicesOfWhatWasAskedBackSince(t *testing.T) {
	any := determinantOf(engine.Choice{Kind: engine.ChoseCancelAny, Index: 1, Seq: 1}, 5)
	all := []checkpoint.Determinant{cancel(2, 4), retract(9, 4), mark(5, 3, 7), cancel(3, 5), any, retract(12, 5)}
	require.Equal(t, []engine.Choice{
		{Kind: engine.ChoseCancel, Index: 2, Source: 77, Seq: 1},
		{Kind: engine.ChoseRetract, Index: uint32(engine.AskedInTime), Source: 1, Seq: 9},
		{Kind: engine.ChoseCancel, Index: 3, Source: 77, Seq: 1},
		{Kind: engine.ChoseCancelAny, Index: 4, Seq: 1},
		{Kind: engine.ChoseRetract, Index: uint32(engine.AskedInTime), Source: 1, Seq: 12},
	}, choicesSince(all, 4))
}

// So are tasks; a program has no number.
func TestTurnsSince(t *testing.T) {
	task := engine.Choice{Kind: engine.ChoseTask, Index: 2, Source: 1, Seq: 5}
	program := engine.Choice{Kind: engine.ChoseProgram, Source: 1, Seq: 6}
	all := []checkpoint.Determinant{determinantOf(task, 4), mark(5, 3, 7), determinantOf(task, 5), determinantOf(program, 5)}
	later := task
	later.Index = 7
	require.Equal(t, []engine.Choice{task, later, program}, choicesSince(all, 4))
	require.Equal(t, []engine.Choice{task, program}, choicesSince(all, 5))
}

// Marks of lives that ended before do not count for what follows.
func TestGoingOnForgetsLaterSnapshots(t *testing.T) {
	next := goingOn([]checkpoint.Determinant{message(1, 11, 4), mark(5, 1, 0), message(1, 21, 5)}, 4)
	next = append(next, message(3, 31, 4), mark(5, 3, 0), message(1, 41, 5)) // what this life does
	got := map[engine.Choice]bool{}
	for _, x := range choicesSince(next, 4) {
		got[x] = true
	}
	require.Equal(t, choicesOf(map[uint32]uint64{1: 11, 2: 21, 3: 31, 4: 41}, nil), got)
}

// Another host is to know what a life begins with, as what it chooses.
func TestWhatALifeBeginsWithIsWitnessed(t *testing.T) {
	dir := t.TempDir()
	page, err := witness.Create(dir)
	require.NoError(t, err)
	defer page.Close()
	l := &Life{p: &Process{dir: dir, page: page, options: control.Options{Survive: "crashes"}}}
	_, err = l.recording([]checkpoint.Determinant{message(1, 11, 0), message(2, 12, 0)}, engine.Counts{})
	require.NoError(t, err)
	defer l.choices.Close()
	require.EqualValues(t, 3, page.Recorded(), "that they are of this life, and each of them")
}

// A rank does not go on with some of its choices.
func TestChoicesBehindADamagedOneAreMissed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "choices-0.1")
	var some []checkpoint.Determinant
	for i := range uint32(8) {
		some = append(some, message(1+i, 0xabcdef+uint64(i), 4))
	}
	d, err := checkpoint.ReplaceDeterminants(file, some)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	all, err := readChoices(file)
	require.NoError(t, err)
	require.Len(t, all, 8)

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	at := bytes.Index(text, binary.LittleEndian.AppendUint64(nil, 0xabcdef+3))
	require.Positive(t, at)
	text[at]++
	require.NoError(t, os.WriteFile(file, text, 0o600))
	_, err = readChoices(file)
	require.ErrorIs(t, err, checkpoint.ErrCorrupt)
}
