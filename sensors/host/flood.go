package host

import (
	"fmt"
	"maps"
	"time"
)

// A Flood judges whether a host's foreign traffic is far above what is usual. It
// looks at both directions: an attack that asks for large answers fills the way out. The zero
// value is ready. It asks no clock: time is in the readings.
//
// An interface is flooded when for 300 ms its foreign traffic is more than four times the
// usual and more than half of what the interface can carry. The first is learned in 2 s of
// readings and followed slowly; the second is the most that was ever seen there, unless it was set.
// An interface that is gone for a minute is forgotten.
type Flood struct {
	// Capacity is what interfaces carry one way, in bytes a second, where it is known.
	Capacity map[string]float64

	ways map[way]*course
}

type way struct {
	name string
	out  bool
}

// course is one direction of one interface.
type course struct {
	most    float64 // of all traffic
	usual   float64 // foreign
	learned time.Duration
	above   time.Duration
	seen    time.Time // last
}

// A Verdict is what a Flood says of a reading.
type Verdict struct {
	Flooded   bool
	Known     bool // what is usual is known of some interface
	Interface string
	Out       bool    // the flood leaves this host
	Foreign   float64 // bytes a second, of the worst direction of the worst interface
	Usual     float64
	Capacity  float64
}

// String is a sentence for people.
func (v Verdict) String() string {
	direction := "in"
	if v.Out {
		direction = "out"
	}
	switch {
	case !v.Known:
		return "what is usual is not known yet"
	case !v.Flooded:
		return "not flooded"
	}
	return fmt.Sprintf("%s is flooded: %.3g MB/s of others %s, usually %.3g, of %.3g that it carries",
		v.Interface, v.Foreign/1e6, direction, v.Usual/1e6, v.Capacity/1e6)
}

const (
	floodTimes  = 4
	floodPart   = 0.5
	floodAfter  = 300 * time.Millisecond
	floodLearn  = 2 * time.Second
	floodMemory = time.Minute
)

// Observe takes a reading. Without traffic in it there is no verdict.
func (f *Flood) Observe(r Reading) (worst Verdict) {
	if !r.Has(Traffic) {
		return Verdict{}
	}
	if f.ways == nil {
		f.ways = map[way]*course{}
	}
	for _, i := range r.Interfaces {
		for _, out := range []bool{false, true} {
			all, foreign := i.In, i.ForeignIn
			if out {
				all, foreign = i.Out, i.ForeignOut
			}
			v := f.observe(way{i.Name, out}, all, foreign, r)
			v.Interface, v.Out = i.Name, out
			known := worst.Known || v.Known
			if v.Flooded && !worst.Flooded || v.Flooded == worst.Flooded && v.Foreign > worst.Foreign {
				worst = v
			}
			worst.Known = known
		}
	}
	maps.DeleteFunc(f.ways, func(_ way, c *course) bool { return r.At.Sub(c.seen) > floodMemory })
	return worst
}

func (f *Flood) observe(w way, all, foreign float64, r Reading) Verdict {
	over, c := r.Over, f.ways[w]
	if c == nil {
		c = &course{}
		f.ways[w] = c
	}
	c.seen = r.At
	c.most = max(c.most, all)
	v := Verdict{Foreign: foreign, Usual: c.usual, Capacity: c.most, Known: c.learned >= floodLearn}
	if set := f.Capacity[w.name]; set > 0 {
		v.Capacity = set
	}
	if v.Known && foreign > floodTimes*c.usual && foreign > floodPart*v.Capacity {
		c.above += over
		v.Flooded = c.above >= floodAfter
		return v // not what is usual
	}
	c.above = 0
	c.learned += over
	part := max(float64(over)/float64(c.learned), float64(over)/float64(floodMemory))
	c.usual += min(part, 1) * (foreign - c.usual)
	return v
}
