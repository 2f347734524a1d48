package agent

import (
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/sensors/path"
)

// Of an end of which nothing comes it is known after the silence, or later if there is an
// excuse; what comes before that ends it.
func TestSilence(t *testing.T) {
	const silence = time.Second
	for name, c := range map[string]struct {
		excused time.Duration // until when there is an excuse; 0: there is never
		seen    time.Duration // when it answers over another connection; 0: never
		speaks  time.Duration // when something comes; 0: never
		most    time.Duration // when the read ends
	}{
		"nothing comes":              {most: silence},
		"something comes":            {speaks: 900 * time.Millisecond, most: 900 * time.Millisecond},
		"too late":                   {speaks: 1100 * time.Millisecond, most: silence},
		"excused":                    {excused: 2500 * time.Millisecond, most: 2500 * time.Millisecond},
		"excused, something comes":   {excused: 5 * time.Second, speaks: 3 * time.Second, most: 3 * time.Second},
		"seen by another way":        {seen: 600 * time.Millisecond, most: 600*time.Millisecond + silence},
		"nobody is excused for ever": {excused: time.Hour, most: control.AlivePatient},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				authority, err := identity.NewAuthority("job")
				require.NoError(t, err)
				own, err := authority.Issue(identity.Agent, 0, 1)
				require.NoError(t, err)
				id, err := own.Open()
				require.NoError(t, err)
				near, far := net.Pipe()
				speaker, p := tls.Server(far, id.TLS()), &patient{Conn: tls.Client(near, id.TLS())}
				go speaker.Handshake()
				require.NoError(t, p.Handshake())

				begun := time.Now()
				if c.excused > 0 {
					p.excuse = func() bool { return time.Since(begun) < c.excused }
				}
				p.wait(silence)
				if c.seen > 0 {
					time.AfterFunc(c.seen, func() { p.answered.set(time.Now()) })
				}
				if c.speaks > 0 {
					time.AfterFunc(c.speaks, func() { speaker.Write([]byte{7}) })
				}
				n, err := p.Read(make([]byte, 1))
				took := time.Since(begun)
				near.Close()
				require.InDelta(t, c.most, took, float64(silence/patientWaits))
				if c.speaks > 0 && c.speaks <= c.most {
					require.NoError(t, err)
					require.Equal(t, 1, n)
					return
				}
				var quiet silent
				require.ErrorAs(t, err, &quiet)
				require.InDelta(t, took, time.Duration(quiet), float64(silence/patientWaits))
				time.Sleep(time.Minute) // for who speaks too late
			})
		})
	}
}

// A connection over which nothing is read goes on while segments come that are not next, and where round trips
// show a queue for as long as something may stand in it.
func TestCrawl(t *testing.T) {
	const silence = time.Second
	for name, c := range map[string]struct {
		rtt, vary time.Duration
		segments  []uint32 // that have come by each wait
		most      int      // waits for which it goes on
	}{
		"nothing comes":                {rtt: time.Millisecond, segments: []uint32{5}, most: 8},
		"something comes at last":      {rtt: time.Millisecond, segments: []uint32{5, 5, 5, 5, 5, 5, 5, 6}, most: 16},
		"a little all the time":        {rtt: time.Millisecond, segments: []uint32{5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 9, 10, 11, 12, 13, 14, 15, 16}, most: 27},
		"an agent that is starved":     {rtt: 200 * time.Millisecond, vary: 100 * time.Millisecond, segments: []uint32{5}, most: 8},
		"nothing comes out of a queue": {rtt: 500 * time.Millisecond, vary: 100 * time.Millisecond, segments: []uint32{5}, most: 17},
	} {
		t.Run(name, func(t *testing.T) {
			var x crawl
			heard := time.Now()
			for wait := 1; ; wait++ {
				now := heard.Add(time.Duration(wait) * silence / patientWaits)
				info := unix.TCPInfo{Rtt: uint32(c.rtt.Microseconds()), Rttvar: uint32(c.vary.Microseconds()), Data_segs_in: c.segments[min(wait, len(c.segments))-1]}
				x.see(&info, heard, now, silence)
				if !x.goesOn(now) {
					require.Equal(t, c.most, wait-1)
					break
				}
			}
		})
	}
}

// Who hears nothing of anybody is himself cut off. Of one of several that is silent that
// cannot be said, nor of the only one.
func TestWhoIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silence = time.Second
		a := &Agent{job: Job{Silence: silence}, events: make(chan func(), 1)}
		h := &head{a: a, ears: map[*patient]int{}}
		x, y := &patient{}, &patient{}
		heard := func(ps ...*patient) {
			for _, p := range ps {
				p.at.set(time.Now())
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
			require.WithinDuration(t, now.Add(-m.Over), h.alive.time(), 0, "the earliest at which it can have come")
			m.Over = time.Second
			a.heard(a.processes[c.by], m, now)
			require.WithinDuration(t, now.Add(-100*time.Millisecond), h.alive.time(), 0, "a late word of what was earlier")
		})
	}
}
