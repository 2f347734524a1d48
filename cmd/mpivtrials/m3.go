//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"gonum.org/v1/plot/plotter"
)

// The paper's figure 8: over Ethernet and SAN together, task 2 leaves host X for Z, where task 4 is.
const (
	more       = 20.0 // percent of messages in the period, in the paper
	m3Settles  = 14.0 // s, in the paper
	m3Promised = "contract learned: " + victim + ">Y large"
)

// m3 counts the messages that come to the last of four tasks, which hand them on one by one: task 1 on W, 2 on X, 3 on Y, 4 on Z,
// where Y and Z have a SAN. X is flooded.
func m3(ctx context.Context, d *desk) error {
	before, after := 2*time.Second, 15*time.Second
	if d.short {
		after = 8 * time.Second
	}
	var counts []series
	var rows [][]string
	runs := []m3Run{
		{"undisturbed", survival(), false},
		{"flooded, no migration", survival("--contracts", "off"), true},
		{"flooded, migration", survival(), true},
	}
	if d.untimed {
		runs = runs[2:]
	}
	moved := 0
	for _, run := range runs {
		points, why, went, err := d.count(ctx, run, before, after)
		if err != nil {
			return fmt.Errorf("%s: %w", run.name, err)
		}
		moved = went // of the last, which is the one with migration
		for _, w := range why {
			d.note("%s: %s", run.name, w)
		}
		for _, p := range points {
			rows = append(rows, []string{run.name, fmt.Sprintf("%.3f", p.X), strconv.Itoa(int(p.Y))})
		}
		counts = append(counts, series{run.name, points})
	}
	with, end := counts[len(counts)-1].points, after.Seconds()
	d.claim(claim{what: "tasks that go on elsewhere", measured: float64(moved), bar: 1, least: true})
	d.claim(claim{what: "messages since the flood began", measured: countAt(with, never), bar: 1, least: true})
	if d.untimed {
		return d.writeCSV(m3Heading, rows)
	}
	peace, without := counts[0].points, counts[1].points
	d.note("messages in %v: %.0f undisturbed, %.0f flooded without migration, %.0f with it", after, countAt(peace, end), countAt(without, end), countAt(with, end))
	d.claim(claim{what: "messages above those without migration", measured: 100 * (countAt(with, end)/countAt(without, end) - 1), unit: "%", paper: "20 %", bar: more, least: true, pace: true})
	overtakes := never
	for x := 0.5; x <= end && overtakes == never; x += 0.1 {
		if countAt(with, x) > countAt(peace, x) && countAt(with, end) > countAt(peace, end) {
			overtakes = x
		}
	}
	d.claim(claim{what: "more messages than undisturbed after", measured: overtakes, unit: "s", paper: "in the first 10 s", bar: end, pace: true})
	d.claim(claim{what: "settled after", measured: steadyAt(with, end), unit: "s", paper: "14 s", bar: m3Settles, pace: true})
	if err := d.writeCSV(m3Heading, rows); err != nil {
		return err
	}
	return d.plotLines("a flood of host X begins at 0", "s", "messages at task 4", counts, nil)
}

var m3Heading = []string{"run", "at_s", "messages"}

// An m3Run is one run of the tasks.
type m3Run struct {
	name    string
	options []string
	floods  bool
}

// count runs the tasks, and counts from the flood on. moved is how many of them have gone elsewhere.
func (d *desk) count(ctx context.Context, run m3Run, before, after time.Duration) (points plotter.XYs, why []string, moved int, err error) {
	s, err := d.stage()
	if err != nil {
		return nil, nil, 0, err
	}
	defer s.close()
	p, err := s.play(ctx, cast{hosts: []string{"W:1", victim + ":1", "Y:1", "Z:1"}, networks: []string{"lan", "san"}, ranks: 4, options: run.options,
		program: []string{d.self, rolePipeline, strconv.Itoa(d.piece)}})
	if err != nil {
		return nil, nil, 0, err
	}
	defer p.end()
	learns := learnPatience / 2
	if d.untimed {
		learns = learnPatience / 5
	}
	for began := time.Now(); run.floods && time.Since(began) < learns; {
		if _, learned := p.stderr.first(time.Time{}, m3Promised); learned {
			break
		}
		if err := p.hold(ctx, 50*time.Millisecond); err != nil {
			return nil, nil, 0, err
		}
		if len(run.options) > len(survival()) && time.Since(began) > 4*time.Second { // it learns nothing
			break
		}
	}
	if err := p.hold(ctx, before); err != nil {
		return nil, nil, 0, err
	}
	zero := time.Now()
	endFlood := func() error { return nil }
	if run.floods {
		f, err := s.flood(ctx, victim, d.with)
		if err != nil {
			return nil, nil, 0, err
		}
		defer f.end()
		zero, endFlood = f.began, f.end
	}
	if err := p.aftermath(ctx, zero, after); err != nil {
		return nil, nil, 0, err
	}
	if err := endFlood(); err != nil {
		return nil, nil, 0, err
	}
	first := 0.0
	for _, l := range p.stdout.all() {
		var at int64
		var n float64
		if _, err := fmt.Sscan(l.text, &at, &n); err != nil {
			return nil, nil, 0, fmt.Errorf("task 4 printed %q: %w", l.text, err)
		}
		x := time.Unix(0, at).Sub(zero).Seconds()
		if x < 0 {
			first = n
			continue
		}
		points = append(points, plotter.XY{X: x, Y: n - first})
	}
	for _, e := range p.decisions(zero) {
		why = append(why, fmt.Sprintf("%.2f s: %s, %s: %s", e.Time.Sub(zero).Seconds(), e.Decision.Blamed, e.Decision.Verdict, e.Decision.Chosen))
	}
	_, arrived := p.moved(zero)
	return points, why, len(arrived), nil
}

// countAt is the last count until a time.
func countAt(points plotter.XYs, x float64) (n float64) {
	for _, p := range points {
		if p.X <= x {
			n = p.Y
		}
	}
	return n
}

// steadyAt is from when on the count grows within a tenth as fast, in the second that follows, as it does in the last half of all.
func steadyAt(points plotter.XYs, end float64) float64 {
	pace := (countAt(points, end) - countAt(points, end/2)) / (end / 2)
	for x := 0.0; x < end/2; x += 0.1 {
		if countAt(points, x+1)-countAt(points, x) >= 0.9*pace && pace > 0 {
			return x
		}
	}
	return never
}
