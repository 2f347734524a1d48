//go:build linux

package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// copyBytes is what the paper copied to a host.
const copyBytes = 80_000_000

// copySavings is what migration saved of the runtime in the paper, percent, by
// compressibility.
var copySavings = map[int]float64{0: 17, 60: 16}

// m1 copies a large file to the victim of the application. After Frechette
// and Avresky, "Method for Task Migration in Grid Environments", figure 6. The oracle has the operator's
// order to empty the host at the instant at which the copy begins.
func m1(ctx context.Context, d *desk) error {
	percents, before, after := d.percent, 6*time.Second, 20*time.Second
	if d.short {
		percents, before, after = d.percent[:1], 2*time.Second, 8*time.Second
	}
	upset := func(ctx context.Context, s *stage) (time.Time, func(), error) {
		began := time.Now()
		c, err := s.copy(ctx, "A", victim, copyBytes)
		if err != nil {
			return began, nil, err
		}
		return began, c.end, nil
	}
	var rows [][]string
	for _, percent := range percents {
		var runs []shown
		for _, sc := range []scene{
			{name: "undisturbed", options: survival(), before: before + startPeace},
			{name: "copy, no migration", options: survival("--contracts", "off"), before: startPeace, upset: upset, after: after},
			{name: "copy, migration", options: survival(), learned: true, before: startPeace, upset: upset, after: after},
			{name: "copy, oracle", options: survival("--contracts", "learn"), before: startPeace, upset: upset, after: after, oracle: true},
		} {
			sc.percent = percent
			sh, err := d.alone(ctx, sc)
			if err != nil {
				return fmt.Errorf("%d %%, %s: %w", percent, sc.name, err)
			}
			runs = append(runs, sh)
			rows = append(rows, sh.rows()...)
		}
		if err := d.reportM1(percent, runs, after); err != nil {
			return err
		}
	}
	d.part = ""
	return d.writeCSV(sceneHeading, rows)
}

// doneBy is when so many iterations were done after the upset, in seconds since then; for
// what was not done any more as long as it would have taken at the pace of the rest.
func (sh *shown) doneBy(n int) float64 {
	done := 0
	for _, it := range sh.all {
		if it.at.Before(sh.zero) {
			continue
		}
		if done++; done == n {
			return it.at.Sub(sh.zero).Seconds()
		}
	}
	if done == 0 {
		return never
	}
	long := sh.ended.Sub(sh.zero).Seconds()
	return long * float64(n) / float64(done)
}

// reportM1 compares runtimes: from the beginning of the copy until as many iterations were done as
// the run without migration had done when it ended.
func (d *desk) reportM1(percent int, runs []shown, after time.Duration) error {
	peace, without, with, oracle := &runs[0], &runs[1], &runs[2], &runs[3]
	n := 0
	for _, it := range without.all {
		if it.at.After(without.zero) && it.at.Before(without.zero.Add(after)) {
			n++
		}
	}
	usual := peace.undisturbed()
	alone, no, yes, best := usual*float64(n), without.doneBy(n), with.doneBy(n), oracle.doneBy(n)
	saved, could := 100*(1-yes/no), 100*(1-best/no)
	d.note("%d %%: an iteration takes %.1f ms undisturbed; %d take %.1f s undisturbed, and beside the copy %.1f s without migration, %.1f s with it, %.1f s by the oracle",
		percent, 1e3*usual, n, alone, no, yes, best)
	d.note("%d %%: after the copy began: breach %.2f s, decision %.2f s, the last rank goes on elsewhere %.2f s; %s", percent,
		with.since(with.breach), with.since(with.decided), with.since(with.arrived), with.why)
	at := fmt.Sprintf("%d %%: ", percent)
	if bar := copySavings[percent]; bar > 0 {
		d.claim(claim{what: at + "migration saves of the runtime", measured: saved, unit: "%", paper: fmt.Sprintf("%g %%", bar), bar: bar, least: true})
	}
	d.claim(claim{what: at + "of what the oracle saves", measured: 100 * part(saved, could), unit: "%", bar: 50, least: true})
	d.part = fmt.Sprintf("-%d", percent)
	var all []series
	for i := range runs {
		r := &runs[i]
		all = append(all, series{r.name, curve(r.all, r.zero)})
	}
	return d.plotLines(fmt.Sprintf("a copy of %d MB to host %s begins at 0, data that compresses by %d %%", copyBytes/1_000_000, victim, percent), "s", "s for an iteration", all, nil)
}

// part is x of y; nothing where there is no y.
func part(x, y float64) float64 {
	if y <= 0 {
		return math.NaN()
	}
	return x / y
}
