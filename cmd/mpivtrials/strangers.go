//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/mpiv/mpiv/chaos/lab"
)

// How long each part of a round of strangers takes. First the same attack goes to a
// sink on another host, which costs the job what the attacker takes of the machine,
// then to one beside the job, which costs it a part of the host's cable and kernel too.
const (
	settleFor  = 3 * time.Second
	controlFor = 5 * time.Second // each
	restFor    = 2 * time.Second
	attackFor  = 10 * time.Second
	afterFor   = 6 * time.Second
	meetAfter  = 4 * time.Second                    // into the attack
	quietFor   = settleFor + 2*controlFor + restFor // before the attack
	roundFor   = quietFor + attackFor + afterFor

	strangersLead = 3 * time.Second // before the first round, for the job to start
	attackerCores = 0.5
	newcomerFiles = 2 // a connection's sockets
)

// spoils is what one attack did to the job.
type spoils struct {
	weapon                           string
	did                              string
	before, away, beside, during     float64 // bytes a second
	filesBefore, filesMost, filesEnd int
	memBefore, memMost, memEnd       float64 // MB
	met                              float64 // ms; NaN: never
}

// heard is what the ranks of strangers have printed.
type heard struct {
	mu    sync.Mutex // guards what follows
	rates []timed
	met   map[int]float64
	toll  *toll
}

type timed struct {
	at   time.Time
	rate float64
}

func (h *heard) line(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var n int
	var x float64
	if _, err := fmt.Sscanf(text, "rate %g", &x); err == nil {
		h.rates = append(h.rates, timed{time.Now(), x})
	} else if _, err := fmt.Sscanf(text, "met %d %g", &n, &x); err == nil {
		h.met[n] = x
	} else if t, ok := parseToll(text); ok {
		h.toll = &t
	}
}

// rate is the median of the half seconds that lie within spans.
func (h *heard) rate(spans ...span) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var in []float64
	for _, r := range h.rates {
		for _, s := range spans {
			if s.contains(r.at) && s.contains(r.at.Add(-lookEach)) {
				in = append(in, r.rate)
			}
		}
	}
	return median(in)
}

func strangers(ctx context.Context, d *desk) error {
	l, err := lab.New(lab.Options{
		Hosts:    []lab.Host{{Name: "X"}, {Name: "Y"}, {Name: "A"}, {Name: "W"}},
		Networks: []lab.Network{{Name: "lan", Rate: 200 * lab.Mbit}},
	})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.LimitCPU("A", attackerCores); errors.Is(err, lab.ErrUnavailable) {
		d.note("the attacker may use a whole core: %v", err)
	} else if err != nil {
		return err
	}
	program := []string{d.self, roleStrangers}
	for i := range d.only {
		program = append(program, (strangersLead + time.Duration(i)*roundFor + quietFor + meetAfter).String())
	}
	h := heard{met: map[int]float64{}}
	begun := time.Now()
	j, err := d.start(ctx, l, map[string]int{"X": 1, "Y": 1 + len(d.only)}, h.line, nil, program...)
	if err != nil {
		return err
	}
	defer j.kill()
	if err := j.sleep(ctx, strangersLead); err != nil {
		return err
	}
	var all []spoils
	var bands [][2]float64
	for i, name := range d.only {
		if err := j.sleep(ctx, time.Until(begun.Add(strangersLead+time.Duration(i)*roundFor))); err != nil {
			return err
		}
		s, at, err := d.round(ctx, l, j, &h, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		bands = append(bands, [2]float64{at.from.Sub(begun).Seconds(), at.to.Sub(begun).Seconds()})
		all = append(all, s)
	}
	if err := j.finish(20 * time.Second); err != nil {
		return err
	}
	return d.reportStrangers(all, &h, begun, bands)
}

// round tries one weapon, on a sink and on the job.
func (d *desk) round(ctx context.Context, l *lab.Lab, j *job, h *heard, name string) (s spoils, at span, err error) {
	s.weapon = name
	w := weapons[slices.IndexFunc(weapons, func(w weapon) bool { return w.name == name })]
	own, err := l.Addr("X", "lan")
	if err != nil {
		return s, at, err
	}
	open, err := sockets(l, "X")
	if err != nil {
		return s, at, err
	}
	targets := pick(open, own, w.overUDP)
	if len(targets) == 0 {
		return s, at, errors.New("the job has no ports to attack")
	}
	quiet := span{from: time.Now()}
	if err := j.sleep(ctx, settleFor); err != nil {
		return s, at, err
	}
	quiet.to = time.Now()
	away := span{from: time.Now()}
	if err := d.control(ctx, l, w, "W", len(targets)); err != nil {
		return s, at, err
	}
	away.to = time.Now()
	beside := span{from: time.Now()}
	if err := d.control(ctx, l, w, "X", len(targets)); err != nil {
		return s, at, err
	}
	beside.to = time.Now()
	rest := span{from: beside.to.Add(lookEach)} // what was queued is through
	if err := j.sleep(ctx, restFor); err != nil {
		return s, at, err
	}
	rest.to = time.Now()
	s.filesBefore, s.memBefore, err = usage(l, "X")
	if err != nil {
		return s, at, err
	}
	at.from = time.Now()
	ctx2, stop := context.WithCancel(ctx)
	most := make(chan error, 1)
	go func() { most <- s.watch(ctx2, l) }()
	s.did, err = d.launch(ctx, l, w, attackFor, targets)
	at.to = time.Now()
	stop()
	if err := errors.Join(err, <-most); err != nil {
		return s, at, err
	}
	if err := j.sleep(ctx, afterFor-time.Second); err != nil {
		return s, at, err
	}
	s.filesEnd, s.memEnd, err = usage(l, "X")
	s.before, s.away, s.beside, s.during = h.rate(quiet, rest), h.rate(away), h.rate(beside), h.rate(at)
	return s, at, err
}

// pick is the ports of a host that a weapon is for.
func pick(open ports, own netip.Addr, udp bool) (targets []string) {
	all := open.tcp
	if udp {
		all = open.udp
	}
	for _, p := range all {
		if p.Addr() == own || p.Addr().IsUnspecified() {
			targets = append(targets, netip.AddrPortFrom(own, p.Port()).String())
		}
	}
	slices.Sort(targets)
	return slices.Compact(targets)
}

// watch notes the most that the processes of X hold, until ctx ends.
func (s *spoils) watch(ctx context.Context, l *lab.Lab) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		files, mem, err := usage(l, "X")
		if err != nil {
			return err
		}
		s.filesMost, s.memMost = max(s.filesMost, files), max(s.memMost, mem)
	}
}

