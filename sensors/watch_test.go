package sensors

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A feed gives a watch readings of 100 ms.
type feed struct {
	t     *testing.T
	watch *Watch
	now   time.Time
	began []Breach
	ended []Breach
}

func newFeed(t *testing.T, o WatchOptions) *feed {
	return &feed{t: t, watch: newWatch(t, o), now: origin}
}

// each gives n readings like r.
func (f *feed) each(n int, r Reading) {
	for range n {
		f.now = f.now.Add(100 * time.Millisecond)
		r.At = f.now
		if b, ok := f.watch.Observe(r); !ok {
			continue
		} else if b.Ended.IsZero() {
			f.began = append(f.began, b)
		} else {
			f.ended = append(f.ended, b)
		}
	}
}

// over is a reading of a link that delivers so many bytes a second all the time.
func over(l Link, rate float64) Reading {
	r := Reading{Link: l, Size: Large, Over: 100 * time.Millisecond, Busy: 100 * time.Millisecond, Bytes: uint64(rate / 10), Limited: true, RTT: time.Millisecond}
	if r.Bytes == 0 {
		r.Pending = 1 << 20
	}
	return r
}

func slack(r Reading) Reading { r.Limited = false; return r }

// queued is r where the program gave no more, and what it gave stood in a queue.
func queued(r Reading) Reading { r.Limited, r.Standing = false, true; return r }

var (
	there = Link{"X", "Y", "lan"}
	back  = there.Back()
)

func kinds(notes []Note) (all []string) {
	for _, n := range notes {
		all = append(all, n.Kind.String())
	}
	return all
}

func TestBreachBeginsAndEndsOnce(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(100, over(there, 12e6))
	fell := f.now
	f.each(50, over(there, 0.6e6))
	require.Len(t, f.began, 1)
	b := f.began[0]
	require.Equal(t, there, b.Link)
	require.Equal(t, Large, b.Size)
	require.InEpsilon(t, 12e6, b.Promised, 0.01)
	require.InEpsilon(t, 0.6e6, b.Seen, 0.01)
	require.Equal(t, fell, b.Since)
	require.LessOrEqual(t, b.At.Sub(fell), time.Second)
	require.Len(t, broken(f.watch), 1)
	require.Greater(t, broken(f.watch)[0].Sure, 0.99, "more readings make it surer")

	healed := f.now
	f.each(50, over(there, 11e6))
	require.Len(t, f.began, 1)
	require.Len(t, f.ended, 1)
	require.Equal(t, healed, f.ended[0].Ended)
	require.LessOrEqual(t, f.ended[0].At.Sub(healed), 2*time.Second)
	require.InEpsilon(t, 11e6, f.ended[0].Seen, 0.01)
	require.Empty(t, broken(f.watch))

	f.each(20, over(there, 0))
	require.Len(t, f.began, 2, "a second breach of the same link")
	require.Contains(t, f.began[1].String(), "nothing arrived for")
}

// One good reading is no recovery, a second time as little as the first; and how sure a breach is stays a probability however
// long it lasts.
func TestASecondBreachEndsAsTheFirst(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(100, over(there, 12e6))
	f.each(1000, over(there, 0.6e6))
	require.InDelta(t, 1, broken(f.watch)[0].Sure, 0.01)
	f.each(50, over(there, 12e6))
	require.Len(t, f.ended, 1)
	for len(f.began) < 2 {
		f.each(1, over(there, 0.6e6))
	}
	f.each(1, over(there, 12e6))
	require.Len(t, f.ended, 1)
	f.each(50, over(there, 12e6))
	require.Len(t, f.ended, 2)
	require.True(t, f.ended[1].Ended.After(f.began[1].Since))
}

// A link that hung, and is slow since, is not well when its program asks for less.
func TestSlackAfterAHangIsNoRecovery(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(100, over(there, 12e6))
	f.each(20, over(there, 0))
	require.Len(t, f.began, 1)
	f.each(10, over(there, 0.6e6))
	f.each(100, slack(over(there, 0.6e6)))
	require.Empty(t, f.ended)
}

