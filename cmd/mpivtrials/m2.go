//go:build linux

package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// never is when something was that has not come about.
var never = math.Inf(1)

// Bars of m2, and what the paper has.
const (
	detectMost = 2.0 // s
	settleMost = 3.0 // s
	steadyMost = 1.1 // times undisturbed
)

var floodRatios = map[int]float64{0: 26, 60: 9} // by compressibility

// m2 floods the victim of the application. After Frechette and Avresky, "Method for Task
// Migration in Grid Environments", figure 7.
func m2(ctx context.Context, d *desk) error {
	percents, before, after := d.percent, 6*time.Second, 12*time.Second
	if d.short {
		percents, before, after = d.percent[:1], 2*time.Second, 7*time.Second
	}
	flood := func(ctx context.Context, s *stage) (time.Time, func(), error) {
		f, err := s.flood(ctx, victim)
		if err != nil {
			return time.Time{}, nil, err
		}
		return f.began, f.end, nil
	}
	var rows [][]string
	for _, percent := range percents {
		var runs []shown
		for _, sc := range []scene{
			{name: "undisturbed", options: survival(), before: before + startPeace},
			{name: "flooded, no migration", options: survival("--contracts", "off"), before: startPeace, upset: flood, after: after},
			{name: "flooded, migration", options: survival(), learned: true, before: startPeace, upset: flood, after: after},
		} {
			sc.percent = percent
			sh, err := d.alone(ctx, sc)
			if err != nil {
				return fmt.Errorf("%d %%, %s: %w", percent, sc.name, err)
			}
			runs = append(runs, sh)
			rows = append(rows, sh.rows()...)
		}
		if err := d.reportM2(percent, runs); err != nil {
			return err
		}
	}
	d.part = ""
	return d.writeCSV(sceneHeading, rows)
}

// alone runs a scene in a lab of its own.
func (d *desk) alone(ctx context.Context, sc scene) (shown, error) {
	s, err := d.stage()
	if err != nil {
		return shown{}, err
	}
	defer s.close()
	return s.show(ctx, sc)
}

func (d *desk) reportM2(percent int, runs []shown) error {
	peace, without, with := &runs[0], &runs[1], &runs[2]
	usual := peace.undisturbed()
	settled := settledAt(with.all, with.zero, steadyMost*usual)
	steady := never
	if !settled.IsZero() {
		steady = mean(with.all, settled, with.ended)
	}
	starved := mean(without.all, without.zero.Add(time.Second), without.ended)
	d.note("%d %%: an iteration takes %.1f ms undisturbed, %.1f before the flood of the others, %.0f flooded without migration, %.1f with it once settled",
		percent, 1e3*usual, 1e3*with.undisturbed(), 1e3*starved, 1e3*steady)
	d.note("%d %%: after the flood began: breach %.2f s, decision %.2f s, the last rank goes on elsewhere %.2f s, its first block is written %.2f s, settled %.2f s",
		percent, with.since(with.breach), with.since(with.decided), with.since(with.arrived), with.since(with.first), with.since(settled))
	d.note("%d %%: %s", percent, with.why)
	at := fmt.Sprintf("%d %%: ", percent)
	if bar := floodRatios[percent]; bar > 0 {
		d.claim(claim{what: at + "flooded without migration over with it", measured: starved / steady, paper: fmt.Sprintf("×%g", bar), bar: bar, least: true})
	}
	d.claim(claim{what: at + "detected after", measured: with.since(with.breach), unit: "s", paper: "up to 30 s", bar: detectMost})
	d.claim(claim{what: at + "settled after", measured: with.since(settled), unit: "s", paper: "from iteration 3 to 8", bar: settleMost})
	d.claim(claim{what: at + "settled over undisturbed", measured: steady / usual, bar: steadyMost})
	d.part = fmt.Sprintf("-%d", percent)
	var all []series
	for i := range runs {
		r := &runs[i]
		all = append(all, series{r.name, curve(r.all, r.zero)})
	}
	return d.plotLines(fmt.Sprintf("a flood of host %s begins at 0, data that compresses by %d %%", victim, percent), "s", "s for an iteration", all, nil)
}
