package engine

import (
	"syscall"
	"time"
)

// company is whom a caller gives its core to. The zero company is not known yet.
type company struct {
	given    uint32    // how often
	switches int64     // of the caller's thread, when they were last looked at
	since    time.Time // when it had as many
}

const (
	givenPerLook = 64                   // so often the core is given away between two looks
	aloneFor     = 2 * time.Millisecond // as long as the system may prefer this thread to another
)

// gone notes that the core was given away. It tells whether nobody takes it any more.
func (c *company) gone() bool {
	if c.given++; c.given%givenPerLook != 0 {
		return false
	}
	const ofThread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if syscall.Getrusage(ofThread, &u) != nil {
		return false
	}
	return c.goneBy(u.Nvcsw+u.Nivcsw, time.Now())
}

// goneBy is gone at a look, when the caller's thread had lost its core to others so often. A
// goroutine that has changed its thread looks like one that was not alone.
func (c *company) goneBy(switches int64, now time.Time) bool {
	if c.since.IsZero() || switches != c.switches {
		c.switches, c.since = switches, now
		return false
	}
	return now.Sub(c.since) > aloneFor
}