// A link is in doubt with less than a third of what others promise. Each counts once, though it was learned anew.
func TestWhichLinksAreInDoubt(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	z, other := Link{"X", "Z", "lan"}, Link{"Z", "Y", "lan"}
	f.each(100, over(z, 12e6))
	f.each(100, over(back, 12e6))
	f.each(100, over(there, 5e6))
	f.each(100, over(other, 3e6))
	for _, p := range f.watch.Contract().Promises {
		require.Equal(t, p.Link == other, p.Doubt != "", "%v", p.Link)
	}
	f.each(200, over(other, 12e6))
	for _, p := range f.watch.Contract().Promises {
		require.Empty(t, p.Doubt, "%v", p.Link)
	}
	for _, all := range f.watch.like {
		require.Len(t, all, 4)
	}
}

func TestHangsBreachWithoutPromise(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	short := Reading{Link: there, Size: Small, Over: 100 * time.Millisecond, Busy: 90 * time.Millisecond, Bytes: 800}
	hang := Reading{Link: there, Size: Small, Over: 100 * time.Millisecond, Pending: 8, Limited: true}
	f.each(10, hang)
	require.Empty(t, f.began, "a link that never delivered is another's concern")
	f.each(100, short)
	require.Empty(t, f.watch.Contract().Promises)
	f.each(50, slack(hang))
	require.Empty(t, f.began, "the receiver's window is closed")
	f.each(10, hang)
	require.Len(t, f.began, 1)
	require.Contains(t, f.began[0].String(), "it hangs, and nothing is promised yet; nothing arrived for")
	f.each(30, short)
	require.Len(t, f.ended, 1)
	f.each(1000, short)
	require.Len(t, f.began, 1)
}

func TestHangEndsWithSlackReadings(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(30, over(there, 12e6))
	f.each(30, over(there, 0))
	require.Len(t, f.began, 1)
	f.each(30, slack(over(there, 1e6)))
	require.Len(t, f.ended, 1, "it hangs no more, and the program sends little")
	f.each(30, over(there, 1e6))
	require.Len(t, f.began, 2)
	f.each(100, slack(over(there, 1e6)))
	require.Len(t, f.ended, 1, "readings in which the program is the limit end no slow link's breach")
}

