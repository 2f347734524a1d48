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

// A Network is one that a host is on.
type Network struct {
	Name  string         `json:"name"`
	Class topology.Class `json:"class"`
}

// A Link is the way from one host to another over a network. It has a direction:
// who floods a host's answers leaves the way to it alone.
type Link struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Network string `json:"network,omitempty"`
}

func (l Link) String() string {
	if l.Network == "" {
		return l.From + "→" + l.To
	}
	return l.From + "→" + l.To + " " + l.Network
}

// HostJoined: a host's agent is there. Slots and spares are how many processes,
// and how many ranks, the host may ever hold at a time. A host that was lost may join again; its
// old processes stay out.
type HostJoined struct {
	Host     string    `json:"host"`
	Slots    int       `json:"slots"`
	Spares   int       `json:"spares,omitempty"`
	Trusted  bool      `json:"trusted"`
	Networks []Network `json:"networks,omitempty"` // best first
}

// A Loss is how a host or a process was lost.
type Loss string

const (
	Killed Loss = "killed" // by a signal that was not its own doing
	Exited Loss = "exit"   // by itself: the program's own doing
	Hung   Loss = "hang"
	Cut    Loss = "cut"
	Died   Loss = "died" // of hosts
)

// HostLost: the agent has ended, or its host has.
type HostLost struct {
	Host string `json:"host"`
	Why  Loss   `json:"why"`
	Text string `json:"text,omitempty"`
}

// HostReading is how a host does. CPU is counted in cores, bytes by the second.
type HostReading struct {
	Host       string  `json:"host"`
	Cores      float64 `json:"cores"`
	Busy       float64 `json:"busy"`                 // by the job
	Others     float64 `json:"others,omitempty"`     // by anything else
	Steal      float64 `json:"steal,omitempty"`      // taken by the hypervisor
	Pressure   float64 `json:"pressure,omitempty"`   // part of the time in which ranks waited for a core
	Throttled  float64 `json:"throttled,omitempty"`  // part of the time in which a quota held ranks back
	MemoryFree float64 `json:"memoryFree,omitempty"` // bytes. Zero means unknown
	ForeignIn  float64 `json:"foreignIn,omitempty"`  // bytes that are not the job's
	ForeignOut float64 `json:"foreignOut,omitempty"`
	Shared     bool    `json:"shared,omitempty"` // all hosts have the same cores: to leave one for want of them brings nothing
}

// wants is the part of the time in which ranks want for a core that they would have elsewhere.
func (r HostReading) wants() float64 {
	if r.Shared {
		return r.Throttled
	}
	return max(r.Pressure, r.Throttled)
}

// ProcessStarted: it runs, and is not yet ready.
type ProcessStarted struct {
	Place topology.Place `json:"place"`
}

// ProcessReady: others can reach it. One without ranks is a spare.
type ProcessReady struct {
	Place topology.Place `json:"place"`
}

// ProcessLost: its agent saw it end.
type ProcessLost struct {
	Place topology.Place `json:"place"`
	Why   Loss           `json:"why"`
	Text  string         `json:"text,omitempty"`
}

// Silent: nothing was heard since then of a process, or, where Slot is -1, of a
// host's agent. [Heard] ends it.
type Silent struct {
	Place topology.Place `json:"place"`
	Since time.Time      `json:"since"`
}

// Heard: something was heard of a process, or, where Slot is -1, of an agent.
type Heard struct {
	Place topology.Place `json:"place"`
}

// Breach: a link has delivered less than its contract promised, long enough to be
// sure. It holds until [Recovered].
type Breach struct {
	Link     Link      `json:"link"`
	Promised float64   `json:"promised"` // bytes by the second
	Seen     float64   `json:"seen"`
	Since    time.Time `json:"since"`
	Limited  bool      `json:"limited,omitempty"`  // the program was what limited most samples
	Evidence string    `json:"evidence,omitempty"` // for people
}

// Recovered: from one host to the other is delivered again what was promised, over whichever network.
type Recovered struct {
	Link Link    `json:"link"`
	Seen float64 `json:"seen,omitempty"`
}

