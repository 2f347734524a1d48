//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/events"
)

const phaseLasts = 5 * time.Second

// m9 runs a program that sends steadily, almost nothing, more and more, less and less, in bursts, and takes all
// cores for itself, on hosts that are left in peace. No rank may move.
func m9(ctx context.Context, d *desk) error {
	long, lasts := d.lasts(10*time.Minute), phaseLasts
	if d.short {
		long = d.lasts(time.Minute)
	}
	if d.untimed && d.short {
		long = d.lasts(20 * time.Second)
	}
	rounds := int(math.Ceil(long.Seconds() / (lasts.Seconds() * float64(len(moods)))))
	lasts = long / time.Duration(rounds*len(moods))
	s, err := d.stage()
	if err != nil {
		return err
	}
	defer s.close()
	p, err := s.play(ctx, cast{hosts: []string{"X:1", "Y:1", "Z:1", "W:1"}, ranks: 4, options: survival(), program: []string{d.self, rolePhases, lasts.String(), fmt.Sprint(rounds)}})
	if err != nil {
		return err
	}
	defer p.end()
	select {
	case <-p.done:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2*long + time.Minute):
		return errors.New("the program does not end")
	}
	if p.err != nil {
		return fmt.Errorf("mpivrun: %w; it said: %s", p.err, p.stderr.text())
	}
	return d.reportM9(p, long, rounds)
}

func (d *desk) reportM9(p *play, long time.Duration, rounds int) error {
	var rows [][]string
	moves, breaches, learned, lost := 0, 0, 0, 0
	began := time.Time{}
	for _, e := range p.events() {
		switch e.Kind {
		case events.AllReady:
			began = e.Time
		case events.RankMoved:
			moves++
			rows = append(rows, []string{fmt.Sprintf("%.2f", e.Time.Sub(began).Seconds()), "move", fmt.Sprintf("rank %d: %s", *e.Rank, e.Text)})
		case events.HostLost:
			lost++
		}
	}
	for _, l := range p.stderr.all() {
		switch {
		case strings.Contains(l.text, "contract broken: "):
			breaches++
		case strings.Contains(l.text, "contract learned: "):
			learned++
		case !strings.Contains(l.text, "contract ") && !strings.Contains(l.text, "decision "):
			continue
		}
		rows = append(rows, []string{fmt.Sprintf("%.2f", l.at.Sub(began).Seconds()), "said", l.text})
	}
	d.note("%v, each of %d phases %d times; %d promises learned, %d breaches", long, len(moods), rounds, learned, breaches)
	d.claim(claim{what: "promises learned", measured: float64(learned), bar: 1, least: true})
	d.claim(claim{what: "moves", measured: float64(moves)})
	d.claim(claim{what: "hosts given up", measured: float64(lost)})
	if err := d.writeCSV([]string{"at_s", "kind", "text"}, rows); err != nil {
		return err
	}
	return d.plotBars(fmt.Sprintf("%v of a program that changes its pace", long), "", []string{"promises", "breaches", "moves"}, []float64{float64(learned), float64(breaches), float64(moves)})
}
