package host

import "time"

// A Flood judges whether a host's foreign traffic is far above what is usual. It
// looks at both directions: an attack that asks for large answers fills the way out. The zero
// value is ready. It asks no clock: time is in what it is told.
//
// A host is flooded when for 300 ms its foreign traffic one way is more than four times the
// usual and more than half of what it can carry. The first is learned in 2 s of
// readings and followed slowly; the second is the most that was ever seen.
type Flood struct{ in, out way }

// A way is one direction.
type way struct {
	most    float64 // of all traffic
	usual   float64 // foreign
	learned time.Duration
	above   time.Duration
}

const (
	floodTimes  = 4
	floodPart   = 0.5
	floodAfter  = 300 * time.Millisecond
	floodLearn  = 2 * time.Second
	floodMemory = time.Minute
)

// Observe takes the rates of a reading in bytes a second, of all traffic and of what is not
// the job's, and tells whether the host is flooded.
func (f *Flood) Observe(over time.Duration, in, out, foreignIn, foreignOut float64) bool {
	into, outOf := f.in.observe(over, in, foreignIn), f.out.observe(over, out, foreignOut)
	return into || outOf
}

func (w *way) observe(over time.Duration, all, foreign float64) (flooded bool) {
	w.most = max(w.most, all)
	if w.learned >= floodLearn && foreign > floodTimes*w.usual && foreign > floodPart*w.most {
		w.above += over
		return w.above >= floodAfter // and is not what is usual
	}
	w.above = 0
	w.learned += over
	part := max(float64(over)/float64(w.learned), float64(over)/float64(floodMemory))
	w.usual += min(part, 1) * (foreign - w.usual)
	return false
}
