// Package path makes readings of what passes over one connection, from looks at how its path does.
package path

import (
	"time"

	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/transport"
)

// Look is how often a path is to be looked at, to know for how long it had something to
// carry.
const Look = sensors.SlotTime

// The path is what limits, though the program may have no more to send, when for hangs and two round trips
// nothing was acknowledged of what is on its way, or some of it was not.
const hangs = 100 * time.Millisecond

// A Course is what a path does between two readings. The zero value begins with the first look,
// and counts from there. It is for one goroutine.
type Course struct {
	begun          bool
	delivered      uint64
	bytes, pending uint64
	busy, limited  time.Duration
	standing       time.Duration // of busy: limited, or a queue stood on the way
	slots          sensors.Slots
	rtt, least     time.Duration // the last round trip, and the shortest: 0 is not known
}

// A Reading is what a path did in an interval; its fields are as those of sensors.Reading.
type Reading struct {
	Over     time.Duration
	Bytes    uint64
	Busy     time.Duration
	Slots    sensors.Slots // in which it was busy, by the host's clock
	Pending  uint64
	Limited  bool `json:",omitempty"`
	Standing bool `json:",omitempty"`
	RTT      time.Duration
}

// See takes how the path is now, and was since the last look, which passed before.
func (c *Course) See(info transport.PathInfo, now time.Time, passed time.Duration) {
	if c.begun && info.Delivered >= c.delivered {
		c.bytes += info.Delivered - c.delivered
	} else { // the connection is another
		c.least = 0
	}
	c.begun, c.delivered = true, info.Delivered
	c.pending, c.rtt = uint64(info.Unacked), info.RTT
	if c.least == 0 || 0 < c.rtt && c.rtt < c.least {
		c.least = c.rtt
	}
	if info.Unacked > 0 { // a program that does not read is no fault of the path
		c.busy += passed
		c.slots.Mark(now.Add(-max(passed-Look, 0)), now)
		limits := info.Queued || max(info.Stalled, info.Oldest) >= hangs+2*c.least
		if limits {
			c.limited += passed
		}
		if limits || info.Standing {
			c.standing += passed
		}
	}
}

// Read is what was seen since the last time, over ago; false if there is nothing to tell.
func (c *Course) Read(over time.Duration) (Reading, bool) {
	r := Reading{Over: over, Bytes: c.bytes, Busy: min(c.busy, over), Slots: c.slots, Pending: c.pending, Limited: 2*c.limited > c.busy, Standing: 2*c.standing > c.busy, RTT: c.rtt}
	c.bytes, c.busy, c.limited, c.standing, c.slots = 0, 0, 0, 0, sensors.Slots{}
	return r, r.Bytes > 0 || r.Pending > 0
}
