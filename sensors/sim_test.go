package sensors

import (
	"math"
	"math/rand/v2"
	"time"
)

// A weather is how a link's rate varies while all is well. Machines are shared,
// collectors of garbage stop programs, schedulers forget them.
type weather struct {
	fast       float64 // standard deviation of the logarithm, from one 10 ms to the next
	memory     time.Duration
	wobble     float64 // of a slow course, within ×½ and ×2
	neighbours bool    // who come for 10 to 60 s and take up to half
	pauses     bool    // of up to 20 ms each second, up to 250 ms three times a minute, up to 400 ms each ten minutes
}

var (
	calm   = weather{fast: 0.08, memory: 30 * time.Millisecond}
	usual  = weather{fast: 0.2, memory: 40 * time.Millisecond, wobble: 0.25, pauses: true}
	rough  = weather{fast: 0.3, memory: 40 * time.Millisecond, wobble: 0.35, neighbours: true, pauses: true}
	storm  = weather{fast: 0.6, memory: 80 * time.Millisecond, wobble: 0.25, pauses: true}
	skies  = map[string]weather{"calm": calm, "usual": usual, "rough": rough, "storm": storm}
	origin = time.Unix(1_700_000_000, 0)
)

const tick = 10 * time.Millisecond

// A world is one link and the program that uses it, in slots of 10 ms.
type world struct {
	rnd     *rand.Rand
	weather weather
	every   time.Duration // a reading
	now     time.Duration
	held    bool // the path to rate bytes a second, whatever else varies
	rate    float64
	program func(now time.Duration) (size int, duty float64) // what it sends; nil: all the time, large

	lately        float64 // bytes in the last 3 s, fading
	fast, slow    float64
	neighbour     float64 // logarithm of what one leaves
	neighbourEnds time.Duration
	pausedTill    time.Duration
	open          [Large + 1]Reading
	limited       [Large + 1]time.Duration
}

const (
	capacity = 12.5e6
	wireRTT  = 200 * time.Microsecond
)

func newWorld(seed uint64, sky weather, every time.Duration) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 14)), weather: sky, every: every}
	w.slow = w.rnd.NormFloat64() * sky.wobble
	return w
}

// factor is what the weather leaves of the path in the next tick.
func (w *world) factor() float64 {
	k := w.weather
	keep := math.Exp(-float64(tick) / float64(k.memory))
	w.fast = keep*w.fast + math.Sqrt(1-keep*keep)*k.fast*w.rnd.NormFloat64()
	const slowKeep = 1 - float64(tick)/float64(30*time.Second)
	w.slow = slowKeep*w.slow + math.Sqrt(1-slowKeep*slowKeep)*k.wobble*w.rnd.NormFloat64()
	if k.neighbours && w.now >= w.neighbourEnds {
		w.neighbourEnds = w.now + 10*time.Second + time.Duration(w.rnd.Float64()*50e9)
		w.neighbour = 0
		if w.rnd.IntN(2) == 0 {
			w.neighbour = math.Log(0.5 + 0.5*w.rnd.Float64())
		}
	}
	if k.pauses {
		chance := float64(tick) / float64(time.Second)
		pause := time.Duration(0)
		switch u := w.rnd.Float64(); {
		case u < chance/600:
			pause = time.Duration((0.3 + 0.1*w.rnd.Float64()) * 1e9)
		case u < chance/20:
			pause = time.Duration((0.05 + 0.2*w.rnd.Float64()) * 1e9)
		case u < chance:
			pause = time.Duration(0.02 * w.rnd.Float64() * 1e9)
		}
		w.pausedTill = max(w.pausedTill, w.now+pause)
	}
	course := max(-math.Ln2, min(w.slow+w.neighbour, math.Ln2))
	running := 1 - max(0, min(float64(w.pausedTill-w.now)/float64(tick), 1))
	return running * math.Exp(w.fast+course)
}

// run lets d pass, and gives each reading to observe until that returns false.
func (w *world) run(d time.Duration, observe func(Reading) bool) {
	for end := w.now + d; w.now < end; {
		w.step()
		w.now += tick
		if w.now%w.every != 0 {
			continue
		}
		for i := range w.open {
			r := w.open[i]
			r.At, r.Over, r.Link, r.Size, r.RTT = origin.Add(w.now), w.every, Link{"X", "Y", "lan"}, SizeClass(i), wireRTT
			r.Limited = r.Busy > 0 && w.limited[i] >= r.Busy*3/4
			w.open[i], w.limited[i] = Reading{}, 0
			if !observe(r) {
				return
			}
		}
	}
}

// step sends messages one by one, each of which takes its bytes' time and a round trip.
func (w *world) step() {
	size, duty := 1<<20, 1.
	if w.program != nil {
		size, duty = w.program(w.now)
	}
	rate := capacity * w.factor()
	if w.held {
		rate = w.rate * math.Exp(w.fast)
		if w.pausedTill > w.now {
			rate = 0
		}
	}
	for i := range w.open {
		w.open[i].Pending = 0
	}
	if duty == 0 {
		return
	}
	i := ClassOf(size)
	r := &w.open[i]
	busy := time.Duration(duty * float64(tick))
	r.Busy += busy
	carry := float64(size) / max(rate, 1e-9) // seconds
	if carry >= 8*wireRTT.Seconds() {
		w.limited[i] += busy
	}
	r.Bytes += uint64(busy.Seconds() * float64(size) / (carry + wireRTT.Seconds()))
	w.lately += busy.Seconds()*rate - w.lately*float64(tick)/3e9
	r.Pending = uint64(size)
}
