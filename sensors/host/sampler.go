package host

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// What a Sampler reads. Counters only grow; that one begins anew is noticed.
type (
	// CPUCounter tells seconds of all processors, ever.
	CPUCounter interface {
		CPU() (CPUTimes, error)
	}
	// MemoryGauge tells how many bytes can be had.
	MemoryGauge interface {
		Memory() (free uint64, err error)
	}
	// TrafficCounter tells the bytes of each interface, ever, without loopbacks.
	TrafficCounter interface {
		Traffic() (map[string]Bytes, error)
	}
	// PressureCounter tells for how long some task has waited for a processor, ever.
	PressureCounter interface {
		Pressure() (time.Duration, error)
	}
	// ThrottleCounter tells for how long quotas have held this process up, ever.
	ThrottleCounter interface {
		Throttled() (time.Duration, error)
	}
)

// CPUTimes are seconds of all processors.
type CPUTimes struct{ Busy, Steal, Idle float64 }

// Bytes have come in and gone out.
type Bytes struct{ In, Out uint64 }

// Options say what is read. The zero value reads this host.
type Options struct {
	CPU      CPUCounter // nil: by gopsutil
	Memory   MemoryGauge
	Traffic  TrafficCounter
	Pressure PressureCounter // nil: /proc/pressure/cpu
	Throttle ThrottleCounter // nil: cpu.stat of this process's control groups, version 1 or 2
}

func (o Options) withDefaults() Options {
	if o.CPU == nil {
		o.CPU = machine{}
	}
	if o.Memory == nil {
		o.Memory = machine{}
	}
	if o.Traffic == nil {
		o.Traffic = machine{}
	}
	if o.Pressure == nil {
		o.Pressure = procPressure{root}
	}
	if o.Throttle == nil {
		o.Throttle = &controlGroups{root: root}
	}
	return o
}

// A Sampler takes readings when it is asked. It is for one goroutine.
type Sampler struct {
	o      Options
	last   counters
	memory gauge
}

// counters are what deltas are made of.
type counters struct {
	at       time.Time
	cpu      CPUTimes
	traffic  map[string]Bytes
	waited   time.Duration
	throttle time.Duration
	missing  map[Source]error
}

// NewSampler reads nothing yet.
func NewSampler(o Options) *Sampler { return &Sampler{o: o.withDefaults()} }

// A gauge is what a MemoryGauge told: memory changes slowly.
type gauge struct {
	at   time.Time
	free uint64
	err  error
}

// slowEvery is how old a gauge is at most, but for what a reading is late.
const slowEvery = time.Second

var errFirst = errors.New("it was missing in the reading before")

// Sample reads the host. A source that cannot be read is in Missing. The error is for
// time that did not pass, and for a host of which nothing can be read.
func (s *Sampler) Sample(now time.Time) (Reading, error) {
	before := s.last
	if !before.at.IsZero() && !now.After(before.at) {
		return Reading{}, fmt.Errorf("read the host: %v is not after the reading before, at %v", now, before.at)
	}
	r := Reading{Missing: map[Source]error{}}
	next := counters{at: now, missing: r.Missing}
	miss := func(name Source, err error) {
		if err != nil {
			r.Missing[name] = err
		}
	}
	var err error
	next.traffic, err = s.o.Traffic.Traffic()
	miss(Traffic, err)
	next.cpu, err = s.o.CPU.CPU()
	miss(CPU, err)
	next.waited, err = s.o.Pressure.Pressure()
	miss(Pressure, err)
	next.throttle, err = s.o.Throttle.Throttled()
	miss(Throttle, err)
	if s.memory.at.IsZero() || now.Sub(s.memory.at) >= slowEvery {
		s.memory.at = now
		s.memory.free, s.memory.err = s.o.Memory.Memory()
	}
	r.MemoryFree = s.memory.free
	miss(Memory, s.memory.err)
	if len(r.Missing) == 5 {
		return Reading{}, fmt.Errorf("read the host: nothing can be read: %w", r.Missing[CPU])
	}
	s.last = next
	if before.at.IsZero() {
		return r, nil
	}
	r.Over = now.Sub(before.at)
	// What is known now but was not before has no delta yet. That goes into this reading
	// only: the next one has both.
	gone := map[Source]error{}
	for name, err := range r.Missing {
		gone[name] = err
	}
	for name := range before.missing {
		if gone[name] == nil && name != Memory {
			gone[name] = errFirst
		}
	}
	r.Missing = gone
	r.take(before, next)
	return r, nil
}

// take fills in what is a difference of counters.
func (r *Reading) take(before, next counters) {
	if r.Has(CPU) {
		busy, steal, idle := next.cpu.Busy-before.cpu.Busy, next.cpu.Steal-before.cpu.Steal, next.cpu.Idle-before.cpu.Idle
		if all := busy + steal + idle; all > 0 {
			r.CPU, r.Steal = share(busy/all), share(steal/all)
		}
	}
	if r.Has(Pressure) {
		r.Pressure = share(float64(next.waited-before.waited) / float64(r.Over))
	}
	if r.Has(Throttle) {
		r.Throttled = share(float64(next.throttle-before.throttle) / float64(r.Over))
	}
	if r.Has(Traffic) {
		for name, now := range next.traffic {
			if old, ok := before.traffic[name]; ok { // one that is new has no difference
				r.In += grown(now.In, old.In) / r.Over.Seconds()
				r.Out += grown(now.Out, old.Out) / r.Over.Seconds()
			}
		}
	}
}

func grown(now, old uint64) float64 {
	if now < old { // begun anew
		return 0
	}
	return float64(now - old)
}

func share(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return max(0, min(x, 1))
}
