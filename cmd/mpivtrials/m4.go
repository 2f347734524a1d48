//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// An outfit is what a job has on against faults that do not come.
type outfit struct {
	name    string
	options []string
}

// The second is what the paper had: readings, contracts, a policy, spare processes to which ranks can be
// moved. The third adds what it had not: snapshots with copies on other hosts.
var outfits = []outfit{
	{"off", []string{"--survive", "none", "--contracts", "off"}},
	{"moves", []string{"--survive", "moves", "--spares", "4"}},
	{"crashes", []string{"--survive", "crashes", "--spares", "4"}},
}

const (
	runtimeMost = 1.0 // percent
	latencyMost = 5.0 // percent, within which nothing is seen on a shared machine
)

// m4 takes what sensors, contracts and readiness cost when nothing happens: the runtime of the application, and the time of 8 bytes
// there and back between two hosts.
func m4(ctx context.Context, d *desk) error {
	// What 8 bytes take hangs on where the system puts the processes when they begin: it is short runs that tell, and many.
	rounds, blocks, turns, there := d.times(3), 150, 6, 20_000
	if d.short {
		rounds, blocks, turns, there = d.times(1), 60, 1, 3000
	}
	if d.untimed {
		blocks = 20
	}
	s, err := d.stage()
	if err != nil {
		return err
	}
	defer s.close()
	runtime, latency := map[string][]float64{}, map[string][]float64{}
	var rows [][]string
	for round := range rounds {
		for i := range outfits {
			o := outfits[(i+round)%len(outfits)] // no one is always first
			program := []string{filepath.Join(d.bin, "compress"), "-q", "--iterations", strconv.Itoa(blocks), "--block", strconv.Itoa(blockBytes), "--compressibility", "60"}
			took, _, err := s.whole(ctx, cast{hosts: []string{"X:1", "Y:1", "Z:1", "W:1"}, ranks: 4, options: o.options, program: program})
			if err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			runtime[o.name] = append(runtime[o.name], took)
			rows = append(rows, []string{strconv.Itoa(round), o.name, fmt.Sprintf("%.4f", took), ""})
		}
		for turn := range turns {
			for i := range outfits {
				o := outfits[(i+turn)%len(outfits)]
				_, said, err := s.whole(ctx, cast{hosts: []string{"X:1", "Y:1"}, ranks: 2, options: o.options,
					program: []string{filepath.Join(d.bin, "mpivbench"), "latency", "-s", "8", "-i", strconv.Itoa(there)}})
				if err != nil {
					return fmt.Errorf("%s: %w", o.name, err)
				}
				us, err := parseBench(said)
				if err != nil {
					return err
				}
				latency[o.name] = append(latency[o.name], us)
				rows = append(rows, []string{strconv.Itoa(round), o.name, "", fmt.Sprintf("%.3f", us)})
			}
		}
	}
	off := outfits[0].name
	names, heights := []string{}, []float64{}
	for _, o := range outfits {
		t, us := median(runtime[o.name]), median(latency[o.name])
		d.note("%s: %.2f s (%.2f to %.2f), 8 bytes %.1f µs (%.1f to %.1f)", o.name, t, smallest(runtime[o.name]), largest(runtime[o.name]),
			us, smallest(latency[o.name]), largest(latency[o.name]))
		names, heights = append(names, o.name), append(heights, t)
		if o.name == off {
			continue
		}
		d.claim(claim{what: o.name + ": runtime above all off", measured: 100 * (t/median(runtime[off]) - 1), unit: "%", paper: "1 %", bar: runtimeMost, pace: true})
		d.claim(claim{what: o.name + ": time of 8 bytes above all off", measured: 100 * (us/median(latency[off]) - 1), unit: "%", bar: latencyMost, pace: true})
	}
	if err := d.writeCSV([]string{"round", "on", "runtime_s", "latency_us"}, rows); err != nil {
		return err
	}
	return d.plotBars(fmt.Sprintf("%d iterations in peace, by what is on", blocks), "s", names, heights)
}

// whole runs a job to its end, and returns how long its ranks ran, in seconds, and what it printed.
func (s *stage) whole(ctx context.Context, c cast) (took float64, said string, err error) {
	p, err := s.play(ctx, c)
	if err != nil {
		return 0, "", err
	}
	defer p.end()
	select {
	case <-p.done:
	case <-time.After(surviveTime):
		return 0, "", errors.New("the job does not end")
	case <-ctx.Done():
		return 0, "", ctx.Err()
	}
	if p.err != nil {
		return 0, "", fmt.Errorf("mpivrun: %w; it said: %s", p.err, p.stderr.text())
	}
	began, ended, ok := p.ran()
	if !ok {
		return 0, "", errors.New("the job's events do not tell how long its ranks ran")
	}
	return ended.Sub(began).Seconds(), p.stdout.whole(), nil
}