func TestNoBreach(t *testing.T) {
	idle := Reading{Link: there, Size: Large, Over: 100 * time.Millisecond}
	small := Reading{Link: there, Size: Small, Over: 100 * time.Millisecond, Busy: 90 * time.Millisecond, Bytes: 800, Limited: true}
	tests := []struct {
		name string
		run  func(f *feed)
	}{
		{"the program sends little, for an hour", func(f *feed) { f.each(36000, slack(over(there, 100e3))) }},
		{"and nothing at all", func(f *feed) { f.each(36000, idle) }},
		{"the receiving program is busy and its window closed", func(f *feed) { f.each(600, slack(over(there, 0))) }},
		{"half of the rate", func(f *feed) { f.each(6000, over(there, 6.1e6)) }},
		{"a pause of 400 ms in each two seconds", func(f *feed) {
			for range 600 {
				f.each(4, over(there, 0))
				f.each(16, over(there, 12e6))
			}
		}},
		{"a few bytes beside pauses", func(f *feed) { f.each(6000, small) }},
		{"bursts that are slow where the program is", func(f *feed) {
			for range 600 {
				f.each(3, over(there, 12e6))
				f.each(20, slack(over(there, 10)))
				f.each(20, idle)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFeed(t, WatchOptions{Mode: Enforce})
			f.each(30, over(there, 12e6))
			require.Len(t, f.watch.Contract().Promises, 1)
			tt.run(f)
			require.Empty(t, f.began)
			if p := f.watch.Contract().Promises; !strings.HasPrefix(tt.name, "half") {
				require.InEpsilon(t, 12e6, p[len(p)-1].Rate, 0.02, "the promise stays")
			}
			f.each(10, over(there, 0))
			require.Len(t, f.began, 1, "and the watch has not become blind")
		})
	}
}

func TestLearning(t *testing.T) {
	slow := func(n string) Link { return Link{n, "Y", "lan"} }
	tests := []struct {
		name  string
		run   func(f *feed)
		rate  float64 // promised of X>Y; 0: nothing
		doubt string
		notes []string
	}{
		{"20 readings are too few when 2 s have not passed", func(f *feed) { f.each(20, over(there, 12e6)) }, 0, "", nil},
		{"21 readings of 100 ms", func(f *feed) { f.each(21, over(there, 12e6)) }, 12e6, "", []string{"learned"}},
		{"what the program limits is not learned", func(f *feed) { f.each(1000, slack(over(there, 12e6))) }, 0, "", nil},
		{"but what stood in a queue is, though it may have been that of the answers", func(f *feed) {
			f.each(30, queued(over(there, 12e6)))
			f.each(600, queued(over(there, 1e6)))
			require.Empty(f.t, f.began, "and so it breaches nothing")
		}, 12e6, "", []string{"learned"}},
		{"while a host is flooded nothing is", func(f *feed) {
			for range 100 {
				f.watch.Host("Y", HostState{At: f.now, Flooded: true})
				f.each(1, over(there, 1e6))
			}
		}, 0, "", []string{"held"}},
		{"and afterwards it is in doubt", func(f *feed) {
			f.watch.Host("X", HostState{At: f.now, Flooded: true})
			f.each(80, over(there, 12e6))
		}, 12e6, "right after", []string{"held", "learned"}},
		{"a fall while it is learned", func(f *feed) {
			f.each(12, over(there, 12e6))
			f.each(12, over(there, 1e6))
		}, 12e6, "fell", []string{"learned"}},
		{"a rise while it is learned: the later counts", func(f *feed) {
			f.each(11, over(there, 1e6))
			f.each(24, over(there, 12e6))
		}, 12e6, "", []string{"learned"}},
		{"a hang while it is learned is said", func(f *feed) { f.each(30, over(there, 0)) }, 0, "", []string{"held"}},
		{"learned under attack, seen when that ends", func(f *feed) {
			f.each(100, over(there, 0.6e6))
			f.each(60, over(there, 12e6))
		}, 12e6, "", []string{"learned", "raised", "learned"}},
		{"learned under attack, seen beside other links", func(f *feed) {
			f.each(40, over(there, 0.6e6))
			f.each(40, over(slow("W"), 12e6))
			f.each(40, over(slow("Z"), 11e6))
		}, 0.6e6, "less than a third", []string{"learned", "learned", "learned", "doubted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFeed(t, WatchOptions{Mode: Enforce})
			tt.run(f)
			var got Promise
			for _, p := range f.watch.Contract().Promises {
				if p.Link == there {
					got = p
				}
			}
			require.InDelta(t, tt.rate, got.Rate, tt.rate/20)
			if tt.doubt == "" {
				require.Empty(t, got.Doubt)
			}
			require.Contains(t, got.Doubt, tt.doubt)
			require.Equal(t, tt.notes, kinds(f.watch.Notes()))
			require.Empty(t, f.watch.Notes(), "notes are said once")
		})
	}
}

func TestPromiseFollowsSlowlyAndNotFar(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(100, over(there, 12e6))
	f.each(36000, over(there, 7e6))
	require.Empty(t, f.began)
	require.InEpsilon(t, 7e6, f.watch.Contract().Promises[0].Rate, 0.05)
	for rate := 6.5e6; rate > 1e6 && len(f.began) == 0; rate *= 0.9 {
		f.each(18000, over(there, rate))
	}
	require.Len(t, f.began, 1, "a slow decline is a breach in the end")
	require.GreaterOrEqual(t, f.began[0].Promised, 6e6*0.99)
	require.Greater(t, f.began[0].Seen, 1.2e6)
}

func TestModes(t *testing.T) {
	for _, mode := range []Mode{Off, Learn, Enforce} {
		f := newFeed(t, WatchOptions{Mode: mode})
		f.each(100, over(there, 12e6))
		f.each(50, over(there, 0))
		require.Equal(t, mode != Off, len(f.watch.Contract().Promises) == 1, "%v learns", mode)
		require.Equal(t, mode == Enforce, len(f.began) == 1, "%v tells", mode)
		require.Equal(t, mode == Enforce, len(broken(f.watch)) == 1, "%v tells", mode)
		again, err := ParseMode(mode.String())
		require.NoError(t, err)
		require.Equal(t, mode, again)
	}
	_, err := ParseMode("maybe")
	require.ErrorContains(t, err, "enforce")
}

func TestThresholdsGoFirst(t *testing.T) {
	set, err := ParseThresholds("X>Y:5MB/s")
	require.NoError(t, err)
	f := newFeed(t, WatchOptions{Mode: Enforce, Thresholds: set, Contract: Contract{[]Promise{
		{Link: there, Size: Large, Rate: 100e6, Best: 100e6, Spread: 0.2, Samples: 100},
		{Link: back, Size: Large, Rate: 100e6, Best: 100e6, Spread: 0.2, Samples: 100},
	}}})
	f.each(600, over(there, 6e6))
	require.Empty(t, f.began)
	f.each(50, over(there, 3e6))
	require.Len(t, f.began, 1)
	require.Equal(t, 5e6, f.began[0].Promised)
	require.Equal(t, 5e6, f.began[0].Least)
	require.Contains(t, f.began[0].String(), "where 5 MB/s are demanded")
	f.each(50, over(there, 8e6))
	require.Len(t, f.ended, 1)
	f.each(50, over(back, 6e6))
	require.Len(t, f.began, 2, "the other direction has its contract")
	kept := f.watch.Contract().Promises
	require.Len(t, kept, 2)
	require.Equal(t, 100e6, kept[0].Rate, "a threshold is not learned, and what was promised is not lost")
}

func TestEvidence(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	for range 60 {
		f.each(1, over(there, 12e6))
		f.each(1, over(back, 10e6))
	}
	f.watch.Host("X", HostState{At: f.now.Add(-time.Minute), CPU: 1})
	slow := over(there, 1e6)
	slow.RTT = 80 * time.Millisecond
	for range 20 {
		f.watch.Host("Y", HostState{At: f.now, CPU: 0.05, Steal: -1, Throttled: 0, Pressure: -1, ForeignIn: 11e6, Flooded: true})
		f.each(1, slow)
		f.each(1, over(back, 9e6))
	}
	require.Len(t, f.began, 1)
	e := broken(f.watch)[0].Evidence
	require.InEpsilon(t, 0.08, e.RTT.Seconds(), 0.1)
	require.InEpsilon(t, 0.001, e.UsualRTT.Seconds(), 0.1)
	require.InDelta(t, 0.95, e.Opposite, 0.06) // young promises follow fast
	require.True(t, e.From.At.IsZero(), "what is old is no evidence")
	require.True(t, e.To.Flooded)
	require.Greater(t, e.Readings, 5)
	text := broken(f.watch)[0].String()
	for _, part := range []string{"X>Y@lan large", "1 MB/s", "11.9 MB/s are promised", "round trip", "other direction at", "Y: cpu 5 %", "flooded"} {
		require.Contains(t, text, part)
	}
	require.NotContains(t, text, "steal")
}

func TestLoadedContractHoldsAtOnce(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Learn})
	f.each(1000, over(there, 12e6))
	var file bytes.Buffer
	require.NoError(t, f.watch.Contract().Store(&file))
	c, err := Load(&file)
	require.NoError(t, err)
	require.Equal(t, f.watch.Contract(), c)

	g := newFeed(t, WatchOptions{Mode: Enforce, Contract: c})
	g.each(20, over(there, 3e6))
	require.Len(t, g.began, 1)
}

