package sensors

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// A Mode is what a Watch does with readings.
type Mode uint8

const (
	Off     Mode = iota // nothing
	Learn               // promises are learned, and breaches not reported
	Enforce             // breaches are reported; what is not promised yet is learned
)

var modes = []string{"off", "learn", "enforce"}

func (m Mode) String() string {
	if int(m) < len(modes) {
		return modes[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// ParseMode is the inverse of String.
func ParseMode(text string) (Mode, error) {
	if i := slices.Index(modes, text); i >= 0 {
		return Mode(i), nil
	}
	return 0, fmt.Errorf("%q is no mode of contracts: want one of %v", text, modes)
}

// WatchOptions say how links are judged.
type WatchOptions struct {
	Mode       Mode
	Contract   Contract    // what is promised already
	Thresholds []Threshold // go before what is learned

	// Tolerate is the part of a promised rate that is enough. Zero means a half.
	Tolerate float64

	// Links is how many links are watched, counted for each size class. Those that
	// come later are not, and a note says so. Zero means 65536.
	Links int
}

func (o WatchOptions) withDefaults() WatchOptions {
	o.Tolerate = cmp.Or(o.Tolerate, 0.5)
	o.Links = cmp.Or(o.Links, 1<<16)
	return o
}

// How links are judged; docs/decisions/0014-contracts.md says why so.
const (
	breachAlarm = 10                     // the sum that means breach
	breachLeast = 650 * time.Millisecond // of a link's time, whatever it does in it
	lowGap      = time.Second            // without readings, after which it is to be seen anew that a breach lasts
	backAlarm   = 8                      // of the sums that mean recovery and a better link
	backLeast   = time.Second
	raiseLeast  = 3 * time.Second
	prior       = 1. / 3600 // of a reading to be the first of a real fall

	learnReadings = 20 // readings that the path limited, which are enough to promise
	learnSpan     = 2 * time.Second
	learnBusy     = time.Second
	learnMost     = 1024 // readings kept; older ones go

	driftFirst   = 0.5             // a promise follows its median by so much in a unit, over the readings it rests on,
	driftLeast   = math.Ln2 / 6000 // but by so much at least
	wanderMemory = 6000            // units
	wanderPrior  = 600             // units that the first guess is worth
	wanderFirst  = 2               // which is so many times what readings scatter
	wanderMost   = math.Ln2
	wanderWide   = 1 // what is tolerated is lower by so many times the wander
	followMost   = 3 // sum, beyond which a link does not do well enough to learn from it
	ripeAfter    = 600 * time.Millisecond
	hostFresh    = 3 * time.Second
	foreignPart  = 0.25 // of what is promised, in traffic of others
	foreignLeast = 0.8  // what is then tolerated of it
	foreignHeld  = 0.1  // beside so much of it nothing less is learned
	notesMost    = 256  // notes kept; older ones go
)

type key struct {
	link Link
	size SizeClass
}

// A Watch learns what links deliver and tells when one delivers less. It does
// nothing by itself and asks no clock: time is in the readings, which must come in
// order for each link. It is for one goroutine.
//
// Readings in which the path was not the limit never make a breach and never lower
// a promise; fast ones count as signs of health. A send that hangs is a breach without a
// promise, too, once 20 readings have seen something arrive. A link that has no readings stays
// what it was.
type Watch struct {
	o     WatchOptions
	links map[key]*watched
	like  map[key][]*watched // of a group, those with a promise, by what they learned
	hosts map[string]*hostWatch
	notes []Note
	full  bool
}

// watched is what is known of one link and size class.
type watched struct {
	promise   Promise // Rate is 0 until it is known
	seen      bool    // there was a reading
	byHand    bool    // it is a threshold's
	kept      Promise // then, what was promised already: it is not lost
	learning  []sample
	held      bool
	noise     noise
	young     []sample // that the noise does not know yet
	first     float64  // guess of the wander
	wander    float64  // the mean square of what was seen
	rtt       float64  // lately, in seconds
	fall      fall
	share     fall // below what is tolerated while others use the link
	back      fall // sums of being well again, while broken
	better    fall
	stalled   time.Duration
	recent    float64 // the rate, over some 300 ms
	recentAt  time.Time
	delivered int // readings in which something arrived, up to learnReadings
	broken    bool
	hung      bool          // broken, and nothing has arrived since
	low       time.Duration // broken: for so long in a row the path was the limit, and less than tolerated
	lowAt     time.Time
	breach    Breach
	breaches  int
}

type sample struct {
	at   time.Time
	x    float64 // logarithm of the rate
	busy time.Duration
	rtt  time.Duration
}

// NewWatch fails when an option makes no sense.
func NewWatch(o WatchOptions) (*Watch, error) {
	o = o.withDefaults()
	if !(o.Tolerate > 0 && o.Tolerate < 1) {
		return nil, fmt.Errorf("watch links: the tolerated part of a rate is %v: want more than 0 and less than 1", o.Tolerate)
	}
	w := &Watch{o: o, links: map[key]*watched{}, like: map[key][]*watched{}, hosts: map[string]*hostWatch{}}
	known := Contract{slices.Clone(o.Contract.Promises)}
	if err := known.sort(); err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	for _, p := range known.Promises {
		l := w.link(key{p.Link, p.Size}, time.Time{})
		switch {
		case l == nil:
		case l.byHand:
			l.kept = p
		default:
			l.delivered = learnReadings
			l.promise, l.first, l.wander = p, p.Wander, p.Wander*p.Wander
			l.noise = noiseOf(p)
			w.beside(key{p.Link, p.Size}, l, time.Time{})
		}
	}
	return w, nil
}

func (w *Watch) link(k key, now time.Time) *watched {
	l := w.links[k]
	if l != nil {
		return l
	}
	if len(w.links) >= w.o.Links {
		if !w.full {
			w.full = true
			w.note(now, Full, k, fmt.Sprintf("%d links are watched; this one and later ones are not", w.o.Links))
		}
		return nil
	}
	l = &watched{
		promise: Promise{Link: k.link, Size: k.size},
		fall:    fall{alarm: breachAlarm, least: breachLeast},
		share:   fall{alarm: breachAlarm, least: breachLeast},
		back:    fall{alarm: backAlarm, least: backLeast},
		better:  fall{alarm: backAlarm, least: raiseLeast},
	}
	for _, t := range w.o.Thresholds {
		if t.fits(k.link, k.size) {
			l.delivered = learnReadings
			l.byHand, l.promise.Rate, l.promise.Best = true, t.Rate, t.Rate
			break
		}
	}
	w.links[k] = l
	return l
}

// Host takes what is known of a host now. It becomes evidence, nothing is learned on links
// of a host that is flooded, and traffic of others makes a smaller fall a breach. It must
// be told in order, some times a second.
func (w *Watch) Host(name string, s HostState) {
	h := w.hosts[name]
	if h == nil {
		h = &hostWatch{}
		w.hosts[name] = h
	}
	h.observe(s)
}

// fresh is what is known of a host at a time; nil if it is nothing, or was long ago.
func (w *Watch) fresh(name string, now time.Time) *hostWatch {
	if h := w.hosts[name]; h != nil && now.Sub(h.At) < hostFresh {
		return h
	}
	return nil
}

// Observe takes a reading. It returns true with a breach that begins, and with one that
// ends: Ended is set then.
func (w *Watch) Observe(r Reading) (Breach, bool) {
	r, ok := r.sound()
	if !ok || w.o.Mode == Off {
		return Breach{}, false
	}
	k := key{r.Link, r.Size}
	l := w.link(k, r.At)
	if l == nil {
		return Breach{}, false
	}
	l.see(r)
	l.seen = true
	others := w.others(l, r.At)
	changed := l.judge(r, w.least(l), others)
	if l.broken || changed {
		l.breach.Evidence = w.evidence(l, r)
	}
	switch {
	case l.broken:
	case l.promise.Rate == 0:
		w.learn(k, l, r)
	default:
		w.follow(k, l, r, others)
	}
	if changed && l.broken && w.o.Mode == Learn {
		w.note(r.At, Held, k, l.breach.String())
	}
	if !changed || w.o.Mode != Enforce {
		return Breach{}, false
	}
	return l.breach, true
}

// Lasts returns the breach of the link of a reading that was observed, if it has begun before and readings have shown
// for as long as it takes to see one that it lasts: for who has forgotten it while nothing used the link.
func (w *Watch) Lasts(r Reading) (Breach, bool) {
	l := w.links[key{r.Link, r.Size}]
	if l == nil || !l.broken || l.low < breachLeast || w.o.Mode != Enforce {
		return Breach{}, false
	}
	return l.breach, true
}

// Contract returns what is promised now, without thresholds; where there is one, what was
// promised before it.
func (w *Watch) Contract() (c Contract) {
	for _, l := range w.links {
		switch {
		case l.byHand && l.kept.Rate > 0:
			c.Promises = append(c.Promises, l.kept)
		case l.promise.Rate > 0 && !l.byHand:
			l.promise.Spread = l.noise.spread()
			l.promise.Samples = max(l.promise.Samples, int(l.noise.readings))
			c.Promises = append(c.Promises, l.promise)
		}
	}
	slices.SortFunc(c.Promises, Promise.compare)
	return c
}

// Beside returns the promises of other, and in their place those of Contract of which w has had readings.
func (w *Watch) Beside(other Contract) Contract {
	all := map[key]Promise{} // there may be very many
	for _, q := range other.Promises {
		all[key{q.Link, q.Size}] = q
	}
	for _, p := range w.Contract().Promises {
		k := key{p.Link, p.Size}
		if _, known := all[k]; !known || w.links[k].seen {
			all[k] = p
		}
	}
	return Contract{slices.SortedFunc(maps.Values(all), Promise.compare)}
}

// Notes returns what was to be said since it was last called. Of more than 256
// the oldest are lost.
func (w *Watch) Notes() []Note {
	all := w.notes
	w.notes = nil
	return all
}

func (w *Watch) note(at time.Time, kind NoteKind, k key, text string) {
	if len(w.notes) == notesMost {
		w.notes = slices.Delete(w.notes, 0, 1)
	}
	w.notes = append(w.notes, Note{at, kind, k.link, k.size, text})
}

// least is the rate that is tolerated: a part of what was promised, less for a link
// that strays from it, but no less than that part of what it delivered in the last seconds. A
// course of the machine's own is followed; a sudden fall is not.
func (w *Watch) least(l *watched) float64 {
	p := &l.promise
	if l.byHand {
		return p.Rate
	}
	stray := min(l.noise.slow-math.Log(p.Rate), 0)
	return p.Rate * w.o.Tolerate * math.Exp(max(stray, -wanderWide*p.Wander))
}

// others is what others have begun to send over the same end of a link, as a part of what it promises: then a
// smaller fall will do, for it has a cause.
func (w *Watch) others(l *watched, now time.Time) float64 {
	if l.byHand || l.promise.Rate == 0 {
		return 0
	}
	foreign := 0.
	if h := w.fresh(l.promise.Link.From, now); h != nil {
		foreign = h.out.more()
	}
	if h := w.fresh(l.promise.Link.To, now); h != nil {
		foreign = max(foreign, h.in.more())
	}
	return foreign / l.promise.Rate
}

// rate is what r says was delivered, as a logarithm; of nothing a very small one.
func (r Reading) rate() float64 {
	return math.Log(max(float64(r.Bytes), 1e-3) / r.Busy.Seconds())
}

// see keeps what is evidence later.
func (l *watched) see(r Reading) {
	if r.RTT > 0 {
		if l.rtt == 0 {
			l.rtt = r.RTT.Seconds()
		}
		l.rtt += (r.RTT.Seconds() - l.rtt) / 4
	}
	switch {
	case r.Bytes > 0:
		l.stalled = 0
		l.delivered = min(l.delivered+1, learnReadings)
	case r.Limited:
		l.stalled += r.Over
	}
	if r.Limited {
		rate := float64(r.Bytes) / r.Busy.Seconds()
		if l.recentAt.IsZero() {
			l.recent = rate
		}
		l.recent += (rate - l.recent) * min(float64(r.Busy)/float64(3*unit), 1)
		l.recentAt = r.At
	}
}

// judge takes a reading, and tells whether a breach began or ended. Of a link without a
// promise only hangs are known, once it has delivered. Others take that part of what was promised.
func (l *watched) judge(r Reading, least, others float64) bool {
	const far = 5 // logarithms, whatever the line is
	if l.broken && !l.byHand && l.promise.Rate > 0 {
		least = l.breach.Least
	}
	short := math.Log(least) - r.rate()
	if l.promise.Rate == 0 {
		short = -far
		if r.Bytes == 0 {
			short = far
		}
	}
	if short > 0 && !r.Limited { // the program's doing
		switch {
		case r.Bytes == 0 || l.broken && !l.hung:
			return false
		case !l.broken:
			l.fall.fade(r.Busy)
			l.share.fade(r.Busy)
			return false
		}
		short = -far // it is no hang any more
	}
	spread := l.noise.spread()
	d := l.fall.observe(r, short, spread)
	if l.promise.Rate > 0 && !l.byHand && r.Limited {
		// What they take is what it will have fallen by. While they are not seen there is half of the evidence at most.
		line, deep, most := foreignLeast*l.promise.Rate, depths[0], float64(breachAlarm)/2
		if others >= foreignHeld {
			deep, most = max(deep, min(-math.Log(max(1-others, 0)), depths[2])), 2*breachAlarm
		}
		if s := l.share.expected(r, math.Log(line)-r.rate(), deep, spread, most); others >= foreignPart && !l.broken && s.sum > d.sum {
			d, least = s, line
		}
	}
	if !l.broken {
		if d.sum < breachAlarm || l.delivered < learnReadings {
			return false
		}
		l.broken, l.hung = true, d.bytes == 0
		l.back.reset()
		l.breach = Breach{Since: d.since, Link: r.Link, Size: r.Size, Promised: l.promise.Rate, Least: least, ByHand: l.byHand}
		l.breaches++
		l.update(r, d)
		return true
	}
	if r.At.Sub(l.lowAt) > lowGap || short <= 0 {
		l.low = 0
	}
	if l.lowAt = r.At; short > 0 {
		l.low += r.Busy
	}
	l.breach.At = r.At
	l.hung = l.hung && (r.Bytes == 0 || !r.Limited)
	if d.sum > 0 && !d.since.After(l.breach.Since) {
		l.update(r, d)
	}
	// Well again is above the geometric mean of what is tolerated and what is promised;
	// of a threshold, a quarter above that.
	above := 0.
	switch {
	case l.byHand:
		above = math.Log(1.25)
	case l.promise.Rate > 0:
		above = math.Log(l.promise.Rate/least) / 2
	}
	b := l.back.observe(r, -short-above, spread)
	if b.sum < backAlarm {
		return false
	}
	l.broken = false
	l.fall.reset()
	l.share.reset()
	l.breach.At, l.breach.Ended = r.At, b.since
	l.breach.Seen = b.bytes / b.busy.Seconds()
	return true
}

func (l *watched) update(r Reading, d depth) {
	odds := math.Exp(d.sum) * prior
	l.breach.At, l.breach.Sure, l.breach.Seen = r.At, odds/(1+odds), d.bytes/d.busy.Seconds()
	l.breach.Evidence.Readings, l.breach.Evidence.Busy = d.readings, d.busy
}

func (w *Watch) evidence(l *watched, r Reading) Evidence {
	e := Evidence{
		Readings: l.breach.Evidence.Readings, Busy: l.breach.Evidence.Busy, Stalled: l.stalled,
		RTT: time.Duration(l.rtt * float64(time.Second)), UsualRTT: l.promise.Usual(), Doubt: l.promise.Doubt,
	}
	if o := w.links[key{r.Link.Back(), r.Size}]; o != nil && o.promise.Rate > 0 && !o.recentAt.IsZero() && r.At.Sub(o.recentAt) < hostFresh {
		e.Opposite = o.recent / o.promise.Rate
	}
	if h := w.fresh(r.Link.From, r.At); h != nil {
		e.From = h.HostState
	}
	if h := w.fresh(r.Link.To, r.At); h != nil {
		e.To = h.HostState
	}
	return e
}
