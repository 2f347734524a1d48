package host

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// What a Sampler reads. Counters only grow; that one begins anew is noticed.
type (
	// CPUCounter tells seconds of all processors, ever.
	CPUCounter interface {
		CPU() (CPUTimes, error)
	}
	// MemoryGauge tells what is used of how many bytes.
	MemoryGauge interface {
		Memory() (used, total uint64, err error)
	}
	// LoadGauge tells the load average of a minute.
	LoadGauge interface {
		Load() (float64, error)
	}
	// TrafficCounter tells the bytes of each interface, ever, without loopbacks.
	TrafficCounter interface {
		Traffic() (map[string]Bytes, error)
	}
	// PressureCounter tells for how long tasks have waited, ever.
	PressureCounter interface {
		Pressure() (Waited, error)
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

// Waited is for how long some task has waited for each resource.
type Waited struct{ CPU, IO, Memory time.Duration }

// Options say what is read. The zero value reads this host.
type Options struct {
	CPU      CPUCounter // nil: by gopsutil
	Memory   MemoryGauge
	Load     LoadGauge
	Traffic  TrafficCounter
	Pressure PressureCounter // nil: /proc/pressure
	Throttle ThrottleCounter // nil: cpu.stat of this process's control groups, version 1 or 2

	// Own returns the bytes that this job has moved, ever, by interface; those whose
	// interface is not known are under "". Nil: none.
	Own func() map[string]Bytes

	// Overhead is how many bytes an interface counts for each of the job's, for
	// headers and repetitions. Zero means 1.08; acknowledgements are thought to be 3 % of what
	// comes the other way.
	Overhead float64
}

func (o Options) withDefaults() Options {
	if o.CPU == nil {
		o.CPU = machine{}
	}
	if o.Memory == nil {
		o.Memory = machine{}
	}
	if o.Load == nil {
		o.Load = machine{}
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
	if o.Own == nil {
		o.Own = func() map[string]Bytes { return nil }
	}
	if o.Overhead == 0 {
		o.Overhead = 1.08
	}
	return o
}

// A Sampler takes readings when it is asked. It is for one goroutine.
type Sampler struct {
	o    Options
	last counters
	slow gauges
}

// counters are what deltas are made of.
type counters struct {
	at       time.Time
	cpu      CPUTimes
	traffic  map[string]Bytes
	own      map[string]Bytes
	waited   Waited
	throttle time.Duration
	missing  map[Source]error
}

// NewSampler reads nothing yet.
func NewSampler(o Options) *Sampler { return &Sampler{o: o.withDefaults()} }

// gauges are what changes slowly.
type gauges struct {
	at        time.Time
	load      float64
	used      float64 // part of bytes
	bytes     uint64
	loadErr   error
	memoryErr error
}

// slowEvery is how old gauges are at most, but for what a reading is late.
const slowEvery = time.Second

func (s *Sampler) readSlow(now time.Time) gauges {
	g := gauges{at: now}
	g.load, g.loadErr = s.o.Load.Load()
	used, total, err := s.o.Memory.Memory()
	if g.memoryErr = err; err == nil && total > 0 {
		g.used, g.bytes = float64(used)/float64(total), total
	}
	return g
}

var errFirst = errors.New("it was missing in the reading before")

// Sample reads the host. A source that cannot be read is in Missing. The error is for
// time that did not pass, and for a host of which nothing can be read.
func (s *Sampler) Sample(now time.Time) (Reading, error) {
	before := s.last
	if !before.at.IsZero() && !now.After(before.at) {
		return Reading{}, fmt.Errorf("read the host: %v is not after the reading before, at %v", now, before.at)
	}
	r := Reading{At: now, Missing: map[Source]error{}}
	next := counters{at: now, missing: r.Missing}
	miss := func(name Source, err error) {
		if err != nil {
			r.Missing[name] = err
		}
	}
	var err error
	next.own = s.o.Own()
	next.traffic, err = s.o.Traffic.Traffic()
	miss(Traffic, err)
	next.cpu, err = s.o.CPU.CPU()
	miss(CPU, err)
	next.waited, err = s.o.Pressure.Pressure()
	miss(Pressure, err)
	next.throttle, err = s.o.Throttle.Throttled()
	miss(Throttle, err)
	if s.slow.at.IsZero() || now.Sub(s.slow.at) >= slowEvery {
		s.slow = s.readSlow(now)
	}
	r.Load, r.MemoryUsed, r.MemoryBytes = s.slow.load, s.slow.used, s.slow.bytes
	miss(Load, s.slow.loadErr)
	miss(Memory, s.slow.memoryErr)
	if len(r.Missing) == 6 {
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
		if gone[name] == nil && name != Memory && name != Load {
			gone[name] = errFirst
		}
	}
	r.Missing = gone
	s.deltas(&r, before, next)
	return r, nil
}

func (s *Sampler) deltas(r *Reading, before, next counters) {
	if r.Has(CPU) {
		busy, steal, idle := next.cpu.Busy-before.cpu.Busy, next.cpu.Steal-before.cpu.Steal, next.cpu.Idle-before.cpu.Idle
		if all := busy + steal + idle; all > 0 {
			r.CPU, r.Steal = share(busy/all), share(steal/all)
		}
	}
	if r.Has(Pressure) {
		r.PressureCPU = share(float64(next.waited.CPU-before.waited.CPU) / float64(r.Over))
		r.PressureIO = share(float64(next.waited.IO-before.waited.IO) / float64(r.Over))
		r.PressureMemory = share(float64(next.waited.Memory-before.waited.Memory) / float64(r.Over))
	}
	if r.Has(Throttle) {
		r.Throttled = share(float64(next.throttle-before.throttle) / float64(r.Over))
	}
	if r.Has(Traffic) {
		r.Interfaces = s.traffic(before, next, r.Over.Seconds())
	}
}

// traffic takes the job's own bytes away. Those of no known interface are taken from the
// interfaces by what is left on them.
func (s *Sampler) traffic(before, next counters, seconds float64) (all []Interface) {
	grown := func(now, old uint64) float64 {
		if now < old { // begun anew
			return 0
		}
		return float64(now - old)
	}
	var left Interface
	for name, now := range next.traffic {
		old, ok := before.traffic[name]
		if !ok {
			continue
		}
		i := Interface{Name: name, In: grown(now.In, old.In), Out: grown(now.Out, old.Out)}
		in, out := s.own(grown(next.own[name].In, before.own[name].In), grown(next.own[name].Out, before.own[name].Out))
		i.ForeignIn, i.ForeignOut = max(0, i.In-in), max(0, i.Out-out)
		left.In += i.ForeignIn
		left.Out += i.ForeignOut
		all = append(all, i)
	}
	in, out := s.own(grown(next.own[""].In, before.own[""].In), grown(next.own[""].Out, before.own[""].Out))
	keep := func(own, foreign float64) float64 { return 1 - min(own/max(foreign, 1), 1) }
	for n := range all {
		i := &all[n]
		i.ForeignIn *= keep(in, left.In) / seconds
		i.ForeignOut *= keep(out, left.Out) / seconds
		i.In /= seconds
		i.Out /= seconds
	}
	slices.SortFunc(all, func(a, b Interface) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// own is what an interface counts for the job's bytes.
func (s *Sampler) own(in, out float64) (wireIn, wireOut float64) {
	const acks = 0.03
	return in*s.o.Overhead + out*acks, out*s.o.Overhead + in*acks
}

func share(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return max(0, min(x, 1))
}
