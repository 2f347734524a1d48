package process

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

const every = 2 * time.Second

// A clock is when things happen, in seconds.
func clock(s float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second)))
}

func to(r topology.Rank, bytes int) engine.LoggedTo { return engine.LoggedTo{Rank: r, Bytes: bytes} }

func log(all ...engine.LoggedTo) []engine.LoggedTo { return all }

func TestALogIsWaitedForIfThatSparesMuch(t *testing.T) {
	tests := []struct {
		name  string
		state int64
		log   []engine.LoggedTo
		asks  []engine.LoggedTo // what others have asked for, just before
		want  []engine.LoggedTo
	}{
		{"nothing was sent", 0, nil, nil, nil},
		{"little was", 0, log(to(1, 60<<10)), nil, nil},
		{"much was", 0, log(to(1, 1<<20), to(2, 2<<20)), nil, log(to(1, 1<<20), to(2, 2<<20))},
		{"much to one", 0, log(to(1, 1<<20), to(2, 1000)), nil, log(to(1, 1<<20))},
		{"little beside the state", 100 << 20, log(to(1, 1<<20)), nil, nil},
		{"somebody can keep no more", 0, log(to(1, 1<<20)), log(to(7, 0)), log(to(1, 1<<20))},
		{"a receiver waits for more", 0, log(to(1, 1<<20), to(2, 1<<20)), log(to(1, 10<<20)), log(to(2, 1<<20))},
		{"a receiver waits for less", 0, log(to(1, 1<<20)), log(to(1, 200<<10)), log(to(1, 1<<20))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPace(0, every, false, clock(0))
			for _, a := range tt.asks {
				p.asked(a.Rank, a.Bytes, clock(1))
			}
			require.Equal(t, tt.want, p.take(tt.state, tt.log, clock(2)))
		})
	}
}

// Of two that have as much for each other one waits, whichever asks first.
func TestOneOfTwoWaits(t *testing.T) {
	for b := topology.Rank(1); b < 100; b++ {
		x, y := newPace(0, every, false, clock(0)), newPace(b, every, false, clock(0))
		for _, both := range []*pace{&x, &y} {
			both.saved(1 << 20)
		}
		x.asked(b, 1<<20, clock(2))
		y.asked(0, 1<<20, clock(2))
		xs, ys := x.take(0, log(to(b, 1<<20)), clock(2.1)), y.take(0, log(to(0, 1<<20)), clock(2.1))
		require.NotEqual(t, xs == nil, ys == nil, "ranks 0 and %d: %v and %v", b, xs, ys)
	}
}

func TestAWaitEnds(t *testing.T) {
	waits := log(to(1, 10<<20), to(2, 10<<20))
	begin := func() pace {
		p := newPace(0, every, false, clock(0))
		p.saved(1 << 20)
		require.Equal(t, waits, p.take(0, append(log(to(3, 100)), waits...), clock(2)))
		return p
	}
	p := begin()
	require.False(t, p.over(waits, log(to(1, 10<<20), to(2, 1<<20)), clock(2), 0, clock(2.9)))
	require.True(t, p.over(waits, log(to(1, 100<<10), to(2, 1<<20), to(3, 1<<30)), clock(2), 0, clock(2.9)), "next to nothing is left")
	p = begin()
	p.asked(1, 30<<20, clock(2.5))
	require.True(t, p.over(waits, log(to(1, 10<<20)), clock(2), 0, clock(2.6)), "it waits for a rank that waits for it, for more")
	p = begin()
	p.asked(9, 0, clock(2.1))
	require.False(t, p.over(waits, waits, clock(2), 0, clock(2.4)))
	require.True(t, p.over(waits, waits, clock(2), 0, clock(2.5)), "somebody can keep no more")
	p = begin()
	require.False(t, p.over(waits, waits, clock(2), time.Second, clock(3.9)))
	require.True(t, p.over(waits, waits, clock(2), time.Second, clock(4)), "the rank has gone on for half of the interval")
	p = begin()
	require.True(t, p.over(waits, waits, clock(2), 10*time.Second, clock(6)), "it stands still, but this is enough")
	p = begin()
	p.asked(9, 0, clock(2.1))
	require.True(t, p.over(waits, waits, clock(2), time.Second, clock(2.5)), "it stands still, but somebody can keep no more")
}

// For how long a rank stands still is told by its safe points.
func TestADraftOfARankThatStands(t *testing.T) {
	d := &draft{since: clock(0), waits: log(to(3, 1<<20))}
	for at, passed := 0., uint64(7); at < 2; at += 0.005 {
		if at < 0.5 || at > 1.5 {
			passed++
		}
		d.look(passed, clock(at))
	}
	require.InDelta(t, (time.Second - stands).Seconds(), d.stood.Seconds(), 0.02)
	d.heardOf([]control.Placement{{Rank: 4, Process: 1}})
	require.Less(t, d.stood, time.Second)
	d.heardOf([]control.Placement{{Rank: 3, Process: 1}})
	require.Greater(t, d.stood, time.Hour, "who is waited for is elsewhere: as if it began now")
}

// A wait that spares nothing is tried again later and later.
func TestWaitsInVainBecomeRare(t *testing.T) {
	p := newPace(0, every, false, clock(0))
	tries := 0
	const snapshots = 300
	for i := range snapshots {
		now := clock(float64(2 * i))
		if waits := p.take(0, log(to(1, 1<<20)), now); waits != nil {
			tries++
			require.False(t, p.over(waits, waits, now, 0, now.Add(every/2-1)))
			require.True(t, p.over(waits, waits, now, 0, now.Add(every/2)))
		}
		p.saved(1 << 20)
	}
	require.Greater(t, tries, 6)
	require.Less(t, tries, 12)
}

func TestWhoIsAskedSavesIfThatCostsLess(t *testing.T) {
	p := newPace(0, every, false, clock(0))
	require.Equal(t, clock(2), p.next)
	p.take(0, nil, clock(2))
	p.saved(1000)
	p.asked(1, 1999, clock(3))
	require.Equal(t, clock(4), p.next, "it costs more than half of what it spares")
	p.asked(1, 2000, clock(3))
	require.Equal(t, clock(3), p.next)
	p.take(0, nil, clock(3))
	require.Equal(t, clock(6.5), p.next, "who asked is to be first the next time")
	p.asked(1, 2000, clock(3.01))
	require.Equal(t, clock(3.125), p.next, "not again at once")
	p.asked(1, 0, clock(3.02))
	require.Equal(t, clock(3.02), p.next, "but when somebody can keep no more")
}

// What stays on its host is cheap, and ranks stand still for it at the same times.
func TestSnapshotsThatStayAreTakenWhenTheySpareALittle(t *testing.T) {
	p := newPace(0, every, true, clock(0))
	p.asked(1, 1<<20, clock(0.3))
	require.Equal(t, clock(0.375), p.next, "the first, too; on a multiple of an eighth of a second")
	p.take(0, nil, clock(0.376))
	p.saved(3 << 20)
	require.Equal(t, clock(2), p.next)
	p.asked(1, 1<<20, clock(0.38))
	require.Equal(t, clock(2), p.next, "it costs more than that")
	p.asked(1, 2<<20, clock(0.39))
	require.Equal(t, clock(0.5), p.next, "not before some time has passed")
	p.asked(1, 0, clock(0.4))
	require.Equal(t, clock(0.4), p.next, "somebody can keep no more")

	p = newPace(0, every/10, true, clock(0))
	p.asked(1, 1<<20, clock(0.01))
	require.Equal(t, clock(0.05), p.next, "not more often, however often snapshots are taken")
}
