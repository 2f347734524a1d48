package sensors

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// A Standing is how a link does for messages of one size class, beside what it promises.
// The promise's Rate is 0 while it is learned.
type Standing struct {
	Promise
	ByHand   bool      `json:"by_hand,omitempty"`                    // the promise is a threshold
	Learning int       `json:"learning,omitempty"`                   // readings so far, of twenty or more
	Least    float64   `json:"tolerated_bytes_per_second,omitempty"` // a breach is less than this
	Seen     float64   `json:"seen_bytes_per_second,omitempty"`      // lately, while the path was the limit
	SeenAt   time.Time `json:"seen_at,omitzero"`                     // zero: never
	Breaches int       `json:"breaches,omitempty"`                   // so far, with the one that lasts

	Broken time.Time `json:"broken_since,omitzero"` // zero: it is not
	Breach string    `json:"breach,omitempty"`      // that one, in a sentence for people
}

// Standings returns how all links do that have had readings, or promise something, by
// link and size.
func (w *Watch) Standings(now time.Time) (all []Standing) {
	for _, l := range w.links {
		s := Standing{Promise: l.promise, ByHand: l.byHand, Learning: len(l.learning), Breaches: l.breaches}
		if !l.byHand && l.promise.Rate > 0 {
			s.Spread = l.noise.spread()
		}
		if l.promise.Rate > 0 {
			s.Least = w.least(l)
			if w.others(l, now) >= foreignPart {
				s.Least = max(s.Least, foreignLeast*l.promise.Rate)
			}
		}
		if !l.recentAt.IsZero() {
			s.Seen, s.SeenAt = l.recent, l.recentAt.UTC().Round(0)
		}
		if l.broken {
			s.Broken, s.Breach = l.breach.Since.UTC().Round(0), l.breach.String()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Standing) int { return a.compare(b.Promise) })
	return all
}

// Sure says for people how sure a promise is: "±8 %, 240 readings". It is empty if that
// is not known, as of a threshold.
func (p Promise) Sure() string {
	if p.Samples == 0 || p.Spread == 0 {
		return ""
	}
	return fmt.Sprintf("±%.0f %%, %d readings", 100*math.Expm1(p.Spread), p.Samples)
}
