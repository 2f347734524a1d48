package agent

import (
	"sync/atomic"
	"time"
)

// A moment is a time that goroutines tell each other; the zero moment is the zero time, long ago.
// It is of the monotonic clock: who sets the time of day must not make a host look alive, or dead.
type moment struct{ atomic.Int64 } // ns since origin; 0: none

var origin = time.Now()

func (m *moment) set(t time.Time) { m.Store(int64(t.Sub(origin))) }

func (m *moment) time() time.Time {
	ns := m.Load()
	if ns == 0 {
		return time.Time{}
	}
	return origin.Add(time.Duration(ns))
}

func (m *moment) since() time.Duration   { return time.Since(m.time()) }
func (m *moment) after(t time.Time) bool { return m.time().After(t) }
