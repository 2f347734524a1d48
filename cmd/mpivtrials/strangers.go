//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

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
	newcomerFiles = 2               // a connection's sockets
	cable         = 200 * lab.Mbit
	meterEach     = 100 * time.Millisecond
)

// A phase is a part of a round: what the job got through, and what else there was.
type phase struct {
	rate    float64 // the job's, bytes a second, as its receiver sees it: the median half second
	mean    float64 // of all half seconds
	in, out float64 // of X's cable in the same time, bytes a second
	cpu     float64 // cores that the processes of X used, but for a sink
	haul    haul    // of who attacked
}

// spoils is what one attack did to the job.
type spoils struct {
	weapon                       weapon
	before, away, beside, during phase
	held, most, after            use
	met                          float64 // ms; NaN: never
}

// besideJob is what X's cable carried in p beside the job, bytes a second: all but what
// the job's messages take, headers and acknowledgements too, as in the quiet phase.
func (p phase) besideJob(quiet phase) (in, out float64) {
	return p.in - quiet.in*p.mean/quiet.mean, p.out - quiet.out*p.mean/quiet.mean
}

// left is what the cable has left for the job in p: what it got through in the quiet
// phase, when it had all of the cable, less the share that others send.
func (p phase) left(quiet phase) float64 {
	_, others := p.besideJob(quiet)
	return quiet.rate * (1 - max(0, others)/quiet.out)
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

// within is the half seconds that lie in s: their median, their mean, and from when
// to when they are.
func (h *heard) within(s span) (middle, mean float64, of span) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var in []float64
	for _, r := range h.rates {
		if from := r.at.Add(-lookEach); s.contains(r.at) && s.contains(from) {
			if len(in) == 0 {
				of.from = from
			}
			of.to = r.at
			in = append(in, r.rate)
			mean += r.rate
		}
	}
	return median(in), mean / float64(len(in)), of
}

func strangers(ctx context.Context, d *desk) error {
	l, err := lab.New(lab.Options{
		Hosts:    []lab.Host{{Name: "X"}, {Name: "Y"}, {Name: "A"}, {Name: "W"}},
		Networks: []lab.Network{{Name: "lan", Rate: cable}},
	})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.LimitCPU("A", d.cores); errors.Is(err, lab.ErrUnavailable) {
		d.note("the attacker may use all cores: %v", err)
	} else if err != nil {
		return err
	}
	program := []string{d.self, roleStrangers}
	for i := range d.only {
		program = append(program, (strangersLead + time.Duration(i)*roundFor + quietFor + meetAfter).String())
	}
	h := heard{met: map[int]float64{}}
	begun := time.Now()
	slots := map[string]int{"X": 1, "Y": 1 + len(d.only)}
	if d.among {
		slots["Y"], slots["A"] = 1, len(d.only)
	}
	j, err := d.start(ctx, l, slots, h.line, nil, program...)
	if err != nil {
		return err
	}
	defer j.kill()
	m, err := watch(l, "X", meterEach)
	if err != nil {
		return err
	}
	defer m.close()
	if err := j.sleep(ctx, strangersLead); err != nil {
		return err
	}
	var all []spoils
	var bands [][2]float64
	for i, name := range d.only {
		if err := j.sleep(ctx, time.Until(begun.Add(strangersLead+time.Duration(i)*roundFor))); err != nil {
			return err
		}
		s, at, err := d.round(ctx, l, j, m, &h, name)
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

// round tries one weapon, on sinks and on the job.
func (d *desk) round(ctx context.Context, l *lab.Lab, j *job, m *meter, h *heard, name string) (s spoils, at span, err error) {
	s.weapon = weapons[slices.IndexFunc(weapons, func(w weapon) bool { return w.name == name })]
	own, err := l.Addr("X", "lan")
	if err != nil {
		return s, at, err
	}
	open, err := sockets(l, "X")
	if err != nil {
		return s, at, err
	}
	targets := pick(open, own, s.weapon.overUDP)
	if len(targets) == 0 {
		return s, at, errors.New("the job has no ports to attack")
	}
	during := func(p *phase, f func() error) (span, error) {
		begun := time.Now()
		was, err := usage(l)
		if err != nil {
			return span{}, err
		}
		if err := f(); err != nil {
			return span{}, err
		}
		is, err := usage(l)
		if err != nil {
			return span{}, err
		}
		sp := span{begun, time.Now()}
		rs, err := m.all()
		var of span
		p.rate, p.mean, of = h.within(sp)
		in, out, long := carriedEachWay(rs, "lan", of.from, of.to)
		p.in, p.out, p.cpu = in/long.Seconds(), out/long.Seconds(), (is.cpu-was.cpu)/sp.to.Sub(sp.from).Seconds()
		return sp, err
	}
	if _, err := during(&s.before, func() error { return j.sleep(ctx, settleFor) }); err != nil {
		return s, at, err
	}
	for _, c := range []struct {
		host string
		to   *phase
	}{{"W", &s.away}, {"X", &s.beside}} {
		if _, err := during(c.to, func() (err error) {
			c.to.haul, err = d.control(ctx, l, s.weapon, c.host, len(targets))
			return err
		}); err != nil {
			return s, at, err
		}
	}
	if err := j.sleep(ctx, restFor); err != nil {
		return s, at, err
	}
	if s.held, err = usage(l); err != nil {
		return s, at, err
	}
	at, err = during(&s.during, func() error {
		ctx2, stop := context.WithCancel(ctx)
		most := make(chan error, 1)
		go func() { most <- s.watch(ctx2, l) }()
		var err error
		s.during.haul, err = d.launch(ctx, l, s.weapon, attackFor, targets)
		stop()
		return errors.Join(err, <-most)
	})
	if err != nil {
		return s, at, err
	}
	if err := j.sleep(ctx, afterFor-time.Second); err != nil {
		return s, at, err
	}
	s.after, err = usage(l)
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
		u, err := usage(l)
		if err != nil {
			return err
		}
		s.most.files, s.most.mem = max(s.most.files, u.files), max(s.most.mem, u.mem)
	}
}

// control attacks a sink on a host that has as many ports as the job.
func (d *desk) control(ctx context.Context, l *lab.Lab, w weapon, host string, n int) (haul, error) {
	addr, err := l.Addr(host, "lan")
	if err != nil {
		return haul{}, err
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
		return haul{}, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return haul{}, err
	}
	if err := c.Start(); err != nil {
		return haul{}, err
	}
	defer func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out) // to its end
		_ = c.Wait()                    // how a sink ends does not matter
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return haul{}, fmt.Errorf("the sink said nothing: %w", err)
	}
	var targets []string
	for _, f := range strings.Fields(line) {
		targets = append(targets, strings.TrimPrefix(strings.TrimPrefix(f, "tcp:"), "udp:"))
	}
	return d.launch(ctx, l, w, controlFor, targets)
}

// launch attacks from host A and returns what the attacker said it did.
func (d *desk) launch(ctx context.Context, l *lab.Lab, w weapon, long time.Duration, targets []string) (haul, error) {
	from, err := l.Addr("A", "lan")
	if err != nil {
		return haul{}, err
	}
	out, err := l.Command(ctx, "A", d.self, append([]string{roleAttack, w.name, long.String(), from.String()}, targets...)...).CombinedOutput()
	if err != nil {
		return haul{}, fmt.Errorf("the attacker: %w: %s", err, out)
	}
	done, err := parseHaul(string(out))
	if err != nil {
		return haul{}, fmt.Errorf("the attacker said %q: %w", out, err)
	}
	return done, nil
}
