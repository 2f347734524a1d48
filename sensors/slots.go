package sensors

import (
	"math/bits"
	"time"
)

// SlotTime is how long a slot is.
const SlotTime = 20 * time.Millisecond

// Slots are those of some 64 slots of time in a row in which something was outstanding: the
// processes of a host, which have one clock, use a link for so long together as the union
// of theirs says. The zero value has none.
type Slots struct {
	First int64  `json:"first"` // the number of the first, counted from the Unix epoch
	Busy  uint64 `json:"busy"`  // a bit for each, the first the lowest
}

// Mark adds the slots from one time to another. What is more than 64 slots after the first
// is left out.
func (s *Slots) Mark(from, to time.Time) {
	for at := from.UnixNano() / int64(SlotTime); at <= to.UnixNano()/int64(SlotTime); at++ {
		if s.Busy == 0 {
			s.First = at
		}
		if d := at - s.First; d >= 0 && d < 64 {
			s.Busy |= 1 << d
		}
	}
}

// Add makes s the union of both, as far as that is within 64 slots of the earlier first.
func (s *Slots) Add(o Slots) {
	switch {
	case o.Busy == 0:
		return
	case s.Busy == 0:
		*s = o
		return
	case o.First < s.First:
		*s, o = o, *s
	}
	if d := o.First - s.First; d >= 0 && d < 64 { // below zero: more than a number holds
		s.Busy |= o.Busy << d
	}
}

// Time is how long all the slots are together.
func (s *Slots) Time() time.Duration { return time.Duration(bits.OnesCount64(s.Busy)) * SlotTime }
