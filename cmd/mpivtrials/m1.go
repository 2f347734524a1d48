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

const m1With = "copy, migration"

// copySavings is what migration saved of the runtime in the paper, percent, by
// compressibility.
var copySavings = map[int]float64{0: 17, 60: 16}

// m1 copies a large file from the victim of the application, or to it. After Frechette
// and Avresky, "Method for Task Migration in Grid Environments", figure 6. The oracle has the operator's
// order to empty the host at the instant at which the copy begins. Ranks are moved alive: without
// copies of snapshots the application has the network for itself.
func m1(ctx context.Context, d *desk) error {
	percents, copies, before, after, size := d.percent, d.copies, 6*time.Second, 15*time.Second, int64(copyBytes)
	if d.short { // what one stream gets of a link is chance, and may be too little for seconds: it goes on until ranks have left
		percents, copies, before, after, size = d.percent[:1], d.copies[:1], 2*time.Second, 8*time.Second, 5*copyBytes
	}
	on := []string{"--survive", "moves", "--spares", "4"}
	var rows [][]string
	for _, percent := range percents {
		for _, way := range copies {
			upset := func(ctx context.Context, s *stage) (time.Time, func() error, error) {
				from, to := victim, "A"
				if way == "to" {
					from, to = to, from
				}
				began := time.Now()
				c, err := s.copy(ctx, from, to, size)
				if err != nil {
					return began, nil, err
				}
				return began, c.end, nil
			}
			runs := map[string]shown{}
			for _, sc := range d.scenes([]scene{
				{name: "undisturbed", options: on, before: before + startPeace},
				{name: "copy, no migration", options: append(on[:len(on):len(on)], "--contracts", "off"), before: startPeace, upset: upset, after: after},
				{name: m1With, options: on, learned: true, before: startPeace, upset: upset, after: after},
				{name: "copy, oracle", options: append(on[:len(on):len(on)], "--contracts", "learn"), before: startPeace, upset: upset, after: after, oracle: true},
			}) {
				sc.percent = percent
				sh, err := d.alone(ctx, sc)
				if err != nil {
					return fmt.Errorf("%d %%, copy %s %s, %s: %w", percent, way, victim, sc.name, err)
				}
				runs[sc.name] = sh
				for _, row := range sh.rows() {
					rows = append(rows, append([]string{way}, row...))
				}
			}
			if err := d.reportM1(percent, way, runs, after); err != nil {
				return err
			}
		}
	}
	d.part = ""
	return d.writeCSV(append([]string{"copy"}, sceneHeading...), rows)
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
func (d *desk) reportM1(percent int, way string, runs map[string]shown, after time.Duration) error {
	at := fmt.Sprintf("%d %%, %s %s: ", percent, way, victim)
	with := runs[m1With]
	d.reportLeft(at, &with)
	if d.untimed {
		return nil
	}
	peace, without, oracle := runs["undisturbed"], runs["copy, no migration"], runs["copy, oracle"]
	n := 0
	for _, it := range without.all {
		if it.at.After(without.zero) && it.at.Before(without.zero.Add(after)) {
			n++
		}
	}
	usual := peace.undisturbed()
	alone, no, yes, best := usual*float64(n), without.doneBy(n), with.doneBy(n), oracle.doneBy(n)
	saved, could := 100*(1-yes/no), 100*(1-best/no)
	d.note("%san iteration takes %.1f ms undisturbed; %d take %.1f s undisturbed, and beside the copy %.1f s without migration, %.1f s with it, %.1f s by the oracle",
		at, 1e3*usual, n, alone, no, yes, best)
	if bar := copySavings[percent]; bar > 0 {
		d.claim(claim{what: at + "migration saves of the runtime", measured: saved, unit: "%", paper: fmt.Sprintf("%g %%", bar), bar: bar, least: true, pace: true})
	}
	d.claim(claim{what: at + "of what the oracle saves", measured: 100 * part(saved, could), unit: "%", bar: 50, least: true, pace: true})
	d.part = fmt.Sprintf("-%s-%d", way, percent)
	var all []series
	for _, r := range []shown{peace, without, with, oracle} {
		all = append(all, series{r.name, curve(r.all, r.zero)})
	}
	return d.plotLines(fmt.Sprintf("a copy of %d MB %s host %s begins at 0, data that compresses by %d %%", copyBytes/1_000_000, way, victim, percent), "s", "s for an iteration", all, nil)
}

// part is x of y; nothing where there is no y.
func part(x, y float64) float64 {
	if y <= 0 {
		return math.NaN()
	}
	return x / y
}
