//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"sync"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/mpiv/mpiv/chaos/lab"
)

const (
	failoverCut  = 3 * time.Second          // how long the SAN is away
	failoverBack = 10 * time.Second         // how long a return to it is waited for
	failoverRest = 10500 * time.Millisecond // before the next round: a path that fails again sooner is kept out on purpose
	pauseSpan    = 2 * time.Second          // pauses so soon after a cut or a heal count as its
	backWindow   = 50 * time.Millisecond
	backBytes    = 1 << 20 // in a window: more than greetings and probes are
)

// A span is a stretch of time.
type span struct{ from, to time.Time }

func (s span) contains(t time.Time) bool { return !t.Before(s.from) && !t.After(s.to) }

// An outage is one round of failover.
type outage struct {
	kind      string
	cut, heal time.Time
	back      time.Duration // from heal until the SAN carried most again; <0: never
}

// spoken is what the ranks of failover have printed.
type spoken struct {
	mu   sync.Mutex // guards what follows
	bigs []span
	gaps []span
	toll *toll
}

func (s *spoken) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var k, a, b int64
	if _, err := fmt.Sscanf(text, "big %d %d %d", &k, &a, &b); err == nil {
		s.bigs = append(s.bigs, span{time.Unix(0, a), time.Unix(0, b)})
	} else if _, err := fmt.Sscanf(text, "gap %d %d", &a, &b); err == nil {
		s.gaps = append(s.gaps, span{time.Unix(0, a), time.Unix(0, a+b)})
	} else if t, ok := parseToll(text); ok {
		s.toll = &t
	}
}

// pauses are the longest gaps after each cut and after each heal, and the longest
// that belongs to neither. A gap belongs to the last event before its end, unless
// it began long after that.
func pauses(gaps []span, outages []outage) (cut, heal []time.Duration, quiet time.Duration) {
	cut, heal = make([]time.Duration, len(outages)), make([]time.Duration, len(outages))
	for _, g := range gaps {
		var event time.Time
		longest := &quiet
		for i, o := range outages {
			if o.cut.Before(g.to) {
				event, longest = o.cut, &cut[i]
			}
			if o.heal.Before(g.to) {
				event, longest = o.heal, &heal[i]
			}
		}
		if g.from.After(event.Add(pauseSpan)) {
			longest = &quiet
		}
		*longest = max(*longest, g.to.Sub(g.from))
	}
	return cut, heal, quiet
}

// A fault takes the SAN between Y and Z away and gives it back.
type fault struct {
	kind      string
	cut, heal func() error
}

// failoverFaults are the ways to lose the SAN, which rounds take in turn.
func failoverFaults(ctx context.Context, l *lab.Lab) []fault {
	carrier := func(host string) fault {
		return fault{"carrier of " + host, func() error { return l.Cut(host, "san") }, func() error { return l.Heal(host, "san") }}
	}
	nft := func(rules string) error {
		for _, host := range []string{"Y", "Z"} {
			if out, err := l.Command(ctx, host, "nft", rules).CombinedOutput(); err != nil {
				return fmt.Errorf("nft on %s: %w: %s", host, err, out)
			}
		}
		return nil
	}
	silence := fault{"silence", func() error {
		return nft("add table ip silent; add chain ip silent in { type filter hook prerouting priority raw; }; add rule ip silent in iifname san drop")
	}, func() error { return nft("delete table ip silent") }}
	return []fault{carrier("Y"), silence, carrier("Z")}
}

func failover(ctx context.Context, d *desk) error {
	l, err := lab.New(lab.Options{
		Hosts:    []lab.Host{{Name: "Y", Networks: []string{"lan", "san"}}, {Name: "Z", Networks: []string{"lan", "san"}}},
		Networks: []lab.Network{{Name: "lan", Rate: lab.Gbit}, {Name: "san", Rate: 2 * lab.Gbit}},
	})
	if err != nil {
		return err
	}
	defer l.Close()
	faults := failoverFaults(ctx, l)
	if _, err := exec.LookPath("nft"); err != nil {
		d.note("no silent partitions: there is no nft here")
		faults = []fault{faults[0], faults[2]}
	}
	var said spoken
	j, err := d.start(ctx, l, map[string]int{"Y": 1, "Z": 1}, said.line, nil, d.self, roleFailover)
	if err != nil {
		return err
	}
	defer j.kill()
	m, err := watch(l, "Y", 10*time.Millisecond)
	if err != nil {
		return err
	}
	defer m.close()
	var outages []outage
	for i := range d.times(6) {
		o, err := loseSAN(ctx, j, m, faults[i%len(faults)])
		if err != nil {
			return err
		}
		outages = append(outages, o)
	}
	if err := j.sleep(ctx, time.Second); err != nil {
		return err
	}
	if err := j.finish(20 * time.Second); err != nil {
		return err
	}
	rs, err := m.all()
	if err != nil {
		return err
	}
	return d.reportFailover(outages, &said, rs)
}

