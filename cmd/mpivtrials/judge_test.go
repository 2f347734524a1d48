//go:build linux

package main

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

func TestClaims(t *testing.T) {
	for want, c := range map[string]claim{
		"pause: 63 ms, bar ≤ 100 ms: kept":      {what: "pause", measured: 63, unit: "ms", bar: 100},
		"pause: 100.2 ms, bar ≤ 100 ms: MISSED": {what: "pause", measured: 100.2, unit: "ms", bar: 100},
		"lost: 0, bar ≤ 0: kept":                {what: "lost"},
		"lost: 1, bar ≤ 0: MISSED":              {what: "lost", measured: 1},
		"hits: 0, bar ≥ 1: MISSED":              {what: "hits", bar: 1, least: true},
		"share: 98 %, bar ≥ 98 %: kept":         {what: "share", measured: 98, unit: "%", bar: 98, least: true},
		"met: nothing, bar ≤ 2 s: MISSED":       {what: "met", measured: math.NaN(), unit: "s", bar: 2},
		"back: +Inf s, bar ≤ 2 s: MISSED":       {what: "back", measured: math.Inf(1), unit: "s", bar: 2},
	} {
		require.Equal(t, want, c.String())
	}
}

func TestWhatHangsOnTheMachineIsNotJudged(t *testing.T) {
	for name, c := range map[string]struct {
		claim   claim
		verdict string
		kept    bool
	}{
		"a time that is too long":  {claim{measured: 3, bar: 2, pace: true}, verdictNone, true},
		"what never came about":    {claim{measured: never, bar: 2, pace: true}, verdictMissed, false},
		"what was not measured":    {claim{measured: math.NaN(), bar: 2, pace: true}, verdictMissed, false},
		"a count that is too high": {claim{measured: 3, bar: 2}, verdictMissed, false},
		"a count that is not":      {claim{measured: 1, bar: 2}, verdictKept, true},
	} {
		d := &desk{options: options{untimed: true}, trial: "test", kept: true}
		d.claim(c.claim)
		require.Equal(t, c.verdict, d.claims[0].verdict(), name)
		require.Equal(t, c.kept, d.kept, name)
	}
}

func TestClaimsAreATable(t *testing.T) {
	require.Equal(t, "| a\\|b: saved | 12.5 % | 17 % | ≥ 17 % | MISSED |", row(claim{what: "a|b:\n saved", measured: 12.5, unit: "%", paper: "17 %", bar: 17, least: true}))
	require.Equal(t, "| lost | 0 |  | ≤ 0 | kept |", row(claim{what: "lost"}))
	o := options{out: t.TempDir()}
	for _, name := range []string{"m2", "cuts"} {
		d := &desk{options: o, trial: name, about: "about " + name, kept: true}
		d.claim(claim{what: "lost"})
		require.NoError(t, d.writeClaims())
	}
	require.NoError(t, o.gather())
	page, err := os.ReadFile(filepath.Join(o.out, claimsName))
	require.NoError(t, err)
	require.Regexp(t, `(?s)^# .*\n## cuts: about cuts\n.*\n\| lost \| 0 \|.*\n## m2: about m2\n`, string(page))
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	require.True(t, math.IsNaN(median(nil)))
	require.True(t, math.IsNaN(largest(nil)))
}

func TestTally(t *testing.T) {
	for name, c := range map[string]struct {
		saw  []uint64
		sent uint64
		want toll
	}{
		"all in order":        {[]uint64{0, 1, 2}, 3, toll{Messages: 3}},
		"the last are lost":   {[]uint64{0}, 3, toll{Messages: 3, Lost: 2}},
		"one is lost":         {[]uint64{0, 2}, 3, toll{Messages: 3, Lost: 1, Disordered: 1}},
		"one comes twice":     {[]uint64{0, 1, 1, 2}, 3, toll{Messages: 3, Doubled: 1}},
		"two change places":   {[]uint64{0, 2, 1, 3}, 4, toll{Messages: 4, Disordered: 2}},
		"late, and twice":     {[]uint64{1, 0, 0}, 2, toll{Messages: 2, Doubled: 1, Disordered: 2}},
		"a number of nobody":  {[]uint64{0, 1 << 60, 1}, 2, toll{Messages: 2, Wrong: 1}},
		"nothing was sent":    {nil, 0, toll{}},
		"nothing has arrived": {nil, 2, toll{Messages: 2, Lost: 2}},
	} {
		var got tally
		for _, n := range c.saw {
			got.saw(n)
		}
		require.Equal(t, c.want, got.toll(c.sent), name)
	}
}

func TestTollIsReadAsItIsWritten(t *testing.T) {
	want := toll{5, 4, 3, 2, 1}
	got, ok := parseToll(want.String())
	require.True(t, ok)
	require.Equal(t, want, got)
	_, ok = parseToll("big 1 2 3")
	require.False(t, ok)
}

