package spelling

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	words := []string{"ps", "top", "events", "explain", "contracts", "move", "cordon", "uncordon", "help"}
	for _, c := range []struct{ word, want string }{
		{"explian", "explain"}, // two letters are swapped
		{"explan", "explain"},
		{"expalin", "explain"},
		{"Explain", "explain"},
		{"explains", "explain"},
		{"uncordn", "uncordon"},
		{"mvoe", "move"},
		{"tpo", "top"},
		{"hlep", "help"},
		{"ls", ""},  // ps is too short to be near
		{"foo", ""}, // two of the three letters of top are others
		{"prog", ""},
		{"", ""},
		{"explain-it", ""},
		{"conductors", ""},
	} {
		require.Equal(t, c.want, Nearest(c.word, words...), c.word)
	}
	require.Empty(t, Nearest("explain"))
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"ab", "ba", 1}, {"abc", "cab", 2}, {"timeout", "tineout", 1}, {"same", "same", 0}, {"abcd", "x", 3}} {
		require.Equal(t, c.want, distance(c.a, c.b), "%q and %q", c.a, c.b)
	}
}
