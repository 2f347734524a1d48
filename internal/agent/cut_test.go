package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

// Something is done about a cut that lasts, and later if something else gets through between the two.
func TestCutsThatLast(t *testing.T) {
	for _, c := range []struct {
		lasts time.Duration
		heard time.Duration // ago; 0: never
		acted bool
	}{
		{cutPatience - time.Second, 0, false},
		{cutPatience, 0, true},
		{cutPatience, agentsHeard / 2, false},
		{cutPatience, 2 * agentsHeard, true},
		{cutInPart*cutPatience - time.Second, agentsHeard / 2, false},
		{cutInPart * cutPatience, agentsHeard / 2, true},
	} {
		t.Run(fmt.Sprintf("%v, heard %v ago", c.lasts, c.heard), func(t *testing.T) {
			a, _ := surviving(1, 1, 1)
			a.toldStart, a.since = true, time.Now().Add(-time.Hour)
			if c.heard > 0 {
				a.heard(a.processes[1], control.Paths{Heard: []int{0}}, time.Now().Add(-c.heard))
			}
			a.heard(a.processes[2], control.Paths{Heard: []int{0, 1}}, time.Now())
			a.cutSeen(a.processes[0], control.Cut{Process: 1, For: c.lasts, Error: "no answer in time"})
			require.Equal(t, c.acted, a.cuts[pairOf(a.hosts[1], a.hosts[0])].acted)
			require.False(t, a.ending)
		})
	}
}