// Who loads a contract and stores it again without a reading has changed nothing.
func TestALoadedContractStaysAsItIs(t *testing.T) {
	var all []Promise
	for i, p := range []Promise{{Spread: 0.42, Samples: 40}, {Spread: 0.25, Samples: 20}, {Spread: 0.2, Samples: 60}, {Spread: 0.1, Samples: 600}, {Spread: 0.8, Samples: 30}} {
		p.Link, p.Rate, p.Best = Link{From: "x", To: fmt.Sprint(i)}, 1e6, 1e6
		all = append(all, p)
	}
	w, err := NewWatch(WatchOptions{Contract: Contract{all}})
	require.NoError(t, err)
	for i, p := range w.Contract().Promises {
		require.InEpsilon(t, all[i].Spread, p.Spread, 1e-9)
		p.Spread = all[i].Spread
		require.Equal(t, all[i], p)
	}
}

// Two jobs that go by one file learn of other links, and each keeps what the other has stored.
func TestContractsBesideThoseOfOthers(t *testing.T) {
	at := func(to string, rate float64) Promise {
		return Promise{Link: Link{From: "x", To: to}, Rate: rate, Best: rate, Spread: 0.25, Samples: 20}
	}
	f := newFeed(t, WatchOptions{Mode: Learn, Contract: Contract{[]Promise{at("old", 1e6), at("gone", 1e6)}}})
	f.each(1000, over(there, 12e6))
	rates := map[string]float64{}
	for _, p := range f.watch.Beside(Contract{[]Promise{at("new", 2e6), at("old", 3e6)}}).Promises {
		rates[p.Link.To] = p.Rate
	}
	require.Len(t, rates, 4)
	require.InDelta(t, 12e6, rates[there.To], 1e6, "learned here")
	delete(rates, there.To)
	require.Equal(t, map[string]float64{"old": 3e6, "new": 2e6, "gone": 1e6}, rates)

	learned := f.watch.Contract().Promises
	i := slices.IndexFunc(learned, func(p Promise) bool { return p.Link == there })
	again := learned[i]
	again.Rate = 1
	require.Contains(t, f.watch.Beside(Contract{[]Promise{again}}).Promises, learned[i], "what this one has seen goes first")
}