// loseSAN is one round: the pair is on the SAN, loses it, and gets it back.
func loseSAN(ctx context.Context, j *job, m *meter, f fault) (o outage, err error) {
	o.kind = f.kind
	if back, err := awaitSAN(ctx, j, m, time.Now()); err != nil || back < 0 {
		return o, errors.Join(err, errors.New("the pair did not use the SAN to begin with"))
	}
	if err := j.sleep(ctx, failoverRest+rand.N(300*time.Millisecond)); err != nil {
		return o, err
	}
	o.cut = time.Now()
	if err := f.cut(); err != nil {
		return o, err
	}
	if err := j.sleep(ctx, failoverCut); err != nil {
		return o, err
	}
	if err := f.heal(); err != nil {
		return o, err
	}
	o.heal = time.Now()
	o.back, err = awaitSAN(ctx, j, m, o.heal)
	return o, err
}

// awaitSAN waits until most traffic goes over the SAN and returns how long that took;
// below zero if it did not come to that in time.
func awaitSAN(ctx context.Context, j *job, m *meter, from time.Time) (time.Duration, error) {
	for time.Since(from) < failoverBack {
		rs, err := m.all()
		if err != nil {
			return 0, err
		}
		recent := from // what came before was looked at before
		if t := time.Now().Add(-4 * backWindow); t.After(from) {
			recent = t
		}
		if at := settled(since(rs, recent), from, backBytes); !at.IsZero() {
			return at.Sub(from), nil
		}
		if err := j.sleep(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return -1, nil
}

// since is the readings that are not older than from.
func since(rs []reading, from time.Time) []reading {
	for i, r := range rs {
		if !r.at.Before(from) {
			return rs[i:]
		}
	}
	return nil
}

func (d *desk) reportFailover(outages []outage, said *spoken, rs []reading) error {
	said.mu.Lock()
	defer said.mu.Unlock()
	if said.toll == nil {
		return errors.New("the ranks did not say what they had received")
	}
	var rows [][]string
	var afterCut, afterHeal, back []float64
	hit := 0
	cuts, heals, quiet := pauses(said.gaps, outages)
	for i, o := range outages {
		cut, heal := cuts[i], heals[i]
		afterCut, afterHeal = append(afterCut, millis(cut)), append(afterHeal, millis(heal))
		took := math.Inf(1)
		if o.back >= 0 {
			took = o.back.Seconds()
		}
		back = append(back, took)
		middle := 0
		for _, b := range said.bigs {
			if b.contains(o.cut) {
				middle = 1
			}
		}
		hit += middle
		rows = append(rows, []string{fmt.Sprint(i), o.kind, fmt.Sprint(middle), number(millis(cut)), number(millis(heal)), number(took)})
		d.note("round %d, %s: pause %.0f ms after the cut, %.0f ms after the heal (0: none above %v); back on the SAN after %.2f s",
			i, o.kind, millis(cut), millis(heal), quietPause, took)
	}
	for _, c := range said.toll.claims() {
		d.claim(c)
	}
	d.claim(claim{what: "cuts in the middle of a 64 MB message", measured: float64(hit), bar: float64(len(outages)), least: true})
	d.claim(claim{what: "longest pause after a cut", measured: largest(afterCut), unit: "ms", bar: 100, pace: true})
	d.claim(claim{what: "longest pause after a heal", measured: largest(afterHeal), unit: "ms", bar: 100, pace: true})
	d.claim(claim{what: "longest time until back on the SAN", measured: largest(back), unit: "s", bar: 2, pace: true})
	d.note("longest pause where nothing was done: %.0f ms; %d messages of 64 MB", millis(quiet), len(said.bigs))
	if err := d.writeCSV([]string{"round", "kind", "in_mid_message", "pause_after_cut_ms", "pause_after_heal_ms", "back_s"}, rows); err != nil {
		return err
	}
	var bands [][2]float64
	for _, o := range outages {
		bands = append(bands, [2]float64{o.cut.Sub(rs[0].at).Seconds(), o.heal.Sub(rs[0].at).Seconds()})
	}
	return d.plotLines("a cut SAN under 64 MB messages (grey: cut)", "s", "MB/s of Y",
		[]series{{"SAN", rates(rs, "san", 100*time.Millisecond)}, {"LAN", rates(rs, "lan", 100*time.Millisecond)}}, bands)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// rates is what an interface carried, in MB/s over the seconds since the first
// reading, a point for each step.
func rates(rs []reading, name string, step time.Duration) (points plotter.XYs) {
	last := 0
	for i, r := range rs {
		if d := r.at.Sub(rs[last].at); d >= step {
			points = append(points, plotter.XY{
				X: r.at.Sub(rs[0].at).Seconds(),
				Y: float64(r.bytes[name].both()-rs[last].bytes[name].both()) / d.Seconds() / 1e6,
			})
			last = i
		}
	}
	return points
}
