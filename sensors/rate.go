// Package sensors is passive readings of links: what traffic that flows anyway
// tells of the path it takes, what that path is known to deliver, and when it
// delivers less. Nothing here sends, and time is told.
package sensors

import "time"

// A Sample is how much a path had delivered by a time.
type Sample struct {
	At        time.Time
	Delivered uint64 // bytes, ever
	Limited   bool   // since the sample before, the path was what limited the sender, all the time
}

// A Rate estimates how many bytes a second a path can deliver: the most that it has
// delivered lately. While the program has less to send than the path takes, a sample
// tells only that the path can do as much, so it never lowers the estimate.
//
// After Cardwell, Cheng, Gunn, Yeganeh and Jacobson, "BBR: Congestion-Based
// Congestion Control" (ACM Queue 2016), the bottleneck bandwidth.
type Rate struct {
	begun   bool
	last    Sample
	limited bool // all of the interval that grows since last
	now     bool // the interval before was
	slots   [rateSlots]slot
	newest  int
}

type slot struct {
	at   time.Time
	rate float64
}

// An estimate looks back on rateSlots samples of at least rateInterval, and on
// rateWindow of time. What is older stays until a sample replaces it.
const (
	rateInterval = 20 * time.Millisecond
	rateWindow   = time.Second
	rateSlots    = 64
)

// Observe takes a sample. The first, and one of fewer bytes than before, begins
// anew what is delivered, and keeps the estimate.
func (r *Rate) Observe(s Sample) {
	if !r.begun || s.Delivered < r.last.Delivered {
		r.begun, r.last, r.limited, r.now = true, s, true, false
		return
	}
	r.limited = r.limited && s.Limited
	passed := s.At.Sub(r.last.At)
	if passed < rateInterval {
		return
	}
	rate := float64(s.Delivered-r.last.Delivered) / passed.Seconds()
	if r.limited || rate > r.Value() {
		r.newest = (r.newest + 1) % rateSlots
		r.slots[r.newest] = slot{s.At, rate}
	}
	r.now = r.limited
	r.last, r.limited = s, true
}

// Value is bytes a second; 0 while nothing is known.
func (r *Rate) Value() (most float64) {
	newest := r.slots[r.newest].at
	for i := range r.slots {
		if x := &r.slots[i]; x.rate > most && newest.Sub(x.at) < rateWindow {
			most = x.rate
		}
	}
	return most
}

// Limited tells whether the path was what limited the sender in the last whole
// interval.
func (r *Rate) Limited() bool { return r.now }
