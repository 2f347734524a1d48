//go:build linux

package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
)

func TestASeedNamesWhatIsDone(t *testing.T) {
	a, b := rand.New(rand.NewPCG(7, 0)), rand.New(rand.NewPCG(7, 0))
	done := map[deed]bool{}
	for range 500 {
		x := draw(a, labDeeds(true))
		require.Equal(t, x, draw(b, labDeeds(true)))
		require.NotEqual(t, x.ranks[0], x.ranks[1])
		done[x.deed] = true
	}
	require.Len(t, done, len(labDeeds(true)))
}

func TestWhatCameOfKills(t *testing.T) {
	at := time.Unix(100, 0)
	var past []events.Event
	tell := func(ms int, kind events.Kind, process, rank, from int) {
		past = append(past, events.Event{Time: at.Add(time.Duration(ms) * time.Millisecond), Kind: kind, Process: new(process), Rank: new(rank),
			Moved: &events.Moved{From: from, Lost: true}})
	}
	tell(5, events.ProcessExited, 1, 0, 0)
	tell(6, events.RankMoved, 4, 1, 1)
	tell(9, events.RankArrived, 4, 1, 0)
	tell(20, events.ProcessExited, 4, 0, 0)
	tell(21, events.RankMoved, 5, 1, 4)
	tell(22, events.ProcessExited, 5, 0, 0)
	tell(23, events.RankMoved, 6, 1, 5)
	tell(30, events.ProcessExited, 7, 0, 0)
	kills := []kill{{process: 1}, {process: 4}, {process: 5}, {process: 7}}
	judgeKills(kills, past)
	require.Equal(t, 5*time.Millisecond, kills[0].seen.Sub(at))
	require.Equal(t, 9*time.Millisecond, kills[0].goesOn.Sub(at))
	require.Empty(t, kills[0].instead)
	require.Equal(t, overtaken, kills[1].instead)
	require.Equal(t, anew, kills[2].instead)
	require.Equal(t, -1, kills[3].rank)
	require.Equal(t, "no rank was lost", kills[3].instead)
}
