package sensors

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStandings(t *testing.T) {
	set, err := ParseThresholds("Y>X:5MB/s")
	require.NoError(t, err)
	f := newFeed(t, WatchOptions{Mode: Enforce, Thresholds: set})
	require.Empty(t, f.watch.Standings(f.now))
	f.each(10, over(there, 12e6))
	all := f.watch.Standings(f.now)
	require.Len(t, all, 1)
	require.Equal(t, 10, all[0].Learning)
	require.Zero(t, all[0].Rate)
	require.Empty(t, all[0].Sure())

	f.each(50, over(there, 12e6))
	f.each(20, over(back, 3e6))
	f.each(50, over(back, 8e6))
	f.each(20, over(back, 3e6))
	all = f.watch.Standings(f.now)
	require.Len(t, all, 2)
	learned, hand := all[0], all[1]
	require.Equal(t, there, learned.Link)
	require.InEpsilon(t, 12e6, learned.Rate, 0.01)
	require.InEpsilon(t, 6e6, learned.Least, 0.2)
	require.InEpsilon(t, 12e6, learned.Seen, 0.01)
	require.WithinDuration(t, origin.Add(2*time.Second), learned.Learned, 2*time.Second)
	require.Contains(t, learned.Sure(), " readings")
	require.True(t, learned.Broken.IsZero())
	require.Zero(t, learned.Breaches)

	require.True(t, hand.ByHand)
	require.Equal(t, 5e6, hand.Rate)
	require.Equal(t, 5e6, hand.Least)
	require.Equal(t, 2, hand.Breaches)
	require.WithinDuration(t, f.now.Add(-2*time.Second), hand.Broken, 300*time.Millisecond)
	require.Contains(t, hand.Breach, "Y>X@lan large: ")

	text, err := json.Marshal(all)
	require.NoError(t, err)
	var again []Standing
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, all, again, "it is the same at the other end")
}
