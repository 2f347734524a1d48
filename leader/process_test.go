package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
)

// A process of several ranks that is given up takes all of them with it, all are recovered, and all count.
func TestRanksOfOneProcessBeginAgainTogether(t *testing.T) {
	run := func(budget int) []Action {
		x := topology.Place{Host: "X"}
		m := New(Config{Level: Crashes, MovesPerMinute: budget}, topology.New([]topology.Place{x, x, x, {Host: "Y"}}))
		m.Step(start, HostJoined{Host: "X", Slots: 3, Trusted: true})
		m.Step(start, HostJoined{Host: "Y", Slots: 4, Trusted: true})
		for r := range topology.Rank(3) {
			m.Step(start, Traffic{r, []Flow{{To: 3, Rate: 1e6}}})
			m.Step(start, StateSize{Rank: r, Bytes: 1e6, Copies: []string{"Y"}, Taken: start})
		}
		m.Step(start, HostReading{Host: "X", Cores: 2, Others: 2, Pressure: 0.9})
		return m.Step(start.Add(time.Second), Tick{})
	}
	plans := plansOf(run(3))
	require.Len(t, plans, 3)
	targets := map[topology.Place]bool{}
	for _, p := range plans {
		targets[p.Moves[0].To] = true
		require.Equal(t, "Y", p.Moves[0].To.Host)
	}
	require.Len(t, targets, 3, "two ranks got one process")

	acts := run(2)
	require.Empty(t, plansOf(acts))
	require.Len(t, acts, 1)
	require.Contains(t, acts[0].(Tell).Record.Why, "3 ranks would move, and 2 are left")
}
