package agent

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/patient"
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

// A host that the head alone does not hear, as the two are cut from each other, is given up when that has lasted, though
// others hear it: whoever waits over the cut would wait until nobody is excused any more.
func TestACutFromTheHeadThatLasts(t *testing.T) {
	for name, c := range map[string]struct {
		lasts time.Duration
		heard time.Duration // ago, of the agent
		alone bool          // nothing is heard of any host
		ends  bool
	}{
		"not yet":                       {lasts: cutPatience - time.Second, heard: 3 * time.Second},
		"for long":                      {lasts: 2 * cutPatience, heard: cutPatience, ends: true},
		"its agent is heard":            {lasts: cutPatience, heard: agentsHeard / 2},
		"this host is cut off from all": {lasts: cutPatience, heard: cutPatience, alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := surviving(1, 1, 1)
			a.toldStart, a.since = true, time.Now().Add(-time.Hour)
			a.job.Silence = 900 * time.Millisecond
			a.head = &head{a: a}
			if c.alone {
				a.head.cutOff = time.Now()
			}
			here, there := net.Pipe()
			defer there.Close()
			r := &remote{a: a, host: a.hosts[1], over: make(chan struct{}), ear: &patient.Conn{Conn: tls.Server(here, nil)}, to: control.NewConn[control.ToAgent](here)}
			r.ear.At.Set(time.Now().Add(-c.heard))
			a.hosts[0].here, a.hosts[1].place = true, r
			a.heard(a.processes[2], control.Paths{Heard: []int{1}}, time.Now())
			a.cutSeen(a.processes[0], control.Cut{Process: 1, For: c.lasts, Error: "no answer in time"})
			if !c.ends {
				require.NoError(t, r.why)
				return
			}
			var quiet patient.Silent
			require.ErrorAs(t, r.why, &quiet)
			require.InDelta(t, c.heard, time.Duration(quiet), float64(time.Second))
		})
	}
}
