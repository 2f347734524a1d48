package sensors

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// learn takes a reading of a link without a promise, or one whose promise is learned
// anew. A promise is the median of 20 readings that the path limited, or that stood in a queue, over 2 s or
// more, in which something was outstanding for 1 s.
//
// When the rate fell by more than half meanwhile, the promise is the first half's and
// in doubt; when it doubled, what came first is forgotten.
func (w *Watch) learn(k key, l *watched, r Reading) {
	if !r.Limited && !r.Standing {
		return
	}
	for _, name := range []string{r.Link.From, r.Link.To} {
		if h := w.fresh(name, r.At); h != nil && h.Flooded {
			w.hold(k, l, r.At, name+" is flooded")
			return
		}
	}
	if l.stalled >= time.Second {
		w.hold(k, l, r.At, "nothing arrives of what is outstanding")
	}
	if r.Bytes == 0 {
		return
	}
	if len(l.learning) == learnMost {
		l.learning = slices.Delete(l.learning, 0, learnMost/2)
	}
	l.learning = append(l.learning, sample{r.At, r.rate(), r.Busy, r.RTT})
	l.noise.observe(r.rate(), float64(r.Busy)/float64(unit))
	if !enough(l.learning) {
		return
	}
	half := len(l.learning) / 2
	first, second := median(l.learning[:half]), median(l.learning[half:])
	if second > first+math.Ln2 {
		l.learning = slices.Delete(l.learning, 0, half)
		return
	}
	from := l.learning
	p := &l.promise
	p.Doubt = ""
	if second < first-math.Ln2 {
		from = from[:half]
		p.Doubt = fmt.Sprintf("it fell from %s to %s while it was learned", bytesPerSecond(math.Exp(first)), bytesPerSecond(math.Exp(second)))
	} else if l.held {
		p.Doubt = "it was learned right after something had been wrong"
	}
	p.Rate = math.Exp(median(from))
	p.Best, p.Samples, p.RTT, p.Spread = p.Rate, len(from), medianRTT(from), l.noise.spread()
	p.Busy, p.Learned = busy(from).Seconds(), r.At.UTC().Truncate(time.Second)
	l.first, l.wander = min(wanderFirst*l.noise.scatter(), wanderMost), 0
	p.Wander = l.first
	l.learning, l.held = nil, false
	text := bytesPerSecond(p.Rate)
	if p.Doubt != "" {
		text += "; in doubt: " + p.Doubt
	}
	w.note(r.At, Learned, k, text)
	w.beside(k, l, r.At)
}

func (w *Watch) hold(k key, l *watched, at time.Time, why string) {
	if !l.held {
		l.held = true
		w.note(at, Held, k, why)
	}
}

func enough(all []sample) bool {
	return len(all) >= learnReadings && busy(all) >= learnBusy && all[len(all)-1].at.Sub(all[0].at) >= learnSpan
}

func busy(all []sample) (d time.Duration) {
	for _, s := range all {
		d += s.busy
	}
	return d
}

func median(all []sample) float64 {
	x := make([]float64, len(all))
	for i, s := range all {
		x[i] = s.x
	}
	slices.Sort(x)
	return x[len(x)/2]
}

func medianRTT(all []sample) float64 {
	var x []time.Duration
	for _, s := range all {
		if s.rtt > 0 {
			x = append(x, s.rtt)
		}
	}
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[len(x)/2].Seconds()
}

// beside compares what was learned with what links of the same network promise for
// the same sizes: with less than a third of their median it is in doubt, for a link that is
// learned under attack looks like a slow one.
func (w *Watch) beside(k key, l *watched, at time.Time) {
	all := w.like[k.group()]
	by := func(a *watched, rate float64) int {
		switch {
		case a.promise.Best < rate:
			return -1
		case a.promise.Best > rate:
			return 1
		}
		return 0
	}
	i, _ := slices.BinarySearchFunc(all, l.promise.Best, by)
	all = slices.Insert(all, i, l)
	w.like[k.group()] = all
	if len(all) < 3 {
		return
	}
	usual := all[len(all)/2].promise.Best
	for _, a := range all {
		p := &a.promise
		if p.Best >= usual/3 {
			break
		}
		if p.Doubt == "" {
			p.Doubt = fmt.Sprintf("%s is less than a third of what other links of its network promise, %s", bytesPerSecond(p.Rate), bytesPerSecond(usual))
			w.note(at, Doubted, key{p.Link, p.Size}, p.Doubt)
		}
	}
}

func (w *Watch) leave(k key, l *watched) {
	all := w.like[k.group()]
	if i := slices.Index(all, l); i >= 0 {
		w.like[k.group()] = slices.Delete(all, i, i+1)
	}
}

// group is what links are compared within.
func (k key) group() key { return key{Link{Network: k.link.Network}, k.size} }

// ripen gives readings to the noise, some time after they came: those of a fall that is about
// to be noticed would hide it.
func (l *watched) ripen(r Reading) {
	n := 0
	for n < len(l.young) && r.At.Sub(l.young[n].at) >= ripeAfter {
		y := l.young[n]
		l.noise.observe(y.x, float64(y.busy)/float64(unit))
		n++
	}
	l.young = append(l.young[:0], l.young[n:]...)
	l.young = append(l.young, sample{at: r.At, x: r.rate(), busy: r.Busy})
}

// follow keeps the noise and lets the promise drift while a link does well. A link that
// delivers more than twice its promise, sustained, was learned in a bad moment: it is
// learned anew, and nothing is promised until then.
func (w *Watch) follow(k key, l *watched, r Reading, others float64) {
	p := &l.promise
	over := r.rate() - math.Log(p.Rate)
	if !r.Limited && over < 0 {
		return
	}
	if !l.byHand && l.better.observe(r, over-math.Ln2, l.noise.spread()).sum >= backAlarm {
		w.note(r.At, Raised, k, fmt.Sprintf("more than twice %s: learned anew", bytesPerSecond(p.Rate)))
		l.better.reset()
		l.noise = noise{}
		l.learning, l.held = nil, false
		w.leave(k, l)
		*p = Promise{Link: p.Link, Size: p.Size}
		return
	}
	if l.fall.most() > followMost || others >= foreignHeld && over < 0 {
		l.young = l.young[:0]
		return
	}
	weight := float64(r.Busy) / float64(unit)
	if r.Limited {
		l.ripen(r)
	}
	if l.byHand {
		return
	}
	if r.Limited {
		p.Samples++
		p.Busy += r.Busy.Seconds()
		units := min(p.Busy/unit.Seconds(), wanderMemory)
		off := max(-wanderMost, min(l.noise.slow-math.Log(p.Rate), wanderMost))
		l.wander += min(weight/units, 1) * (off*off - l.wander)
		p.Wander = math.Sqrt((l.wander*units + l.first*l.first*wanderPrior) / (units + wanderPrior))
		if p.RTT > 0 && r.RTT > 0 { // the median of round trips drifts as well
			p.RTT *= math.Exp(math.Copysign(driftLeast*weight, r.RTT.Seconds()-p.RTT))
		}
	}
	speed := max(driftLeast, driftFirst/(p.Busy/unit.Seconds()+learnReadings))
	step := math.Copysign(min(speed*weight, math.Abs(over)), over)
	p.Rate = min(max(p.Rate*math.Exp(step), p.Best/2), 2*p.Best)
}
