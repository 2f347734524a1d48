//go:build linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/mpiv/mpiv/internal/events"
)

// A kill is one of a process that had a rank, and what the job's events tell of it.
type kill struct {
	deed    deed
	process int
	at      time.Time

	seen    time.Time // that it ended; zero: never
	rank    int       // that was lost; -1: none, it had left already
	goesOn  time.Time // that rank, with its state; zero: see overtaken
	instead string    // why there is no goesOn; empty if there is
}

// Why a recovery has no end of its own.
const (
	overtaken = "killed again before"
	anew      = "from the beginning" // of a program without a State: nothing says when
)

// judgeKills notes of each kill what came of it.
func judgeKills(kills []kill, past []events.Event) {
	for i := range kills {
		k := &kills[i]
		k.rank, k.instead = -1, "no rank was lost"
		for _, e := range past {
			switch {
			case e.Kind == events.ProcessExited && *e.Process == k.process:
				k.seen = e.Time
			case e.Kind == events.RankMoved && e.Moved.Lost && e.Moved.From == k.process:
				k.rank, k.instead = *e.Rank, anew
			case e.Kind == events.RankMoved && *e.Rank == k.rank && k.instead == anew:
				k.instead = overtaken
			case e.Kind == events.RankArrived && *e.Rank == k.rank && k.instead == anew:
				k.goesOn, k.instead = e.Time, ""
			}
		}
	}
}

func (w *disturber) report() error {
	d := w.d
	d.note("seed %d, %s, %s: %d kills in %d runs, and %d of spares", d.seed, d.over(), d.program, len(w.kills), w.runs, w.spare)
	var seen, on []float64
	instead := map[string]int{}
	rows := [][]string{}
	for _, k := range w.kills {
		row := []string{string(k.deed), strconv.Itoa(k.rank), "", "", k.instead}
		if !k.seen.IsZero() {
			ms := milliseconds(k.seen.Sub(k.at))
			seen = append(seen, ms)
			row[2] = fmt.Sprintf("%.2f", ms)
		}
		if k.instead == "" {
			ms := milliseconds(k.goesOn.Sub(k.at))
			on = append(on, ms)
			row[3] = fmt.Sprintf("%.2f", ms)
		} else {
			instead[k.instead]++
		}
		rows = append(rows, row)
	}
	for _, x := range w.chances {
		var ms []float64
		n := 0
		for _, k := range w.kills {
			if k.deed == x.deed {
				n++
				if k.instead == "" {
					ms = append(ms, milliseconds(k.goesOn.Sub(k.at)))
				}
			}
		}
		line := fmt.Sprintf("  %-26s %3d times", x.deed, w.done[x.deed])
		if n > 0 {
			line += fmt.Sprintf(", %3d kills", n)
		}
		if len(ms) > 0 {
			line += fmt.Sprintf("; goes on after ms: median %s, worst %s", number(median(ms)), number(largest(ms)))
		}
		d.note("%s", line)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(w.obeyed)) {
		d.note("  orders to %s that were obeyed: %d", op, w.obeyed[op])
	}
	for _, why := range slices.Sorted(maps.Keys(w.refused)) {
		d.note("  refused, %d times: %s", w.refused[why], why)
	}
	for _, why := range slices.Sorted(maps.Keys(instead)) {
		d.note("  kills without a time until the rank goes on: %d (%s)", instead[why], why)
	}
	d.claim(claim{what: fmt.Sprintf("runs of %d with another exit code or another output", w.runs), measured: float64(w.wrong)})
	d.claim(claim{what: "kills", measured: float64(len(w.kills)), bar: float64(d.kills), least: true})
	if d.lab {
		w.reportLab()
		return d.writeCSV(surviveHeading, rows)
	}
	d.claim(claim{what: "a death is known, median", measured: median(seen), unit: "ms", bar: detectBar, pace: true})
	d.claim(claim{what: "a death is known, worst", measured: largest(seen), unit: "ms", bar: detectBar, pace: true})
	d.claim(claim{what: "the rank goes on, median", measured: median(on), unit: "ms", bar: goesOnBar, pace: true})
	d.claim(claim{what: "the rank goes on, worst", measured: largest(on), unit: "ms", bar: goesOnBar, pace: true})
	return d.writeCSV(surviveHeading, rows)
}

var surviveHeading = []string{"deed", "rank", "known_ms", "goes_on_ms", "instead"}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
