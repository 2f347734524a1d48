package agent

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
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
			pair := pairOf(a.hosts[1], a.hosts[0])
			require.Equal(t, c.acted, a.cuts[pair].acted)
			for _, way := range [][2]*host{pair, {pair[1], pair[0]}} {
				require.Equal(t, c.acted, a.survival.apart[way], "neither sends copies to the other")
			}
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

// Nothing is done about what is no cut, or no longer than it can be.
func TestWhatIsNoCutThatLasts(t *testing.T) {
	for name, do := range map[string]func(a *Agent, p []*process){
		"who says so stands still":              func(_ *Agent, p []*process) { p[0].stop.why = "is stopped" },
		"the other stands still":                func(_ *Agent, p []*process) { p[1].stop.why = "is stopped" },
		"the other is lost":                     func(_ *Agent, p []*process) { p[1].judged = true },
		"the job has just begun":                func(a *Agent, _ []*process) { a.began = time.Now() },
		"the agent of the one is not heard":     func(a *Agent, _ []*process) { unheard(t, a, 0) },
		"the agent of the other is not heard":   func(a *Agent, _ []*process) { unheard(t, a, 1) },
		"the job is ending":                     func(a *Agent, _ []*process) { a.ending = true },
		"they are on one host":                  func(_ *Agent, p []*process) { p[1].host = p[0].host },
		"nothing is done, and it has not ended": func(a *Agent, _ []*process) { a.job.Options.Survive, a.job.Silence = "none", 2*cutPatience },
	} {
		t.Run(name, func(t *testing.T) {
			a, n := surviving(1, 1, 1)
			a.toldStart, a.head = true, &head{a: a}
			a.hosts[2].here = true
			do(a, a.processes)
			ending := a.ending
			a.cutSeen(a.processes[0], control.Cut{Process: 1, For: cutPatience + time.Second, Error: "no answer\x1b[2J"})
			require.Equal(t, ending, a.ending)
			require.Empty(t, n.killed)
			require.Empty(t, a.survival.apart)
			for _, c := range a.cuts {
				require.NotContains(t, c.why, "\x1b", "a terminal would obey")
			}
		})
	}
}

// unheard has nothing heard of the agent of a host for some seconds.
func unheard(t *testing.T, a *Agent, h int) {
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	r := &remote{a: a, host: a.hosts[h], over: make(chan struct{}), ear: &patient.Conn{Conn: tls.Server(here, nil)}, to: control.NewConn[control.ToAgent](here)}
	r.ear.At.Set(time.Now().Add(-3 * time.Second))
	a.hosts[h].place = r
}

// At level "report" the processes of the host that is left are killed, but for those that are lost already.
func TestTheSideThatIsLeftIsKilledOnce(t *testing.T) {
	a, n := surviving(2, 1, 1)
	a.job.Options.Survive, a.toldStart = "report", true
	a.hosts[2].here = true
	a.processes = append(a.processes, &process{index: 3, host: a.hosts[1], judged: true})
	a.cutSeen(a.processes[0], control.Cut{Process: 1, For: cutPatience, Error: "no answer"})
	require.Equal(t, []int{1}, n.killed, "it has fewer ranks")
	require.Contains(t, a.processes[1].stop.hung, "nothing has got through")
}

// A cut of which nobody speaks any more is over, and the next begins anew.
func TestACutThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := surviving(1, 1, 1)
		a.toldStart, a.done = true, make(chan struct{})
		said := control.Cut{Process: 1, For: cutPatience / 4, Error: "no answer"}
		pair := pairOf(a.hosts[0], a.hosts[1])
		a.cutSeen(a.processes[0], said)
		time.Sleep(cutSilent / 2)
		a.cutSeen(a.processes[0], said)
		(<-a.events)()
		require.Contains(t, a.cuts, pair, "it was spoken of since")
		(<-a.events)()
		require.NotContains(t, a.cuts, pair)
		time.Sleep(cutPatience)
		a.cutSeen(a.processes[0], said)
		require.False(t, a.cuts[pair].acted)
		(<-a.events)()
	})
}
