package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A caller is alone again once nobody has taken its core for a while.
func TestCompanyLeaves(t *testing.T) {
	start := time.Now()
	for name, looks := range map[string][]struct {
		after    time.Duration
		switches int64
		gone     bool
	}{
		"nobody came":               {{0, 7, false}, {aloneFor, 7, false}, {aloneFor + 1, 7, true}},
		"who was there left":        {{0, 7, false}, {aloneFor, 8, false}, {2 * aloneFor, 8, false}, {2*aloneFor + 1, 8, true}},
		"it comes again and again":  {{0, 7, false}, {aloneFor + 1, 8, false}, {2 * (aloneFor + 1), 9, false}, {3 * (aloneFor + 1), 10, false}},
		"the thread is another one": {{0, 7, false}, {aloneFor + 1, 2, false}, {2*(aloneFor+1) + 1, 2, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var c company
			for _, look := range looks {
				require.Equal(t, look.gone, c.goneBy(look.switches, start.Add(look.after)), "after %v", look.after)
			}
		})
	}
}

// What the system says of a thread that gives its core away is looked at, now and then.
func TestCompanyIsLookedAt(t *testing.T) {
	var c company
	for range givenPerLook - 1 {
		require.False(t, c.gone())
	}
	require.True(t, c.since.IsZero())
	require.False(t, c.gone())
	require.False(t, c.since.IsZero())
}