func TestWatchIsBounded(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce, Links: 2})
	for _, to := range []string{"A", "B", "C", "D"} {
		f.each(30, over(Link{"X", to, ""}, 12e6))
	}
	require.Len(t, f.watch.Contract().Promises, 2)
	require.Equal(t, []string{"learned", "learned", "full"}, kinds(f.watch.Notes()))
	for range 300 {
		f.watch.note(f.now, Held, key{}, "")
	}
	require.Len(t, f.watch.Notes(), notesMost)
}

func TestSenselessReadingsAndOptions(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(30, over(there, 12e6))
	for _, r := range []Reading{
		{},
		{Link: there, Size: Large, Over: -1, Busy: 1, Bytes: 1, Limited: true},
		{Link: there, Size: 77, Over: time.Second, Busy: time.Second, Pending: 1, Limited: true},
		{Link: there, Size: Large, Over: time.Second, Busy: -time.Second, Bytes: 1, Limited: true},
		{Link: there, Size: Large, Over: time.Second, Busy: time.Second, Limited: true},
	} {
		f.each(100, r)
	}
	require.Empty(t, f.began)
	for _, o := range []WatchOptions{
		{Tolerate: 1}, {Tolerate: -1},
		{Contract: Contract{[]Promise{{Link: there}}}},
		{Contract: Contract{[]Promise{{Link: there, Rate: 1, Best: 1, Spread: 1}, {Link: there, Rate: 1, Best: 1, Spread: 1}}}},
	} {
		_, err := NewWatch(o)
		require.Error(t, err, "%+v", o)
	}
}

func BenchmarkWatch(b *testing.B) {
	w := newWatch(b, WatchOptions{Mode: Enforce})
	r := over(there, 12e6)
	r.At = origin
	b.ReportAllocs()
	for b.Loop() {
		r.At = r.At.Add(100 * time.Millisecond)
		w.Observe(r)
	}
}

