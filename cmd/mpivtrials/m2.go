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

const m2With = "flooded, migration"

// Bars of m2, and what the paper has.
const (
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
	flood := func(ctx context.Context, s *stage) (time.Time, func() error, error) {
		f, err := s.flood(ctx, victim, d.with)
		if err != nil {
			return time.Time{}, nil, err
		}
		return f.began, f.end, nil
	}
	var rows [][]string
	for _, percent := range percents {
		runs := map[string]shown{}
		for _, sc := range d.scenes([]scene{
			{name: "undisturbed", options: survival(), before: before + startPeace},
			{name: "flooded, no migration", options: survival("--contracts", "off"), before: startPeace, upset: flood, after: after},
			{name: m2With, options: survival(), learned: true, before: startPeace, upset: flood, after: after},
		}) {
			sc.percent = percent
			sh, err := d.alone(ctx, sc)
			if err != nil {
				return fmt.Errorf("%d %%, %s: %w", percent, sc.name, err)
			}
			runs[sc.name] = sh
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

func (d *desk) reportM2(percent int, runs map[string]shown) error {
	at := fmt.Sprintf("%d %%: ", percent)
	with := runs[m2With]
	d.reportLeft(at, &with)
	if d.untimed {
		return nil
	}
	peace, without := runs["undisturbed"], runs["flooded, no migration"]
	usual := peace.undisturbed()
	settled := settledAt(with.all, with.zero, steadyMost*usual)
	steady := never
	if !settled.IsZero() {
		steady = mean(with.all, settled, with.ended)
	}
	starved := mean(without.all, without.zero.Add(time.Second), without.ended)
	d.note("%d %%: an iteration takes %.1f ms undisturbed, %.1f before the flood of the others, %.0f flooded without migration, %.1f with it once settled",
		percent, 1e3*usual, 1e3*with.undisturbed(), 1e3*starved, 1e3*steady)
	if bar := floodRatios[percent]; bar > 0 {
		d.claim(claim{what: at + "flooded without migration over with it", measured: starved / steady, paper: fmt.Sprintf("×%g", bar), bar: bar, least: true, pace: true})
	}
	d.claim(claim{what: at + "settled after", measured: with.since(settled), unit: "s", paper: "from iteration 3 to 8", bar: settleMost, pace: true})
	d.claim(claim{what: at + "settled over undisturbed", measured: steady / usual, bar: steadyMost, pace: true})
	d.part = fmt.Sprintf("-%d", percent)
	var all []series
	for _, r := range []shown{peace, without, with} {
		all = append(all, series{r.name, curve(r.all, r.zero)})
	}
	return d.plotLines(fmt.Sprintf("a flood of host %s by %s begins at 0, data that compresses by %d %%", victim, d.with, percent), "s", "s for an iteration", all, nil)
}
