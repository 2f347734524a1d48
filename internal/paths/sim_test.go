package paths

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/seeds"
	"github.com/mpiv/mpiv/topology"
)

// usual is how many seeds the tests here run.
const usual = 8

// TestRandomFaults runs the two ends of a pair over paths that are cut, silenced,
// slowed and healed at random, and some of which they are told to avoid.
func TestRandomFaults(t *testing.T) {
	var sum tally
	n := seeds.Each(t, usual, func(seed uint64) {
		for _, calm := range []bool{true, false} {
			w := newFaulty(seed, calm)
			if err := w.run(); err != nil {
				t.Fatalf("seed %d, calm %v, at %v: %v\n%s",
					seed, calm, w.now.Sub(w.start), err, seeds.Replay("./internal/paths", "TestRandomFaults", seed))
			}
			sum.add(w.tally)
		}
	})
	t.Logf("%+v", sum)
	if n < usual {
		return
	}
	require.Positive(t, sum.breaks)
	require.Positive(t, sum.stalls)
	require.Positive(t, sum.rejoins)
	require.Positive(t, sum.faster)
	require.Positive(t, sum.crossed)
	require.Positive(t, sum.blackouts)
	require.Positive(t, sum.orders)
}

type tally struct {
	breaks, stalls, rejoins, faster, crossed, blackouts, orders int
	worst                                                       time.Duration // outage with another path that worked all the time
}

func (t *tally) add(o tally) {
	t.breaks += o.breaks
	t.stalls += o.stalls
	t.rejoins += o.rejoins
	t.faster += o.faster
	t.crossed += o.crossed
	t.blackouts += o.blackouts
	t.orders += o.orders
	t.worst = max(t.worst, o.worst)
}

// A faulty pair: in each step of a millisecond messages are under way in both
// directions.
type faulty struct {
	rng        *rand.Rand
	start, now time.Time
	calm       bool // one fault at a time, and long between two
	nets       []net
	ends       [2]*end
	later      []event
	generation int
	lastFault  time.Time
	switches   []time.Time
	out        time.Time // no message goes through since then
	tally
}

// A net is what a path goes over. It breaks by itself; those of one carrier fall
// silent together.
type net struct {
	carrier         int
	silent, refuses bool
	up              time.Time // since then
	rate            float64
}

func (n *net) works() bool { return !n.silent && !n.refuses }

// An end has its own view of which connection there is.
type end struct {
	pair       *Pair
	using      int // path; -1: none
	generation int // of it
	tried      int // in the greeting under way; 0: none
	attempt    []int
	attempts   int
	heard      time.Time // the last acknowledgement
}

type event struct {
	at time.Time
	do func()
}

func newFaulty(seed uint64, calm bool) *faulty {
	w := &faulty{rng: rand.New(rand.NewPCG(seed, 1)), start: time.Unix(1_700_000_000, 0), calm: calm}
	w.now, w.lastFault = w.start, w.start
	var all []Path
	each := 1 + w.rng.IntN(2)
	for i := range 2 + w.rng.IntN(3) {
		class := topology.SAN + topology.Class(min(i, 2))
		for j := range each {
			path := Path{Name: fmt.Sprint(class, i, "/", j), Class: class}
			if each > 1 {
				path.Network = fmt.Sprint(i)
			}
			all = append(all, path)
			w.nets = append(w.nets, net{carrier: i, up: w.start, rate: []float64{1000, 100, 50, 20}[i]})
		}
	}
	for i := range w.ends {
		w.ends[i] = &end{pair: New(Config{Paths: all, Plans: i == 0, Seed: seed + uint64(i)}), using: -1, attempt: make([]int, len(all))}
	}
	return w
}

func (w *faulty) run() error { return w.runFor(3*time.Minute, w.fault) }