// Fine: a link was used enough to tell, and delivers what was promised.
type Fine struct {
	Link Link    `json:"link"`
	Seen float64 `json:"seen"`
}

// A Flow is what goes to a rank.
type Flow struct {
	To   topology.Rank `json:"to"`
	Rate float64       `json:"rate"` // bytes by the second

	// What the network tells of it, since it was last told.
	Bytes   float64       `json:"bytes,omitempty"`   // acknowledged
	Slots   sensors.Slots `json:"slots,omitzero"`    // in which something was not yet
	Limited bool          `json:"limited,omitempty"` // for most of that the program had no more to send
}

// Traffic is what a rank sends lately, to all ranks; it takes the place of what was said before.
type Traffic struct {
	Rank topology.Rank `json:"rank"`
	To   []Flow        `json:"to"`
}

// StateSize is what would have to be carried. Copies are the hosts that have a
// whole snapshot of the rank, taken then; where none was taken yet, the rank can begin anew.
type StateSize struct {
	Rank   topology.Rank `json:"rank"`
	Bytes  float64       `json:"bytes"`
	Copies []string      `json:"copies,omitempty"`
	Taken  time.Time     `json:"taken,omitzero"`
}

// PlanEnded: every plan that was to be done ends in one.
type PlanEnded struct {
	ID      adapt.ID      `json:"id"`
	Outcome adapt.Outcome `json:"outcome"`
	Stood   time.Duration `json:"stood,omitempty"` // how long the rank did not run
}

// Placed: these ranks are there now, and nobody asked the policy: their processes had died, or the operator
// moved them. What happened at once is told at once: in between, processes would seem free that are not.
type Placed struct {
	Ranks []Seat `json:"ranks"`
}

// A Seat is where a rank is.
type Seat struct {
	Rank topology.Rank  `json:"rank"`
	At   topology.Place `json:"at"`
}

// Stays: the leader was asked to hand over, and could not yet.
type Stays struct{}

// LeadingFrom: the leader is this host's agent.
type LeadingFrom struct {
	Host string `json:"host"`
}

// MoveRank is the operator's. Ref, here and below, comes back in the record.
type MoveRank struct {
	Rank topology.Rank `json:"rank"`
	To   string        `json:"to"`
	Ref  string        `json:"ref,omitempty"`
}

// Drain: move all ranks off a host, and use it no more.
type Drain struct {
	Host string `json:"host"`
	Ref  string `json:"ref,omitempty"`
}

// Cordon: move nothing to a host.
type Cordon struct {
	Host string `json:"host"`
	Ref  string `json:"ref,omitempty"`
}

// Uncordon ends Cordon, Drain and quarantine.
type Uncordon struct {
	Host string `json:"host"`
	Ref  string `json:"ref,omitempty"`
}

// AddHost: start an agent there. [HostJoined] follows.
type AddHost struct {
	Host string `json:"host"`
	Ref  string `json:"ref,omitempty"`
}

// Ending: the job ends. What remedies have brought so far is told, and nothing is begun.
type Ending struct{}

// Tick: time has passed. Ten a second are enough.
type Tick struct{}

func (HostJoined) input()     {}
func (HostLost) input()       {}
func (HostReading) input()    {}
func (ProcessStarted) input() {}
func (ProcessReady) input()   {}
func (ProcessLost) input()    {}
func (Silent) input()         {}
func (Heard) input()          {}
func (Breach) input()         {}
func (Recovered) input()      {}
func (Fine) input()           {}
func (Traffic) input()        {}
func (StateSize) input()      {}
func (PlanEnded) input()      {}
func (Placed) input()         {}
func (LeadingFrom) input()    {}
func (Stays) input()          {}
func (MoveRank) input()       {}
func (Drain) input()          {}
func (Cordon) input()         {}
func (Uncordon) input()       {}
func (AddHost) input()        {}
func (Ending) input()         {}
func (Tick) input()           {}

func rate(bytes float64) string { return fmt.Sprintf("%.3g MB/s", bytes/1e6) }
