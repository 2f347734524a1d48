package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/sensors/path"
)

// Who hears nothing of anybody is himself cut off. Of one of several that is silent that
// cannot be said, nor of the only one.
func TestWhoIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silence = time.Second
		a := &Agent{job: Job{Silence: silence}, events: make(chan func(), 1)}
		h := &head{a: a, ears: map[*patient.Conn]int{}}
		x, y := &patient.Conn{}, &patient.Conn{}
		heard := func(ps ...*patient.Conn) {
			for _, p := range ps {
				p.At.Set(time.Now())
			}
		}
		cutOff := func() bool { h.lookWhetherCutOff(); return h.wasCutOff() }

		h.ears[x] = 1
		heard(x)
		time.Sleep(2 * silence)
		require.False(t, cutOff(), "it may be the other")

		h.ears[y] = 2
		heard(x, y)
		require.False(t, cutOff())
		for range 20 {
			time.Sleep(silence / 10)
			heard(y)
			require.False(t, cutOff(), "one is silent")
		}
		time.Sleep(silence)
		require.True(t, cutOff(), "both are")
		require.Empty(t, a.events)
		time.Sleep(cutOffLong)
		for range 3 {
			require.True(t, cutOff())
			require.Len(t, a.events, 1, "its user is told once")
		}
		heard(y)
		require.True(t, cutOff(), "and the other may take longer to be heard again")
		for range 20 {
			time.Sleep(silence / 10)
			heard(y)
			h.lookWhetherCutOff()
		}
		require.False(t, cutOff(), "but not that long")
	})
}

// A host is heard of while something of its processes comes to other hosts, or takes long to be
// acknowledged; what one on a host that is not trusted says does not count, nor what it says of its own host.
func TestHeardOfElsewhere(t *testing.T) {
	now := time.Now()
	acknowledged := func(peer int, bytes uint64, rtt time.Duration) []control.PathReading {
		return []control.PathReading{{Peer: peer, Reading: path.Reading{Bytes: bytes, Pending: 1, RTT: rtt}}}
	}
	const slow = control.CrashPatient / 4
	for _, c := range []struct {
		name  string
		by    int // process, of a host of its own
		heard []int
		links []control.PathReading
		want  bool // process 1's host is heard of
	}{
		{"by another", 0, []int{2, 1}, nil, true},
		{"of others", 0, []int{2}, nil, false},
		{"by itself", 1, []int{1}, nil, false},
		{"by who is not trusted", 2, []int{1}, nil, false},
		{"of nobody there is", 0, []int{-1, 3}, acknowledged(3, 1000, slow), false},
		{"it has acknowledged something after long", 0, nil, acknowledged(1, 1000, slow), true},
		{"it has acknowledged something at once", 0, nil, acknowledged(1, 1000, time.Millisecond), false},
		{"it has acknowledged nothing", 0, nil, acknowledged(1, 0, slow), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := surviving(1, 1, 1)
			a.job.Silence = control.CrashPatient
			a.processes[2].host.Distrusted = true
			h := a.processes[1].host
			m := control.Paths{Over: 100 * time.Millisecond, Heard: c.heard, Links: c.links}
			a.heard(a.processes[c.by], m, now)
			if !c.want {
				require.Zero(t, h.alive.Load())
				return
			}
			require.WithinDuration(t, now.Add(-m.Over), h.alive.Time(), 0, "the earliest at which it can have come")
			m.Over = time.Second
			a.heard(a.processes[c.by], m, now)
			require.WithinDuration(t, now.Add(-100*time.Millisecond), h.alive.Time(), 0, "a late word of what was earlier")
			require.WithinDuration(t, now.Add(-100*time.Millisecond), a.met[pairOf(h, a.processes[c.by].host)], 0, "of the two, too")
		})
	}
}
