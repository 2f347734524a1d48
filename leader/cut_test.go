package leader

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeave(t *testing.T) {
	for name, c := range map[string]struct {
		pairs [][2]string
		ranks map[string]int
		keep  string
		want  []string
	}{
		"nothing":                      {},
		"the one with fewer ranks":     {[][2]string{{"Y", "Z"}}, map[string]int{"Y": 1, "Z": 2}, "X", []string{"Y"}},
		"of equals the last":           {[][2]string{{"Y", "Z"}}, map[string]int{"Y": 2, "Z": 2}, "X", []string{"Z"}},
		"in whatever order":            {[][2]string{{"Z", "Y"}}, map[string]int{"Y": 2, "Z": 2}, "X", []string{"Z"}},
		"not the leader's":             {[][2]string{{"Y", "Z"}}, map[string]int{"Y": 3, "Z": 1}, "Z", []string{"Y"}},
		"one that none of two gets to": {[][2]string{{"Y", "Z"}, {"Z", "W"}}, map[string]int{"Y": 1, "Z": 1, "W": 1}, "X", []string{"Z"}},
		"unless it has most ranks":     {[][2]string{{"Y", "Z"}, {"Z", "W"}}, map[string]int{"Y": 1, "Z": 4, "W": 1}, "X", []string{"Y", "W"}},
		"the smaller side": {[][2]string{{"A", "C"}, {"A", "D"}, {"A", "E"}, {"B", "C"}, {"B", "D"}, {"B", "E"}},
			map[string]int{"A": 2, "B": 2, "C": 2, "D": 2, "E": 2}, "X", []string{"B", "A"}},
		"the other, where the leader is": {[][2]string{{"A", "C"}, {"A", "D"}, {"A", "E"}}, map[string]int{"A": 1, "C": 1, "D": 1, "E": 1}, "A", []string{"E", "D", "C"}},
	} {
		require.ElementsMatch(t, c.want, Leave(c.pairs, c.ranks, c.keep), name)
	}
}
