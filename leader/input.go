package leader

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/topology"
)

// An Input is something that the policy is told: one of the structs of this file.
type Input interface{ input() }

// A Link is the way from one host to another over a network. It has a direction:
// who floods a host's answers leaves the way to it alone.
type Link struct {
	From    string
	To      string
	Network string
}

func (l Link) String() string {
	if l.Network == "" {
		return l.From + "→" + l.To
	}
	return l.From + "→" + l.To + " " + l.Network
}

// HostJoined: a host's agent is there. A host that was lost may join again; its old processes
// stay out.
type HostJoined struct {
	Host     string
	Trusted  bool
	Networks []string // by name, best first
}

// HostLost: the agent has ended, or its host has, or nothing is heard of it any more.
type HostLost struct{ Host string }

// HostReading is how a host does. CPU is counted in cores, bytes by the second.
type HostReading struct {
	Host       string
	Cores      float64
	Busy       float64 // by the job
	Others     float64 // by anything else
	Steal      float64 // taken by the hypervisor
	Pressure   float64 // part of the time in which ranks waited for a core
	Throttled  float64 // part of the time in which a quota held ranks back
	MemoryFree float64 // bytes. Zero means unknown
	ForeignIn  float64 // bytes that are not the job's
	ForeignOut float64
	Shared     bool // all hosts have the same cores: to leave one for want of them brings nothing
}

// wants is the part of the time in which ranks want for a core that they would have elsewhere.
func (r HostReading) wants() float64 {
	if r.Shared {
		return r.Throttled
	}
	return max(r.Pressure, r.Throttled)
}

// ProcessReady: others can reach it. One without ranks is a spare, and takes one. No other will ever
// have its place.
type ProcessReady struct{ Place topology.Place }

// A Loss is how a process was lost.
type Loss string

const (
	Killed Loss = "killed"
	Hung   Loss = "hang" // it did not answer, or was out of the job, and was killed
	Cut    Loss = "cut"  // with its host
)

// ProcessLost: it has ended, or is out of the job. Those of its ranks of which it was not said where they
// go on ([Placed]) begin again where the policy says.
type ProcessLost struct {
	Place topology.Place
	Why   Loss
}

// Breach: a link has delivered less than its contract promised, long enough to be
// sure. It holds until [Recovered].
type Breach struct {
	Link     Link
	Promised float64 // bytes by the second
	Seen     float64
	Since    time.Time
	Evidence string // for people
	Lasts    bool   // it was told before, and readings show it again
	lent     bool   // it is another link that promised so much: no contract of this one is broken, and none will be kept again
}

// Recovered: from one host to the other is delivered again what was promised, over whichever network.
type Recovered struct {
	Link Link
	Seen float64
}

// Fine: a link was used enough to tell, and delivers what was promised.
type Fine struct {
	Link Link
	Seen float64
}

// A Flow is what goes to a rank.
type Flow struct {
	To   topology.Rank
	Rate float64 // bytes by the second

	// What the network tells of it, since it was last told.
	Bytes   float64       // acknowledged
	Slots   sensors.Slots // in which something was not yet
	Limited bool          // for most of that the program had no more to send
}

// Traffic is what a rank sends lately, to all ranks; it takes the place of what was said before.
type Traffic struct {
	Rank topology.Rank
	To   []Flow
}

// StateSize is what would have to be carried. Copies are the hosts that have a
// whole snapshot of the rank, taken then; where none was taken yet, the rank can begin anew.
type StateSize struct {
	Rank   topology.Rank
	Bytes  float64
	Copies []string
	Taken  time.Time
}

// PlanEnded: every plan that was to be done ends in one.
type PlanEnded struct {
	ID      adapt.ID
	Outcome adapt.Outcome
}

// Placed: these ranks are there now, and nobody asked the policy: their processes had died, or the operator
// moved them. What happened at once is told at once: in between, processes would seem free that are not.
type Placed struct {
	Ranks []Seat
}

// A Seat is where a rank is.
type Seat struct {
	Rank topology.Rank
	At   topology.Place
}

// Stays: the leader was asked to hand over, and could not yet.
type Stays struct{}

// LeadingFrom: the leader is this host's agent.
type LeadingFrom struct {
	Host string
}

// Drain: the operator wants all ranks moved off a host, and it used no more. Ref, here and below, comes
// back in the record.
type Drain struct {
	Host     string
	Ref      string
	Accepted bool // by an earlier leader: it waits for room, if there is none
}

// Cordon: move nothing to a host.
type Cordon struct {
	Host string
	Ref  string
}

// Uncordon ends Cordon, Drain and quarantine.
type Uncordon struct {
	Host string
	Ref  string
}

// AddHost: start an agent there. [HostJoined] follows.
type AddHost struct {
	Host string
	Ref  string
}

// Ending: the job ends. What remedies have brought so far is told, and nothing is begun.
type Ending struct{}

// Tick: time has passed. Ten a second are enough.
type Tick struct{}

func (HostJoined) input()   {}
func (HostLost) input()     {}
func (HostReading) input()  {}
func (ProcessReady) input() {}
func (ProcessLost) input()  {}
func (Breach) input()       {}
func (Recovered) input()    {}
func (Fine) input()         {}
func (Traffic) input()      {}
func (StateSize) input()    {}
func (PlanEnded) input()    {}
func (Placed) input()       {}
func (LeadingFrom) input()  {}
func (Stays) input()        {}
func (Drain) input()        {}
func (Cordon) input()       {}
func (Uncordon) input()     {}
func (AddHost) input()      {}
func (Ending) input()       {}
func (Tick) input()         {}

func rate(bytes float64) string { return fmt.Sprintf("%.3g MB/s", bytes/1e6) }
