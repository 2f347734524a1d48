//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/events"
)

// Bounds that the policy keeps to by itself.
const (
	moveBudget = 30 // a minute
	moveRest   = 30 * time.Second
)

// A slump is how hosts become slow.
type slump struct {
	name  string
	hosts [][]string // at the same time, one group after the other
}

var slumps = []slump{
	{"one after the other", [][]string{{"X"}, {"Z"}, {"W"}}},
	{"all at once", [][]string{{"X", "Z", "W"}}},
}

// m10 makes three of four hosts slow, one after the other or all at once. Ranks may leave them, but no
// host may be given up or overfilled, no rank may move twice within the cool-down, and moves have a budget.
func m10(ctx context.Context, d *desk) error {
	var rows [][]string
	var all []series
	for _, how := range slumps {
		held, more, err := d.slump(ctx, how)
		if err != nil {
			return fmt.Errorf("%s: %w", how.name, err)
		}
		rows = append(rows, more...)
		all = append(all, held)
	}
	if err := d.writeCSV([]string{"slump", "at_s", "rank", "from", "to", "ranks_there"}, rows); err != nil {
		return err
	}
	return d.plotLines("three of four hosts become slow", "s", "ranks on the fullest host", all, nil)
}

func (d *desk) slump(ctx context.Context, how slump) (held series, rows [][]string, err error) {
	held.name = how.name
	apart, rest := 12*time.Second, 10*time.Second
	if d.short {
		apart, rest = 5*time.Second, 3*time.Second
	}
	if d.short && d.untimed {
		apart, rest = 3*time.Second, time.Second
	}
	s, err := d.stage()
	if err != nil {
		return held, nil, err
	}
	defer s.close()
	const slots = 2 // of each host, in which there are a rank and a spare process
	program := d.compressor(0, "")
	p, err := s.play(ctx, cast{hosts: []string{"Y:1", "X:1", "Z:1", "W:1"}, ranks: 4, options: survival(), program: program[: len(program)-2 : len(program)-2]})
	if err != nil {
		return held, nil, err
	}
	defer p.end()
	if err := p.hold(ctx, apart); err != nil {
		return held, nil, err
	}
	began := time.Now()
	for _, group := range how.hosts {
		for _, h := range group {
			if err := s.lab.SetRate(h, "lan", 5*lab.Mbit); err != nil {
				return held, nil, err
			}
		}
		if err := p.hold(ctx, apart); err != nil {
			return held, nil, err
		}
	}
	if err := p.hold(ctx, rest); err != nil {
		return held, nil, err
	}
	at := map[int]string{0: "Y", 1: "X", 2: "Z", 3: "W"}
	p.mu.Lock()
	hosts := make([]string, len(p.state.Processes))
	for i, q := range p.state.Processes {
		hosts[i] = q.Host
	}
	p.mu.Unlock()
	left, _ := p.moved(time.Time{})
	fullest, soonest := 1, never
	last := map[int]time.Time{}
	held.points = plotter.XYs{{X: 0, Y: 1}}
	for _, e := range left {
		r, to := *e.Rank, hosts[*e.Process]
		if !e.Moved.Lost { // who is lost begins again at once, whatever was before
			if before, moved := last[r]; moved {
				soonest = min(soonest, e.Time.Sub(before).Seconds())
			}
			last[r] = e.Time
		}
		from := at[r]
		at[r] = to
		n := 0
		for _, h := range at {
			if h == to {
				n++
			}
		}
		fullest = max(fullest, n)
		x := e.Time.Sub(began).Seconds()
		held.points = append(held.points, plotter.XY{X: x, Y: held.points[len(held.points)-1].Y}, plotter.XY{X: x, Y: float64(fullestOf(at))})
		rows = append(rows, []string{how.name, fmt.Sprintf("%.2f", x), strconv.Itoa(r), from, to, strconv.Itoa(n)})
		d.note("%s: at %.1f s rank %d goes from %s to %s: %s", how.name, x, r, from, to, e.Text)
	}
	givenUp := 0
	for _, e := range p.events() {
		x := e.Time.Sub(began).Seconds()
		switch {
		case e.Kind == events.Decided && e.Decision.Chosen == "nothing" && e.Decision.Why != "":
			d.note("%s: at %.1f s nothing is done about %s, %s: %s", how.name, x, e.Decision.Blamed, e.Decision.Verdict, e.Decision.Why)
		case e.Kind == events.HostLost:
			givenUp++
			d.note("%s: at %.1f s a host that is only slow is given up: %s", how.name, x, e.Text)
		}
	}
	d.claim(claim{what: how.name + ": hosts given up", measured: float64(givenUp)})
	d.claim(claim{what: how.name + ": ranks on the fullest host", measured: float64(fullest), bar: slots + 1})
	d.claim(claim{what: how.name + ": between two moves of a living rank", measured: soonest, unit: "s", bar: moveRest.Seconds(), least: true})
	d.claim(claim{what: how.name + ": moves", measured: float64(len(left)), bar: moveBudget})
	return held, rows, nil
}

// fullestOf is how many ranks are on the host that has most.
func fullestOf(at map[int]string) (most int) {
	count := map[string]int{}
	for _, h := range at {
		count[h]++
		most = max(most, count[h])
	}
	return most
}