// runFor has both ends do what they do, and breaks what fault breaks.
func (w *faulty) runFor(d time.Duration, fault func()) error {
	for _, e := range w.ends {
		if err := w.step(e, Want{}); err != nil {
			return err
		}
	}
	for w.now.Sub(w.start) < d {
		w.now = w.now.Add(time.Millisecond)
		for i := 0; i < len(w.later); i++ {
			if e := w.later[i]; !e.at.After(w.now) {
				w.later = append(w.later[:i], w.later[i+1:]...)
				i--
				e.do()
			}
		}
		fault()
		if w.now.UnixMilli()%5 == 0 {
			for _, e := range w.ends {
				if err := w.step(e, Tick{w.reading(e)}); err != nil {
					return err
				}
			}
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	return nil
}

func (w *faulty) after(ms int, do func()) {
	w.later = append(w.later, event{w.now.Add(time.Duration(ms) * time.Millisecond), do})
}

func (w *faulty) peer(e *end) *end {
	if e == w.ends[0] {
		return w.ends[1]
	}
	return w.ends[0]
}

func (w *faulty) reading(e *end) Reading {
	if e.using < 0 {
		return Reading{}
	}
	n := &w.nets[e.using]
	if !n.silent && w.peer(e).generation == e.generation {
		e.heard = w.now
	}
	return Reading{RTT: time.Millisecond, Measured: true, Stalled: w.now.Sub(e.heard), Out: Pace{n.rate, true}}
}

func (w *faulty) step(e *end, in Input) error {
	for _, a := range e.pair.Step(w.now, in) {
		if err := w.act(e, a); err != nil {
			return err
		}
	}
	return nil
}

func (w *faulty) act(e *end, a Action) error {
	n := &w.nets[a.Path]
	id := e.attempt[a.Path]
	live := func() bool { return e.attempt[a.Path] == id }
	failed := func(why string) {
		w.after(1, func() {
			if live() {
				e.attempt[a.Path] = 0
				w.must(w.step(e, Failed{a.Path, errors.New(why)}))
			}
		})
	}
	switch a.Do {
	case Dial:
		if id != 0 {
			return fmt.Errorf("%s is dialed twice at once", e.pair.cfg.Paths[a.Path].Name)
		}
		e.attempts++
		e.attempt[a.Path] = e.attempts
		id = e.attempts
		switch {
		case n.refuses:
			failed("refused")
		case !n.silent:
			w.after(2, func() {
				if live() && n.works() {
					w.must(w.step(e, Answered{Path: a.Path, RTT: time.Millisecond}))
				}
			})
		}
	case Take:
		if id == 0 {
			return fmt.Errorf("%s is taken, and was not dialed", e.pair.cfg.Paths[a.Path].Name)
		}
		if e.tried != 0 {
			return errors.New("two greetings are under way")
		}
		w.greet(e, a.Path, live, failed)
	case Drop:
		if id == 0 {
			return fmt.Errorf("%s is dropped, and was not dialed", e.pair.cfg.Paths[a.Path].Name)
		}
		e.attempt[a.Path], e.tried = 0, 0
	case GiveUp:
		return a.Err
	}
	return nil
}

// greet is what two engines do: see package engine.
func (w *faulty) greet(e *end, path int, live func() bool, failed func(string)) {
	w.generation = max(w.generation, e.generation) + 1
	generation, peer := w.generation, w.peer(e)
	e.tried = generation
	w.after(1, func() {
		if !live() || !w.nets[path].works() {
			return
		}
		if generation <= peer.generation || peer.tried > generation || peer.tried == generation && peer == w.ends[0] {
			if peer.tried != 0 {
				w.crossed++
			}
			e.tried = 0
			failed("refused")
			return
		}
		w.attach(peer, path, generation, false)
		w.after(1, func() {
			if !live() || !w.nets[path].works() {
				return
			}
			if e.tried == generation {
				e.tried = 0
			}
			if generation <= e.generation {
				failed("newer")
				return
			}
			e.attempt[path] = 0
			w.attach(e, path, generation, true)
		})
	})
}

func (w *faulty) attach(e *end, path, generation int, dialed bool) {
	before := e.pair.Status(w.now)
	e.using, e.generation, e.heard = path, generation, w.now
	w.must(w.step(e, Attached{Path: path, Dialed: dialed}))
	if e == w.ends[0] {
		if after := e.pair.Status(w.now); after.Switches > before.Switches {
			w.switches = append(w.switches, w.now)
			switch why := after.Why; {
			case why == "rejoined":
				w.rejoins++
			case len(why) > 6 && why[:6] == "faster":
				w.faster++
			}
		}
	}
	// What the other end has of an older connection breaks.
	if o := w.peer(e); o.using >= 0 && o.generation < generation && o.using != path && w.nets[o.using].works() {
		old := o.generation
		w.after(3, func() {
			if o.generation == old && o.using >= 0 {
				o.using = -1
				w.must(w.step(o, Want{errors.New("closed")}))
			}
		})
	}
}

func (w *faulty) must(err error) {
	if err != nil {
		panic(err)
	}
}

// fault breaks or heals something, now and then.
func (w *faulty) fault() {
	every := 400
	if w.calm {
		every = 25_000
	}
	if w.now.Sub(w.lastFault) < time.Duration(every/2)*time.Millisecond || w.rng.IntN(every) > 0 {
		return
	}
	i := w.rng.IntN(len(w.nets))
	if w.calm && w.rng.IntN(2) == 0 {
		i = 0
	}
	n := &w.nets[i]
	if !n.works() {
		return
	}
	w.lastFault = w.now
	heals := 100 + w.rng.IntN(4000)
	switch w.rng.IntN(3) {
	case 0:
		w.silence(n.carrier, true)
		w.stalls++
		w.after(heals, func() {
			w.silence(n.carrier, false)
			if w.calm {
				w.lastFault = w.now
			}
		})
		return
	case 1:
		n.refuses = true
		w.breaks++
		for _, e := range w.ends {
			if e.using == i {
				e.using = -1
				w.must(w.step(e, Want{errors.New("reset")}))
			}
		}
	default:
		if w.rng.IntN(2) == 0 {
			w.order(n.carrier)
		} else if w.calm {
			n.rate *= []float64{0.01, 1, 1}[w.rng.IntN(3)]
		}
		return
	}
	w.after(heals, func() {
		n.refuses, n.up = false, w.now
		if w.calm {
			w.lastFault = w.now
		}
	})
}

// order has the ends avoid the class of a carrier for some time, or end that; one of them may not hear of it.
func (w *faulty) order(carrier int) {
	w.orders++
	in := Avoid{Class: topology.SAN + topology.Class(min(carrier, 2)), Why: "to order"}
	if d := w.rng.IntN(10_000); d > 1000 {
		in.Until = w.now.Add(time.Duration(d) * time.Millisecond)
		w.after(d, func() {
			if w.calm {
				w.lastFault = w.now // what it kept out may be better
			}
		})
	}
	for _, e := range w.ends {
		if w.rng.IntN(4) > 0 {
			w.after(w.rng.IntN(200), func() { w.must(w.step(e, in)) })
		}
	}
}

// silence has all paths over a carrier fall silent, or ends that.
func (w *faulty) silence(carrier int, silent bool) {
	for i := range w.nets {
		if n := &w.nets[i]; n.carrier == carrier {
			n.silent = silent
			n.up = w.now
		}
	}
}

// check is what must hold at any time.
func (w *faulty) check() error {
	a, b := w.ends[0], w.ends[1]
	flows := a.using >= 0 && a.using == b.using && a.generation == b.generation && w.nets[a.using].works()
	if flows {
		w.out = time.Time{}
	} else if w.out.IsZero() {
		w.out = w.now
	}
	best, since := -1, w.now
	for i := range w.nets {
		if n := &w.nets[i]; n.works() && n.up.Before(since) {
			best, since = i, n.up
		}
	}
	if best < 0 {
		w.blackouts++
		return nil
	}
	if !flows {
		outage := w.now.Sub(w.out)
		if since.After(w.out) {
			outage = w.now.Sub(since)
			// A dial that met silence is waited for, and one greeting that breaks off.
			if outage > dialMost+takeFor {
				return fmt.Errorf("no path in use for %v while %d works: %+v %+v", outage, best, a.pair.Status(w.now), b.pair.Status(w.now))
			}
			return nil
		}
		w.worst = max(w.worst, outage)
		if w.calm && outage > 300*time.Millisecond {
			return fmt.Errorf("out for %v though path %d worked all the time: %+v %+v", outage, best, a.pair.Status(w.now), b.pair.Status(w.now))
		}
		return nil
	}
	if !w.calm {
		recent := 0
		for _, s := range w.switches {
			if w.now.Sub(s) < time.Minute {
				recent++
			}
		}
		if recent > 200 {
			return fmt.Errorf("%d changes in a minute", recent)
		}
		return nil
	}
	quiet := w.now.Sub(w.lastFault)
	// What each path delivers is found out by using it.
	if n, most := len(w.switches), len(w.nets); quiet > 5*time.Second && n > most && w.now.Sub(w.switches[n-1-most]) < 5*time.Second {
		return fmt.Errorf("%d changes in 5 s without a fault: %+v", most+1, a.pair.Status(w.now))
	}
	if a.using != 0 && quiet > 2*time.Second && w.nets[0].works() && w.now.Sub(w.nets[0].up) > 2*time.Second &&
		w.now.After(a.pair.heldUntil(0).Add(2*time.Second)) && w.nets[0].rate >= w.nets[a.using].rate {
		return fmt.Errorf("the best path is well for %v and not in use: %+v", w.now.Sub(w.nets[0].up), a.pair.Status(w.now))
	}
	return nil
}
