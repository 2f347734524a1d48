package leader

import (
	"slices"
	"time"
)

// A window counts what happened within the last minute.
type window struct{ times []time.Time }

func (w *window) count(now time.Time) int {
	w.times = slices.DeleteFunc(w.times, func(t time.Time) bool { return now.Sub(t) >= time.Minute })
	return len(w.times)
}

func (w *window) add(now time.Time) { w.times = append(w.times, now) }

// A quarantine keeps a host that was blamed out of use. Each blame doubles it;
// as long without blame as the longest quarantine makes it begin anew.
type quarantine struct {
	until   time.Time
	strikes int
	why     string
}

func (q *quarantine) holds(now time.Time) bool { return now.Before(q.until) }

// blame begins a quarantine, or does nothing while one holds. It says whether it began.
func (q *quarantine) blame(now time.Time, why string) bool {
	if q.holds(now) {
		return false
	}
	if q.strikes > 0 && now.Sub(q.until) >= quarantineMost {
		q.strikes = 0
	}
	length := quarantineMost
	if q.strikes < 8 { // or it would overflow
		length = min(quarantineMost, quarantineFirst<<q.strikes)
	}
	q.strikes++
	q.until, q.why = now.Add(length), why
	return true
}
