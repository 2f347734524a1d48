// Package host reads how a host does: its processors, memory, load and networks,
// and how much of its traffic is not this job's.
package host

import (
	"time"

	"github.com/mpiv/mpiv/sensors"
)

// A Source is what a part of a reading comes from.
type Source string

const (
	CPU      Source = "cpu"
	Memory   Source = "memory"
	Load     Source = "load"
	Traffic  Source = "traffic"
	Pressure Source = "pressure"
	Throttle Source = "throttle"
)

// A Reading is how a host did since the reading before. Of a source that is missing
// everything is 0. Shares are 0 to 1.
type Reading struct {
	At   time.Time
	Over time.Duration // since the reading before; 0 in the first, which knows no deltas

	CPU   float64 // share of all processors that was busy, without steal
	Steal float64 // share that the hypervisor gave to others

	// These are read once a second.
	MemoryUsed  float64 // share
	MemoryBytes uint64  // in all
	Load        float64 // tasks that run or wait, over the last minute

	Interfaces []Interface // by name, without loopbacks

	// For how large a share of Over some task waited for a processor, for storage,
	// for memory.
	PressureCPU, PressureIO, PressureMemory float64

	Throttled float64 // share of Over in which a quota held this process's group up

	Missing map[Source]error // what could not be read, and why
}

// An Interface is the traffic of one network interface in bytes a second.
type Interface struct {
	Name                  string
	In, Out               float64
	ForeignIn, ForeignOut float64 // not this job's
}

// Has tells whether a source was read, and its deltas are known.
func (r Reading) Has(s Source) bool {
	return r.Missing[s] == nil && (r.Over > 0 || s == Memory || s == Load)
}

// State is what contracts take as evidence. flooded is a [Flood]'s word.
func (r Reading) State(flooded bool) sensors.HostState {
	h := sensors.HostState{At: r.At, CPU: -1, Steal: -1, Throttled: -1, Pressure: -1, Flooded: flooded}
	if r.Has(CPU) {
		h.CPU, h.Steal = r.CPU, r.Steal
	}
	if r.Has(Throttle) {
		h.Throttled = r.Throttled
	}
	if r.Has(Pressure) {
		h.Pressure = r.PressureCPU
	}
	for _, i := range r.Interfaces {
		h.ForeignIn += i.ForeignIn
		h.ForeignOut += i.ForeignOut
	}
	return h
}
