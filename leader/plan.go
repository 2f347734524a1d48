package leader

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// The verbs of plans: what who executes must be able to do.
const (
	VerbMove   = "move"   // Rank, alive, from the process From to To
	VerbAgain  = "again"  // Rank goes on at To from its copy, or from its beginning; the process From is out of the job
	VerbSwitch = "switch" // the processes of the hosts From and To talk over another network than Leave
	VerbAdd    = "add"    // an agent on the host To, with processes
)

// Relocate: the rank runs at To. It is carried alive, or, where Again says so, it begins again from a copy.
type Relocate struct {
	Rank     topology.Rank
	From, To topology.Place
	Again    bool          // whatever became of the process at From
	Copy     string        // the host that has it; empty: there is none, it begins anew
	Carry    time.Duration // predicted
	Cost     float64       // predicted: seconds that the rank stands still
}

// Switch: two hosts talk over another network.
type Switch struct {
	Link Link
	To   string
}

// Add: the host has an agent.
type Add struct{ Host string }

func (s Relocate) String() string {
	switch {
	case !s.Again:
		return fmt.Sprintf("move rank %d from %v to %v", s.Rank, s.From, s.To)
	case s.Copy == "":
		return fmt.Sprintf("begin rank %d of %v anew at %v", s.Rank, s.From, s.To)
	}
	return fmt.Sprintf("recover rank %d of %v at %v from the copy on %s", s.Rank, s.From, s.To, s.Copy)
}

// brief is the strategy before it has a process at its target.
func (s Relocate) brief() string {
	if s.Again {
		return fmt.Sprintf("rank %d begins again on %s", s.Rank, s.To.Host)
	}
	return fmt.Sprintf("rank %d to %s", s.Rank, s.To.Host)
}

func (s Switch) String() string { return fmt.Sprintf("use %s for %v", s.To, s.Link) }
func (s Add) String() string    { return "add host " + s.Host }

// planner is the [adapt.Planner] of the leader: strategies are the structs above.
type planner struct{}

var _ adapt.Planner = planner{}

// Plan says how a strategy is reached. The plan has no ID yet.
func (planner) Plan(world *topology.Map, s adapt.Strategy) (adapt.Plan, error) {
	p := adapt.Plan{What: s.String()}
	switch s := s.(type) {
	case Relocate:
		at, ok := world.Place(s.Rank)
		switch {
		case !ok:
			return p, fmt.Errorf("plan %v: %w", s, topology.ErrNoRank)
		case at != s.From:
			return p, fmt.Errorf("plan %v: it is at %v: %w", s, at, topology.ErrStale)
		}
		p.Act = adapt.Act{Verb: VerbMove, Rank: s.Rank, From: s.From, To: s.To}
		if s.Again {
			p.Act.Verb = VerbAgain
		}
	case Switch:
		p.Act = adapt.Act{Verb: VerbSwitch, Rank: -1, From: agent(s.Link.From), To: agent(s.Link.To), Leave: s.Link.Network}
	case Add:
		p.Act = adapt.Act{Verb: VerbAdd, Rank: -1, To: agent(s.Host)}
	default:
		return p, fmt.Errorf("plan %v: the leader has no plan for a %T", s, s)
	}
	return p, nil
}

func agent(host string) topology.Place { return topology.Place{Host: host, Slot: -1} }
