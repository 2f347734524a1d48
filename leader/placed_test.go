package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
)

// What others have decided is the map; a process that is lost afterwards takes no rank with it.
func TestPlacedByOthers(t *testing.T) {
	x, y := topology.Place{Host: "X", Slot: 0}, topology.Place{Host: "Y", Slot: 1}
	m := New(Config{Level: Moves}, topology.New([]topology.Place{x, {Host: "Y", Slot: 0}}))
	now := time.Unix(0, 0)
	m.Step(now, HostJoined{Host: "X", Slots: 1})
	m.Step(now, HostJoined{Host: "Y", Slots: 2})
	m.Step(now, ProcessReady{Place: y})
	require.Empty(t, m.Step(now, Placed{Rank: 0, At: y}))
	at, _ := m.Map().Place(0)
	require.Equal(t, y, at)
	require.Equal(t, topology.Epoch(2), m.Map().Epoch())
	require.Empty(t, m.Step(now, Placed{Rank: 0, At: y}), "it is there")
	require.Empty(t, m.Step(now, Placed{Rank: 9, At: y}), "there is no such rank")
	for _, a := range m.Step(now, ProcessLost{Place: x, Why: Killed}) {
		_, gaveUp := a.(GiveUp)
		require.False(t, gaveUp, "%v", a)
	}
	require.Zero(t, m.hosts["X"].ranks)
	require.Equal(t, 2, m.hosts["Y"].ranks)
}
