package host

import "time"

// A Quota tells for what share of the time one has held this process's control group up. It is cheap
// enough for a process that gets a hundredth of a core; a Sampler's reading is not. The zero value has
// read nothing yet.
type Quota struct {
	groups ThrottleCounter // nil: this process's
	at     time.Time
	held   time.Duration
	err    error // of reading it
}

// Held is the share since it was last asked, 0 to 1: 0 the first time, and where nothing tells.
func (q *Quota) Held(now time.Time) float64 {
	if q.groups == nil {
		q.groups = &controlGroups{root: root}
	}
	var held time.Duration
	if held, q.err = q.groups.Throttled(); q.err != nil {
		q.at = time.Time{}
		return 0
	}
	before, passed := q.held, now.Sub(q.at)
	known := !q.at.IsZero() && held >= before
	q.at, q.held = now, held
	if !known || passed <= 0 {
		return 0
	}
	return min(1, float64(held-before)/float64(passed))
}

// Throttled is what Held last read, for a Sampler that need not read it again.
func (q *Quota) Throttled() (time.Duration, error) { return q.held, q.err }