// TestPairNoticesEveryFault plays faults into a stream whose messages say nothing of
// themselves.
func TestPairNoticesEveryFault(t *testing.T) {
	p := pair{seed: 3, from: 1, to: 2}
	for name, c := range map[string]struct {
		order []uint64
		flip  int // of these: the message whose last byte is another; -1: none
		want  toll
	}{
		"none":       {[]uint64{0, 1, 2, 3, 4}, -1, toll{Messages: 5}},
		"lost":       {[]uint64{0, 1, 3, 4}, -1, toll{Messages: 5, Lost: 1, Disordered: 1}},
		"doubled":    {[]uint64{0, 1, 2, 2, 3, 4}, -1, toll{Messages: 5, Doubled: 1}},
		"disordered": {[]uint64{0, 2, 1, 3, 4}, -1, toll{Messages: 5, Disordered: 2}},
		"spoilt":     {[]uint64{0, 1, 2, 3, 4}, 2, toll{Messages: 5, Wrong: 1}},
	} {
		var got tally
		spare := make([]byte, largestMessage)
		for i, k := range c.order {
			b := p.message(k, make([]byte, largestMessage))
			require.NotEmpty(t, b)
			if i == c.flip {
				b[len(b)-1] ^= 1
			}
			p.check(&got, b, spare)
		}
		require.Equal(t, c.want, got.toll(5), name)
	}
}

var begun = time.Unix(1_700_000_000, 0)

func at(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }

func gap(from, to int) span { return span{at(from), at(to)} }

func TestPausesBelongToTheLastEvent(t *testing.T) {
	outages := []outage{{cut: at(1000), heal: at(4000)}, {cut: at(5000), heal: at(8000)}}
	cut, heal, quiet := pauses([]span{
		gap(100, 120),   // before anything
		gap(999, 1060),  // began just before the cut
		gap(1100, 1120), // shorter
		gap(3500, 3540), // long after the cut
		gap(4010, 4030),
		gap(4990, 5090), // of the second cut, not of the heal before
		gap(5500, 9000), // lasts beyond the heal, and is that one's
	}, outages)
	require.Equal(t, []time.Duration{61 * time.Millisecond, 100 * time.Millisecond}, cut)
	require.Equal(t, []time.Duration{20 * time.Millisecond, 3500 * time.Millisecond}, heal)
	require.Equal(t, 40*time.Millisecond, quiet)
}

// meterOf makes readings each 10 ms; lan and san are MB/s in each.
func meterOf(lan, san []uint64) (rs []reading) {
	var l, s uint64
	for i := range lan {
		rs = append(rs, reading{at(10 * i), map[string]load{"lan": {in: l}, "san": {out: s}}})
		l, s = l+lan[i]*10_000, s+san[i]*10_000
	}
	return rs
}

func TestSettled(t *testing.T) {
	n := func(values ...uint64) []uint64 { return values }
	rs := meterOf(
		n(90, 90, 90, 90, 90, 90, 10, 0, 0, 0, 0, 0),
		n(0, 0, 3, 0, 0, 0, 90, 90, 90, 90, 90, 90))
	require.Equal(t, at(90), settled(rs, at(0), 1<<20))
	require.Zero(t, settled(rs, at(0), 100<<20), "that little is no traffic")
	require.Zero(t, settled(rs, at(80), 1<<20), "a whole window must have passed")
	require.InDelta(t, 100_000, carried(rs, "lan", at(60), at(200)), 1)
}

func TestWhatTheCableLeaves(t *testing.T) {
	quiet := phase{rate: 20e6, mean: 20e6, in: 0.5e6, out: 25e6}
	in, out := quiet.besideJob(quiet)
	require.Zero(t, in)
	require.Zero(t, out)
	require.Equal(t, 20e6, quiet.left(quiet))
	p := phase{rate: 17e6, mean: 16e6, in: 2.4e6, out: 22.5e6}
	in, out = p.besideJob(quiet)
	require.InDelta(t, 2e6, in, 1)
	require.InDelta(t, 2.5e6, out, 1)
	require.InDelta(t, 18e6, p.left(quiet), 1, "a tenth of the cable is others'")
	require.Equal(t, 20e6, phase{mean: 20e6, out: 24e6}.left(quiet), "never more than there is")
}

func TestCutsAreJudged(t *testing.T) {
	var lan, san []uint64
	for i := range 100 { // the cut is from 500 to 900 ms
		out := i >= 50 && i < 90
		switch {
		case out:
			lan, san = append(lan, 60), append(san, 0)
		default:
			lan, san = append(lan, 20), append(san, 40)
		}
	}
	c := cut{network: "san", from: at(500), to: at(900)}
	c.judge(meterOf(lan, san))
	require.True(t, c.hit)
	require.True(t, c.moved)

	c = cut{network: "san", from: at(500), to: at(900)}
	c.judge(meterOf(make([]uint64, 100), make([]uint64, 100)))
	require.False(t, c.hit, "nothing was on its way")
	require.False(t, c.moved)
}

func TestASeedNamesItsCuts(t *testing.T) {
	hosts := []lab.Host{{Name: "X", Networks: []string{"lan"}}, {Name: "Y", Networks: []string{"lan", "san"}}}
	play := func(seed uint64) (all []cut, times []time.Duration) {
		r := rand.New(rand.NewPCG(seed, 0))
		for range 20 {
			rest, c, lasts := cutPlan(r, hosts)
			require.LessOrEqual(t, lasts, longestCut)
			require.GreaterOrEqual(t, lasts, shortestCut)
			require.Less(t, rest, longestRest)
			all, times = append(all, c), append(times, rest, lasts)
		}
		return all, times
	}
	first, times := play(1)
	again, same := play(1)
	require.Equal(t, first, again)
	require.Equal(t, times, same)
	other, _ := play(2)
	require.NotEqual(t, first, other)
}
