package sensors

import (
	"math"
	"time"
)

// unit is the time that the spread of a rate is said for: the weight of a reading
// is the time it was busy, in units.
const unit = 100 * time.Millisecond

// A fall accumulates evidence that a quantity with Gaussian noise has fallen below a
// line and stays there: Page's CUSUM of the logarithm of the likelihood ratio, one sum
// for each of three depths. What one reading can add or take is bounded by the time it
// stands for, so that a fall must last for a while, and a moment of something else
// neither makes it nor hides it.
//
// After Page, "Continuous Inspection Schemes" (Biometrika 1954), and Lorden,
// "Procedures for Reacting to a Change in Distribution" (Annals of Mathematical
// Statistics 1971): were readings independent and the spread exact, sums that begin on
// the line itself would reach a in no less than e^a readings on average.
type fall struct {
	alarm  float64       // the sum that counts
	least  time.Duration // busy time that it takes at least
	depths [len(depths)]depth
}

// How far below the line, in natural logarithms, each sum expects the fall to be.
var depths = [3]float64{0.15, 0.3, 0.6}

type depth struct {
	sum      float64
	since    time.Time // when the sum last left zero; what follows is from then on
	readings int
	busy     time.Duration
	bytes    float64
}

// observe takes a reading that is short by so much, in natural logarithms, of the line.
// Negative: it is above. It returns the sum that says most.
func (f *fall) observe(r Reading, short, spread float64) depth {
	best := 0
	for i := range f.depths {
		f.add(i, r, depths[i]*(short-depths[i]/2), spread)
		if f.depths[i].sum > f.depths[best].sum {
			best = i
		}
	}
	return f.depths[best]
}

// expected is observe of a fall whose depth is known, to as much below the line as it was above: there is one sum,
// which is no more than most afterwards.
func (f *fall) expected(r Reading, short, deep, spread, most float64) depth {
	f.add(0, r, deep*short, spread)
	f.depths[0].sum = min(f.depths[0].sum, most)
	return f.depths[0]
}

// add adds to a sum what a reading of weight and spread 1 would.
func (f *fall) add(i int, r Reading, gain, spread float64) {
	most := f.alarm * float64(r.Busy) / float64(f.least)
	gain *= float64(r.Busy) / float64(unit) / (spread * spread)
	gain = max(-most, min(gain, most))
	d := &f.depths[i]
	if d.sum == 0 {
		if gain <= 0 {
			return
		}
		*d = depth{since: r.At.Add(-r.Over)}
	}
	if d.sum = min(d.sum+gain, 2*f.alarm); d.sum <= 0 {
		*d = depth{}
		return
	}
	d.readings++
	d.busy += r.Busy
	d.bytes += float64(r.Bytes)
}

// most is the sum that says most.
func (f *fall) most() float64 {
	return max(f.depths[0].sum, f.depths[1].sum, f.depths[2].sum)
}

// fade takes evidence away while messages get through and tell nothing else: four times
// as slowly as readings of a path that is well.
func (f *fall) fade(busy time.Duration) {
	for i := range f.depths {
		d := &f.depths[i]
		if d.sum -= f.alarm * float64(busy) / float64(4*f.least); d.sum <= 0 {
			*d = depth{}
		}
	}
}

func (f *fall) reset() { f.depths = [len(depths)]depth{} }

// A noise estimates how a rate's logarithm scatters about its own slow course.
type noise struct {
	readings float64 // up to noiseMemory
	level    float64 // lately
	slow     float64 // the same over a longer time
	variance float64 // of a reading of weight 1
	product  float64 // of neighbours
	last     float64
}

const (
	noiseMemory = 600  // units
	levelMemory = 10   // units
	slowMemory  = 100  // units
	noiseFirst  = 0.25 // the spread that is assumed at first
	noisePrior  = 20   // and how many readings that is worth
	noiseLeast  = 0.1  // what no link is thought to fall short of
	noiseMost   = 0.8  // or exceed
	noiseClip   = 0.5  // what a stall counts for at most, or noiseClips times the scatter
	noiseClips  = 2.5
	noiseAlike  = 0.6 // the most that neighbours are thought to have in common
)

// observe takes the logarithm of a rate, and the weight of its reading.
func (n *noise) observe(x, weight float64) {
	if n.readings == 0 {
		n.level, n.slow = x, x
	}
	clip := max(noiseClip, noiseClips*n.scatter())
	off := max(-clip, min(x-n.level, clip))
	scale := min(weight, 10) // the mean of more scatters less
	n.readings = min(n.readings+1, noiseMemory)
	share := max(1/n.readings, min(weight/noiseMemory, 1))
	n.variance += share * (off*off*scale - n.variance)
	n.product += share * (off*n.last*scale - n.product)
	n.last = off
	n.level += max(1/n.readings, min(weight/levelMemory, 1)) * off
	n.slow += max(1/n.readings, min(weight/slowMemory, 1)) * max(-clip, min(x-n.slow, clip))
}

// scatter is the standard deviation of a reading.
func (n *noise) scatter() float64 { return math.Sqrt(n.variance) }

// noiseOf is a noise that has the spread of p, as learned from as many readings.
func noiseOf(p Promise) noise {
	n := noise{readings: min(float64(p.Samples), noiseMemory), level: math.Log(p.Rate), slow: math.Log(p.Rate)}
	if n.readings > 0 {
		n.variance = max(0, (p.Spread*p.Spread*(n.readings+noisePrior)-noiseFirst*noiseFirst*noisePrior)/n.readings)
	}
	return n
}

// spread is the standard deviation that the sum of many readings behaves as if
// each had on its own.
func (n *noise) spread() float64 {
	v := noiseFirst * noiseFirst
	if n.readings > 0 {
		alike := 0.
		if n.variance > 0 {
			alike = max(-noiseAlike, min(n.product/n.variance, noiseAlike))
		}
		seen := n.variance * (1 + alike) / (1 - alike)
		v = (seen*n.readings + v*noisePrior) / (n.readings + noisePrior)
	}
	return max(noiseLeast, min(math.Sqrt(v), noiseMost))
}
