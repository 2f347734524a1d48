package patient

import (
	"sync/atomic"
	"time"
)

// A Moment is a time that goroutines tell each other; the zero value is the zero time, long ago.
// It is of the monotonic clock: who sets the time of day must not make a host look alive, or dead.
type Moment struct{ atomic.Int64 } // ns since origin; 0: none

var origin = time.Now()

// Set makes m that time.
func (m *Moment) Set(t time.Time) { m.Store(int64(t.Sub(origin))) }

// Time is what m is.
func (m *Moment) Time() time.Time {
	ns := m.Load()
	if ns == 0 {
		return time.Time{}
	}
	return origin.Add(time.Duration(ns))
}

// Since is how long ago m was.
func (m *Moment) Since() time.Duration { return time.Since(m.Time()) }

// After tells whether m is later than t.
func (m *Moment) After(t time.Time) bool { return m.Time().After(t) }
