//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/events"
)

// Kills of whole hosts come so far apart: a copy of each snapshot must have got to
// another host meanwhile.
const (
	hostKillPause = 2 * time.Second
	hostsToKill   = 2 // of the four in one job
	hostVerdict   = verdictMost
)

// m8 kills random ranks, several at once, while they move and while they recover, as survive does, and then
// whole hosts, one after the other. The output must be that of an undisturbed run.
func m8(ctx context.Context, d *desk) error {
	if d.short {
		d.kills = min(d.kills, 5)
	}
	if d.short && d.untimed {
		d.kills = min(d.kills, 3)
	}
	d.part = "-processes"
	if err := survive(ctx, d); err != nil {
		return err
	}
	d.part = "-hosts"
	want, err := d.expected(ctx, d.steady(0))
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(d.seed, 8))
	jobs := d.times(3)
	if d.short {
		jobs = d.times(1)
	}
	var rows [][]string
	var known, on []float64
	wrong := 0
	for n := range jobs {
		kills, same, err := d.killHosts(ctx, random, want)
		if err != nil {
			return fmt.Errorf("job %d: %w", n, err)
		}
		wrong += int(truth(!same))
		for _, k := range kills {
			known, on = append(known, k.known), append(on, k.goesOn)
			rows = append(rows, []string{strconv.Itoa(n), k.host, strconv.Itoa(k.ranks), fmt.Sprintf("%.0f", k.known), fmt.Sprintf("%.0f", k.goesOn)})
		}
	}
	d.note("seed %d: %d hosts killed in %d jobs", d.seed, len(rows), jobs)
	d.claim(claim{what: "whole hosts: runs with another exit code or another output", measured: float64(wrong)})
	d.claim(claim{what: "whole hosts killed", measured: float64(len(rows)), bar: float64(jobs), least: true})
	d.claim(claim{what: "whole hosts: the loss is known, worst", measured: largest(known), unit: "ms", bar: hostVerdict, pace: true})
	d.claim(claim{what: "whole hosts: the last rank goes on after the loss is known, worst", measured: largest(on), unit: "ms", bar: goesOnBar, pace: true})
	return d.writeCSV([]string{"job", "host", "ranks", "known_ms", "goes_on_after_ms"}, rows)
}

// A hostKill is one whole host that was killed.
type hostKill struct {
	host          string
	ranks         int     // that were there
	known, goesOn float64 // ms: until the first of them was given up, and from then until the last went on
}

// killHosts kills hosts of one job, but for that of mpivrun.
func (d *desk) killHosts(ctx context.Context, random *rand.Rand, want string) (kills []hostKill, same bool, err error) {
	s, err := d.stage()
	if err != nil {
		return nil, false, err
	}
	defer s.close()
	p, err := s.play(ctx, cast{hosts: []string{"Y:1", "X:1", "Z:1", "W:1"}, ranks: 4, options: survival("--snapshot", "0.5"), program: d.steady(stepLasts)})
	if err != nil {
		return nil, false, err
	}
	defer p.end()
	left := []string{"X", "Z", "W"}
	for range hostsToKill {
		if err := p.pause(ctx, hostKillPause); err != nil {
			break
		}
		i := random.IntN(len(left))
		k := hostKill{host: left[i], known: never, goesOn: never}
		left = append(left[:i], left[i+1:]...)
		lost := map[int]bool{}
		p.mu.Lock()
		running := p.runningLocked()
		for _, q := range p.state.Processes {
			for _, r := range q.Ranks {
				lost[r] = lost[r] || q.Host == k.host
			}
		}
		p.mu.Unlock()
		if !running {
			break
		}
		for r, there := range lost {
			if !there {
				delete(lost, r)
			}
		}
		k.ranks = len(lost)
		began := time.Now()
		if err := s.lab.Signal(k.host, syscall.SIGKILL); err != nil {
			return nil, false, err
		}
		if k.ranks == 0 {
			continue
		}
		_ = p.await(ctx, patience, func() bool { return k.seeLocked(p.past, lost, began) })
		kills = append(kills, k)
	}
	select {
	case <-p.done:
	case <-time.After(surviveTime):
		return kills, false, errors.New("the job does not end")
	case <-ctx.Done():
		return kills, false, ctx.Err()
	}
	if same = p.err == nil && p.stdout.whole() == want; !same {
		d.note("mpivrun ended with %v and printed %q, not %q; it said: %s", p.err, p.stdout.whole(), want, p.stderr.text())
	}
	return kills, same, nil
}

// seeLocked fills in what came of the ranks that were there; true: all go on.
func (k *hostKill) seeLocked(past []events.Event, lost map[int]bool, began time.Time) bool {
	var first, last time.Time
	gone := map[int]bool{}
	for r := range lost {
		gone[r] = true
	}
	for _, e := range past {
		if e.Rank == nil || !lost[*e.Rank] || e.Time.Before(began) {
			continue
		}
		switch e.Kind {
		case events.RankMoved:
			if first.IsZero() {
				first = e.Time
			}
		case events.RankArrived:
			delete(gone, *e.Rank)
			last = e.Time
		}
	}
	if !first.IsZero() {
		k.known = milliseconds(first.Sub(began))
	}
	if len(gone) > 0 {
		return false
	}
	k.goesOn = milliseconds(last.Sub(first))
	return true
}
