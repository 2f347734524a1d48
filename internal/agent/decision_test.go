package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/leader"
)

// A decision that is carried out step by step is told once, and then what is new.
func TestOfADecisionOnlyWhatIsNewIsSaid(t *testing.T) {
	first := leader.Planned{ID: 1, What: "move rank 2 from Z/0 to Y/1"}
	done := first
	done.End, done.Took, done.Stood = adapt.Finished, 0.5, 0.02
	second := leader.Planned{ID: 2, What: "move rank 3 from Z/1 to X/1"}
	steps := []struct {
		r    leader.Record
		want string
	}{
		{leader.Record{Plans: []leader.Planned{first}}, "decision 7: the operator drains Z: empty the host; move rank 2 from Z/0 to Y/1"},
		{leader.Record{Plans: []leader.Planned{first}}, ""},
		{leader.Record{Plans: []leader.Planned{done}}, "decision 7: move rank 2 from Z/0 to Y/1: done in 0.50 s, it stood still for 0.020 s"},
		{leader.Record{Plans: []leader.Planned{done}, Why: "rank 3 waits: no room"}, "decision 7: rank 3 waits: no room"},
		{leader.Record{Plans: []leader.Planned{done, second}, Why: ""}, "decision 7: move rank 3 from Z/1 to X/1"},
		{leader.Record{Plans: []leader.Planned{done, second}, Why: "the host is empty, and cordoned"}, "decision 7: the host is empty, and cordoned"},
		{leader.Record{Plans: []leader.Planned{done, second}, Why: "the host is empty, and cordoned", Measured: &leader.Measured{After: 5, Before: 0.6e6, Now: 11.2e6, Predicted: 11.9e6}},
			"decision 7: measured 5 s later: 11.2 MB/s where 0.6 MB/s were seen, 18.7 times as much; predicted 11.9 MB/s"},
	}
	var before leader.Record
	for i, s := range steps {
		s.r.ID, s.r.Seen, s.r.Chosen = 7, []string{"the operator drains Z"}, "empty the host"
		got := newsLine(before, s.r)
		if i == 0 {
			got = decisionLine(s.r)
		}
		require.Equal(t, s.want, got, "step %d", i)
		before = s.r
	}
}
