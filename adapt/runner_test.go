package adapt

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
)

var start = time.Unix(1_700_000_000, 0)

func act(verb string, slot int) *Act {
	return &Act{Verb: verb, Rank: -1, At: topology.Place{Host: "a", Slot: slot}}
}

// move is like a live move: a commit in the middle, a step whose source is fenced,
// and one that leaves nothing behind.
func move() Plan {
	return Plan{ID: 1, What: "a move", Steps: []Step{
		{Do: *act("prepare", 1), Undo: act("discard", 1), Back: time.Minute},
		{Do: *act("save", 0), Undo: act("resume", 0), Fence: act("fence", 0), Within: time.Second},
		{Do: *act("ask", 2)},
		{Do: *act("commit", 3), Undo: act("abort", 3), Fence: act("fence", 3), Commit: true},
		{Do: *act("tell", 2)},
		{Do: *act("release", 0), Fence: act("fence", 0)},
	}}
}

// perform answers each act in turn as the letters say: d it is done, f it fails, t its time is up,
// c it fails with ErrCommitted; after the last letter all is done. It answers what was performed.
func perform(t *testing.T, r *Runner, letters string) (string, Outcome, int) {
	now, n := start, 0
	next := r.Step(now, Begin{})
	var acts []string
	for next.Phase != Ended {
		require.True(t, next.Perform, "after %v", acts)
		require.Less(t, n, 50, "no end: %v", acts)
		acts = append(acts, next.Act.Verb)
		letter := byte('d')
		if n < len(letters) {
			letter = letters[n]
		}
		n++
		now = now.Add(time.Millisecond)
		switch letter {
		case 'd':
			next = r.Step(now, Done{next.Step, next.Phase})
		case 'f':
			next = r.Step(now, Failed{next.Step, next.Phase, errors.New("no")})
		case 'c':
			next = r.Step(now, Failed{next.Step, next.Phase, fmt.Errorf("abort: %w", ErrCommitted)})
		case 't':
			now = next.Deadline
			next = r.Step(now, Tick{})
		}
	}
	require.Equal(t, now.Sub(start), next.Outcome.Took)
	return strings.Join(acts, " "), next.Outcome, n
}

func TestRunner(t *testing.T) {
	tests := []struct {
		name, letters, want string
		end                 End
		fenced              int
	}{
		{"all goes well", "", "prepare save ask commit tell release", Finished, 0},
		{"the first step fails and is undone", "f", "prepare discard", Undone, 0},
		{"the source does not answer, nor does it go on", "dtt", "prepare save resume fence discard", Undone, 1},
		{"a step that leaves nothing", "ddf", "prepare save ask resume discard", Undone, 0},
		{"the commit fails", "dddf", "prepare save ask commit abort resume discard", Undone, 0},
		{"the commit came first", "dddtc", "prepare save ask commit abort tell release", Finished, 0},
		{"nobody hears of it", "ddddt", "prepare save ask commit tell release", Finished, 0},
		{"the source does not let go", "dddddt", "prepare save ask commit tell release fence", Finished, 1},
		{"not even a fence", "dttf", "prepare save resume fence discard", Broken, 0},
		{"an undo that has no fence", "ff", "prepare discard", Broken, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			acts, out, _ := perform(t, NewRunner(move()), tt.letters)
			require.Equal(t, tt.want, acts)
			require.Equal(t, tt.end, out.End)
			require.Len(t, out.Fenced, tt.fenced)
			require.Equal(t, acts == tests[0].want && tt.letters == "" || strings.HasSuffix(tt.letters, "c"), out.Why == "", "why %q", out.Why)
		})
	}
}

// TestEveryWayAPlanCanGo tries all answers to all acts.
func TestEveryWayAPlanCanGo(t *testing.T) {
	ends := map[End]int{}
	var walk func(letters string)
	walk = func(letters string) {
		acts, out, n := perform(t, NewRunner(move()), letters)
		ends[out.End]++
		did := strings.Fields(acts)
		at := func(verb string) int {
			for i, d := range did {
				if d == verb {
					return i
				}
			}
			return -1
		}
		committed := at("tell") >= 0
		require.Equal(t, committed, out.End == Finished || out.End == Broken && at("release") >= 0, "%s: %s", letters, acts)
		if committed {
			require.Negative(t, at("resume"), "%s: undone after the commit: %s", letters, acts)
			require.Negative(t, at("discard"), "%s: undone after the commit: %s", letters, acts)
		} else {
			require.GreaterOrEqual(t, at("discard"), 0, "%s: %s", letters, acts)
			require.Equal(t, at("save") >= 0, at("resume") >= 0, "%s: saved and left so: %s", letters, acts)
		}
		for i := len(letters); i < n; i++ {
			prefix := letters + strings.Repeat("d", i-len(letters))
			walk(prefix + "f")
			if did[i] == "abort" {
				walk(prefix + "c")
			}
		}
	}
	walk("")
	t.Logf("%v", ends)
	require.Len(t, ends, 3)
	require.Greater(t, ends[Undone], 5)
}

func TestLateReportsChangeNothing(t *testing.T) {
	r := NewRunner(move())
	next := r.Step(start, Begin{})
	next = r.Step(next.Deadline.Add(-1), Tick{})
	require.False(t, next.Perform, "timed out before its deadline")
	next = r.Step(next.Deadline, Tick{})
	require.Equal(t, Undoing, next.Phase)
	require.Equal(t, start.Add(DefaultWithin+time.Minute), next.Deadline)
	late := r.Step(next.Deadline.Add(-1), Done{0, Doing})
	require.False(t, late.Perform)
	require.Equal(t, next.Deadline, late.Deadline)
	require.Equal(t, Ended, r.Step(start, Done{0, Undoing}).Phase)
	again := r.Step(start, Failed{0, Undoing, errors.New("late")})
	require.Equal(t, Undone, again.Outcome.End)
	require.False(t, again.Perform)
}

func TestAbandon(t *testing.T) {
	r := NewRunner(move())
	r.Step(start, Begin{})
	r.Step(start, Done{0, Doing})
	next := r.Step(start, Abandon{"the target is lost"})
	require.Equal(t, "resume", next.Act.Verb)
	r = NewRunner(move())
	r.Step(start, Begin{})
	for i := range 4 {
		r.Step(start, Done{i, Doing})
	}
	next = r.Step(start, Abandon{"too late"})
	require.False(t, next.Perform)
	require.Equal(t, Doing, next.Phase)
}

func TestPlansAreJSON(t *testing.T) {
	text, err := json.Marshal(move())
	require.NoError(t, err)
	var back Plan
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, move(), back)
}

func TestTwoCommitsPanic(t *testing.T) {
	require.Panics(t, func() { NewRunner(Plan{Steps: []Step{{Commit: true}, {Commit: true}}}) })
}
