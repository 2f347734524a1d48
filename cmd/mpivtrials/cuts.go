//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
)

// What cuts takes away, and for how long.
const (
	shortestCut = 200 * time.Millisecond
	longestCut  = 2500 * time.Millisecond
	longestRest = 1500 * time.Millisecond

	cutLooks = 200 * time.Millisecond // traffic just before a cut is looked at for so long
	cutHits  = 20_000                 // bytes in that: the cut hit something
)

// A cut is one cable out for a while.
type cut struct {
	host, network string
	from, to      time.Time
	hit           bool // there was traffic on it
	moved         bool // and the host's other network had more of it meanwhile
}

// cutPlan draws the next cut: after how long, what, for how long. It depends on the
// random source alone, so that a seed names a sequence.
func cutPlan(r *rand.Rand, hosts []lab.Host) (rest time.Duration, c cut, lasts time.Duration) {
	rest = time.Duration(r.Int64N(int64(longestRest)))
	h := hosts[r.IntN(len(hosts))]
	c = cut{host: h.Name, network: h.Networks[r.IntN(len(h.Networks))]}
	lasts = shortestCut + time.Duration(r.Int64N(int64(longestCut-shortestCut)))
	return rest, c, lasts
}

func cuts(ctx context.Context, d *desk) error {
	replay := fmt.Sprintf("mpivtrials -seed %d -for %v cuts", d.seed, d.lasts(30*time.Second))
	both := []string{"lan", "san"}
	hosts := []lab.Host{{Name: "X", Networks: []string{"lan"}}, {Name: "Y", Networks: both}, {Name: "Z", Networks: both}, {Name: "W", Networks: both}}
	l, err := lab.New(lab.Options{
		Hosts:    hosts,
		Networks: []lab.Network{{Name: "lan", Rate: 500 * lab.Mbit}, {Name: "san", Rate: lab.Gbit}},
	})
	if err != nil {
		return err
	}
	defer l.Close()
	meters := map[string]*meter{}
	for _, h := range hosts {
		m, err := watch(l, h.Name, 20*time.Millisecond)
		if err != nil {
			return err
		}
		defer m.close()
		meters[h.Name] = m
	}
	var mu sync.Mutex // guards all and ranks
	var all toll
	ranks := 0
	j, err := d.start(ctx, l, map[string]int{"X": 1, "Y": 1, "Z": 1, "W": 1}, func(line string) {
		if t, ok := parseToll(line); ok {
			mu.Lock()
			defer mu.Unlock()
			all.add(t)
			ranks++
		}
	}, nil, d.self, roleCuts, strconv.FormatUint(d.seed, 10))
	if err != nil {
		return err
	}
	defer j.kill()
	done, err := cutAndHeal(ctx, d, l, j, hosts)
	if err != nil {
		return fmt.Errorf("%w (again: %s)", err, replay)
	}
	if err := j.finish(30 * time.Second); err != nil {
		return fmt.Errorf("%w (again: %s)", err, replay)
	}
	mu.Lock()
	defer mu.Unlock()
	if ranks != len(hosts) {
		return fmt.Errorf("%d ranks of %d said what they had received (again: %s)", ranks, len(hosts), replay)
	}
	return d.reportCuts(done, all, meters, replay)
}

// cutAndHeal cuts one cable after the other for as long as the trial lasts.
func cutAndHeal(ctx context.Context, d *desk, l *lab.Lab, j *job, hosts []lab.Host) (done []cut, err error) {
	if err := j.sleep(ctx, 2*time.Second); err != nil { // all have met
		return nil, err
	}
	r := rand.New(rand.NewPCG(d.seed, 0))
	for end := time.Now().Add(d.lasts(30 * time.Second)); time.Now().Before(end); {
		rest, c, lasts := cutPlan(r, hosts)
		if err := j.sleep(ctx, rest); err != nil {
			return nil, err
		}
		c.from = time.Now()
		if err := l.Cut(c.host, c.network); err != nil {
			return nil, err
		}
		if err := j.sleep(ctx, lasts); err != nil {
			return nil, err
		}
		c.to = time.Now()
		if err := l.Heal(c.host, c.network); err != nil {
			return nil, err
		}
		done = append(done, c)
	}
	return done, j.sleep(ctx, time.Second)
}

// judge finds out, of what the host's interfaces carried, whether a cut hit
// anything, and whether that went another way.
func (c *cut) judge(rs []reading) {
	before := carried(rs, c.network, c.from.Add(-cutLooks), c.from)
	c.hit = before >= cutHits
	other := map[string]string{"lan": "san", "san": "lan"}[c.network]
	if _, has := rs[0].bytes[other]; !has {
		return
	}
	rate := func(from, to time.Time) float64 { return carried(rs, other, from, to) / to.Sub(from).Seconds() }
	meanwhile := rate(c.from, c.to)
	usual := rate(c.from.Add(-cutLooks), c.from)
	c.moved = c.hit && meanwhile >= usual+before/cutLooks.Seconds()/4
}

func (d *desk) reportCuts(done []cut, all toll, meters map[string]*meter, replay string) error {
	hits, moved := 0, 0
	var rows [][]string
	var first time.Time
	var lines []series
	for _, host := range []string{"X", "Y", "Z", "W"} {
		rs, err := meters[host].all()
		if err != nil {
			return err
		}
		first = rs[0].at
		for i := range done {
			if c := &done[i]; c.host == host {
				c.judge(rs)
			}
		}
		if host == "Y" {
			lines = []series{{"Y, SAN", rates(rs, "san", 200*time.Millisecond)}, {"Y, LAN", rates(rs, "lan", 200*time.Millisecond)}}
		}
	}
	var bands [][2]float64
	for _, c := range done {
		from, to := c.from.Sub(first).Seconds(), c.to.Sub(first).Seconds()
		rows = append(rows, []string{c.host, c.network, fmt.Sprintf("%.3f", from), fmt.Sprintf("%.3f", to), strconv.FormatBool(c.hit), strconv.FormatBool(c.moved)})
		if c.hit {
			hits++
		}
		if c.moved {
			moved++
		}
		if c.host == "Y" {
			bands = append(bands, [2]float64{from, to})
		}
	}
	d.note("seed %d: %d cuts in %v", d.seed, len(done), d.lasts(30*time.Second))
	for _, c := range all.claims() {
		d.claim(c)
	}
	d.claim(claim{what: "messages", measured: float64(all.Messages), bar: math.Ceil(100 * d.lasts(30*time.Second).Seconds()), least: true})
	d.claim(claim{what: "cuts that hit traffic", measured: float64(hits), bar: math.Ceil(float64(len(done)) / 2), least: true})
	d.claim(claim{what: "of which the traffic went another way", measured: float64(moved), bar: 1, least: true})
	err := errors.Join(d.writeCSV([]string{"host", "network", "from_s", "to_s", "hit", "moved"}, rows),
		d.plotLines("random cuts, as host Y sees them (grey: a cable of Y is out)", "s", "MB/s", lines, bands))
	if !d.kept {
		d.note("again: %s", replay)
	}
	return err
}
