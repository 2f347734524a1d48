package topology

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestApply(t *testing.T) {
	a0, a1, b0 := Place{"a", 0}, Place{"a", 1}, Place{"b", 0}
	m := New([]Place{a0, a1})
	tests := []struct {
		name  string
		moves []Move
		want  error
	}{
		{"a rank that is there", []Move{{1, a1, b0}}, nil},
		{"no rank of that number", []Move{{9, a0, b0}}, ErrNoRank},
		{"a negative rank", []Move{{-1, a0, b0}}, ErrNoRank},
		{"a rank that is elsewhere", []Move{{1, a0, b0}}, ErrStale},
		{"the same rank twice", []Move{{1, a1, b0}, {1, a1, a0}}, ErrTwice},
		{"a good move before a bad one", []Move{{1, a1, b0}, {9, a0, b0}}, ErrNoRank},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			next, err := m.Apply(tt.moves...)
			require.ErrorIs(t, err, tt.want)
			if tt.want == nil {
				require.Equal(t, m.Epoch()+1, next.Epoch())
				at, _ := next.Place(1)
				require.Equal(t, b0, at)
			}
			at, _ := m.Place(1)
			require.Equal(t, a1, at, "the old map was edited")
		})
	}
}

func TestMapAnswersWhoIsWhere(t *testing.T) {
	a0, b0 := Place{"a", 0}, Place{"b", 0}
	given := []Place{b0, a0, b0}
	m := New(given)
	given[0] = a0
	require.Equal(t, []Place{a0, b0}, m.Places())
	at, _ := m.Place(0)
	require.Equal(t, b0, at)
	_, ok := m.Place(3)
	require.False(t, ok)
	require.Equal(t, []Place{{"a", 0}, {"a", 1}}, New([]Place{{"a", 1}, a0, {"a", 1}}).Places(), "of one host by slot, each once")
}