// A copy of a large file takes half of a link. That is no breach by itself, but it is where the host shows who
// takes it; traffic of others that takes nothing from the job, goes the other way or was always there is none either.
func TestTrafficOfOthersExplainsASmallerFall(t *testing.T) {
	for name, c := range map[string]struct {
		before, in, out float64 // of others at the sender
		left            float64
		breaches        int
	}{
		"a fall without a cause":           {0, 0, 0, 0.55, 0},
		"a fall, and somebody's copy":      {0, 0, 5e6, 0.55, 1},
		"a copy the other way":             {0, 5e6, 0, 0.55, 0},
		"as much of others as ever":        {5e6, 0, 5e6, 0.55, 0},
		"a little of somebody's, and slow": {0, 0, 1e6, 0.55, 0},
		"a copy that takes nothing":        {0, 0, 5e6, 0.95, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t, WatchOptions{Mode: Enforce})
			for range 900 { // a minute and a half
				f.watch.Host("X", HostState{At: f.now, ForeignOut: c.before})
				f.each(1, over(there, 12e6))
			}
			fell := f.now
			for range 20 {
				f.watch.Host("X", HostState{At: f.now, ForeignIn: c.in, ForeignOut: c.out})
				f.each(1, over(there, c.left*12e6))
			}
			require.Len(t, f.began, c.breaches)
			if c.breaches > 0 {
				require.Less(t, f.began[0].At.Sub(fell), 1500*time.Millisecond)
			}
		})
	}
}

// A copy that gets but a third of a link, which has just been learned, is seen as soon as its traffic is: what is
// promised does not follow the fall meanwhile. What others send is a mean of the last 0.8 s.
func TestACopyThatGetsAThird(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	learned := []float64{11, 11.4, 10.2, 11, 11.7, 11.6, 7.5, 11.8, 11, 11.5, 11.7, 11.7}
	for _, rate := range learned {
		f.watch.Host("X", HostState{At: f.now})
		f.each(2, over(there, rate*1e6))
	}
	require.Len(t, f.watch.Contract().Promises, 1)
	promised := f.watch.Contract().Promises[0].Rate
	fell := f.now
	for i := range 15 {
		f.watch.Host("X", HostState{At: f.now, ForeignOut: min(float64(i)/4, 1) * 3.8e6})
		f.each(2, over(there, 7.6e6))
	}
	require.Len(t, f.began, 1)
	require.Less(t, f.began[0].At.Sub(fell), 1500*time.Millisecond)
	require.InEpsilon(t, promised, f.began[0].Promised, 0.07)
}

// A moment in which traffic of the job is taken for that of others makes no breach.
func TestAMomentOfTrafficOfOthers(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce})
	f.each(100, over(there, 12e6))
	for i := range 100 {
		f.watch.Host("X", HostState{At: f.now, ForeignOut: []float64{0, 4e6, 5e6}[i%3]})
		f.each(1, over(there, 0.7*12e6))
	}
	require.Empty(t, f.began)
}

// broken is the breaches that last, as they are now, by link and size.
func broken(w *Watch) (all []Breach) {
	for _, l := range w.links {
		if l.broken && w.o.Mode == Enforce {
			all = append(all, l.breach)
		}
	}
	slices.SortFunc(all, func(a, b Breach) int { return cmp.Or(a.Link.compare(b.Link), cmp.Compare(a.Size, b.Size)) })
	return all
}

// That a breach lasts is to be seen anew when nothing has used the link for a while.
func TestABreachLasts(t *testing.T) {
	f := newFeed(t, WatchOptions{Mode: Enforce, Thresholds: []Threshold{{From: "X", To: "Y", AnySize: true, Rate: 8e6}}})
	lasts := func() bool { _, ok := f.watch.Lasts(over(there, 1e6)); return ok }
	f.each(20, over(there, 1e6))
	require.Len(t, f.began, 1)
	require.True(t, lasts())
	f.now = f.now.Add(20 * time.Second)
	f.each(1, over(there, 1e6))
	require.False(t, lasts(), "one reading shows nothing")
	f.each(9, over(there, 1e6))
	require.True(t, lasts())
	f.each(2, over(there, 2e7))
	require.False(t, lasts(), "it does better")
	require.Len(t, f.began, 1)
	require.Empty(t, f.ended)
}

func TestContractsBesideVeryMany(t *testing.T) {
	var c Contract
	for i := range 30000 {
		c.Promises = append(c.Promises, Promise{Link: Link{From: fmt.Sprint("host", i), To: "Z"}, Size: Large, Rate: 1e6, Best: 1e6, Spread: 0.2})
	}
	w, err := NewWatch(WatchOptions{Contract: c})
	require.NoError(t, err)
	require.Len(t, w.Beside(c).Promises, len(c.Promises))
}
