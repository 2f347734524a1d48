//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"
)

func (d *desk) reportStrangers(all []spoils, h *heard, begun time.Time, bands [][2]float64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.toll == nil {
		return errors.New("the job did not say what it had received")
	}
	heading := []string{"attack", "phase", "job_MB_s", "left_MB_s", "others_in_MB_s", "others_out_MB_s", "X_cores",
		"tries", "answered", "bytes", "errors", "attacker_cpu_s", "met_ms",
		"files_before", "files_most", "files_after", "memory_before_MB", "memory_most_MB", "memory_after_MB"}
	var rows [][]string
	for i, s := range all {
		s.met = math.NaN()
		if ms, ok := h.met[i]; ok {
			s.met = ms
		}
		for _, p := range []struct {
			name string
			phase
		}{{"before", s.before}, {"a sink elsewhere is attacked", s.away}, {"a sink beside the job is attacked", s.beside}, {"the job is attacked", s.during}} {
			in, out := p.besideJob(s.before)
			d.note("%s, %s: the job gets %.2f MB/s (mean %.2f, of %.2f that leave X); beside it the cable carries %.2f MB/s to X and %.2f from it, which leaves it %.2f; X uses %.2f cores; %v",
				s.weapon.name, p.name, p.rate/1e6, p.mean/1e6, p.out/1e6, in/1e6, out/1e6, p.left(s.before)/1e6, p.cpu, p.haul)
			rows = append(rows, []string{s.weapon.name, p.name, number(p.rate / 1e6), number(p.left(s.before) / 1e6), number(in / 1e6), number(out / 1e6), number(p.cpu),
				fmt.Sprint(p.haul.tries), fmt.Sprint(p.haul.met), fmt.Sprint(p.haul.bytes), fmt.Sprint(p.haul.errors), number(p.haul.cpu), number(s.met),
				fmt.Sprint(s.held.files), fmt.Sprint(s.most.files), fmt.Sprint(s.after.files), number(s.held.mem), number(s.most.mem), number(s.after.mem)})
		}
		d.note("%s: X had %d files and %.0f MB, at most %d and %.0f, then %d and %.0f",
			s.weapon.name, s.held.files, s.held.mem, s.most.files, s.most.mem, s.after.files, s.after.mem)
		for _, c := range s.claims() {
			d.claim(c)
		}
	}
	for _, c := range h.toll.claims() {
		d.claim(c)
	}
	var line plotter.XYs
	for _, r := range h.rates {
		line = append(line, plotter.XY{X: r.at.Sub(begun).Seconds(), Y: r.rate / 1e6})
	}
	return errors.Join(d.writeCSV(heading, rows),
		d.plotLines("a job under attack (grey: "+strings.Join(d.only, ", ")+")", "s", "MB/s", []series{{"X to Y", line}}, bands))
}

// pace is the share of its rate that an attack must reach to count as one.
const pace = 0.95

func (s spoils) claims() []claim {
	name := s.weapon.name
	all := []claim{
		{what: name + ": throughput, of that before", measured: 100 * s.during.rate / s.before.rate, unit: "%", bar: 95, least: true},
		{what: name + ": throughput, of what the cable leaves", measured: 100 * s.during.rate / s.during.left(s.before), unit: "%", bar: 95, least: true},
		{what: name + ": throughput, of that while a sink beside the job is attacked", measured: 100 * s.during.rate / s.beside.rate, unit: "%", bar: 95, least: true},
		{what: name + ": a process that connects meanwhile is let in after", measured: s.met, unit: "ms", bar: 2000},
		{what: name + ": descriptors more than before", measured: float64(s.after.files - s.held.files), bar: newcomerFiles},
		{what: name + ": memory more than before", measured: s.after.mem - s.held.mem, unit: "MB", bar: 32},
	}
	if s.weapon.rate > 0 {
		all = append(all, claim{what: name + ": tries a second", measured: float64(s.during.haul.tries) / attackFor.Seconds(),
			bar: pace * float64(s.weapon.rate), least: true})
	}
	return all
}
