// Package host reads how a host does: its processors, memory and networks, and whether it
// is flooded.
package host

import "time"

// A Source is what a part of a reading comes from.
type Source string

const (
	CPU      Source = "cpu"
	Memory   Source = "memory"
	Traffic  Source = "traffic"
	Pressure Source = "pressure"
	Throttle Source = "throttle"
)

// A Reading is how a host did since the reading before. Of a source that is missing
// everything is 0. Shares are 0 to 1.
type Reading struct {
	Over time.Duration // since the reading before; 0 in the first, which knows no deltas

	CPU   float64 // share of all processors that was busy, without steal
	Steal float64 // share that the hypervisor gave to others

	MemoryFree uint64 // bytes that can be had; read once a second

	In, Out float64 // bytes a second of all interfaces but loopbacks

	Pressure  float64 // share of Over in which some task waited for a processor
	Throttled float64 // share of Over in which a quota held this process's group up

	Missing map[Source]error // what could not be read, and why
}

// Has tells whether a source was read, and its deltas are known.
func (r Reading) Has(s Source) bool {
	return r.Missing[s] == nil && (r.Over > 0 || s == Memory)
}