// control attacks a sink on a host that has as many ports as the job.
func (d *desk) control(ctx context.Context, l *lab.Lab, w weapon, host string, n int) error {
	addr, err := l.Addr(host, "lan")
	if err != nil {
		return err
	}
	tcp, udp := n, 0
	if w.overUDP {
		tcp, udp = 0, n
	}
	patience := sinkPatience
	if w.curt {
		patience = 0
	}
	c := l.Command(ctx, host, d.self, roleSink, addr.String(), fmt.Sprint(tcp), fmt.Sprint(udp), patience.String())
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out) // to its end
		_ = c.Wait()                    // how a sink ends does not matter
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the sink said nothing: %w", err)
	}
	var targets []string
	for _, f := range strings.Fields(line) {
		targets = append(targets, strings.TrimPrefix(strings.TrimPrefix(f, "tcp:"), "udp:"))
	}
	_, err = d.launch(ctx, l, w, controlFor, targets)
	return err
}

// launch attacks from host A and returns what the attacker said it did.
func (d *desk) launch(ctx context.Context, l *lab.Lab, w weapon, long time.Duration, targets []string) (string, error) {
	from, err := l.Addr("A", "lan")
	if err != nil {
		return "", err
	}
	out, err := l.Command(ctx, "A", d.self, append([]string{roleAttack, w.name, long.String(), from.String()}, targets...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the attacker: %w: %s", err, out)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "did "), nil
}

func (d *desk) reportStrangers(all []spoils, h *heard, begun time.Time, bands [][2]float64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.toll == nil {
		return errors.New("the job did not say what it had received")
	}
	heading := []string{"attack", "did", "before_MB_s", "sink_elsewhere_MB_s", "sink_beside_MB_s", "during_MB_s", "met_ms",
		"files_before", "files_most", "files_after", "memory_before_MB", "memory_most_MB", "memory_after_MB"}
	var rows [][]string
	for i, s := range all {
		s.met = math.NaN()
		if ms, ok := h.met[i]; ok {
			s.met = ms
		}
		rows = append(rows, []string{s.weapon, s.did, number(s.before / 1e6), number(s.away / 1e6), number(s.beside / 1e6), number(s.during / 1e6), number(s.met),
			fmt.Sprint(s.filesBefore), fmt.Sprint(s.filesMost), fmt.Sprint(s.filesEnd), number(s.memBefore), number(s.memMost), number(s.memEnd)})
		d.note("%s: %s; %.1f MB/s before, %.1f while a sink elsewhere was attacked, %.1f one beside the job, %.1f the job; X had %d files and %.0f MB, at most %d and %.0f, then %d and %.0f",
			s.weapon, s.did, s.before/1e6, s.away/1e6, s.beside/1e6, s.during/1e6, s.filesBefore, s.memBefore, s.filesMost, s.memMost, s.filesEnd, s.memEnd)
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

func (s spoils) claims() []claim {
	return []claim{
		{what: s.weapon + ": throughput, of that before", measured: 100 * s.during / s.before, unit: "%", bar: 95, least: true},
		{what: s.weapon + ": throughput, of that while a sink beside the job is attacked", measured: 100 * s.during / s.beside, unit: "%", bar: 95, least: true},
		{what: s.weapon + ": a process that connects meanwhile is let in after", measured: s.met, unit: "ms", bar: 2000},
		{what: s.weapon + ": descriptors more than before", measured: float64(s.filesEnd - s.filesBefore), bar: newcomerFiles},
		{what: s.weapon + ": memory more than before", measured: s.memEnd - s.memBefore, unit: "MB", bar: 32},
	}
}
