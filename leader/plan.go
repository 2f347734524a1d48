package leader

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// The verbs of plans: what an executor must be able to do. Acts that say Slot -1 are an agent's.
const (
	VerbStart   = "start"   // a process at To
	VerbEnd     = "end"     // the process at To, if there is one
	VerbPrepare = "prepare" // To expects the rank
	VerbDiscard = "discard" // what To has of the rank
	VerbSave    = "save"    // the rank at its next safe point; it stands still
	VerbResume  = "resume"  // the rank, if it stands still
	VerbCarry   = "carry"   // the rank's state from the host From to To
	VerbFence   = "fence"   // the process At is out of the job: refused everywhere, and ended where it can be
	VerbCommit  = "commit"  // the plan's moves, as the next map
	VerbAbort   = "abort"   // a commit that was not made; fails with adapt.ErrCommitted if it was
	VerbRun     = "run"     // the rank, at To
	VerbTell    = "tell"    // Ranks where the rank is; who is not told learns it by being refused
	VerbRelease = "release" // what From still has of the rank
	VerbSwitch  = "switch"  // the processes of At's host and To's host use Network, and not that of Undo
	VerbAdd     = "add"     // an agent on the host To
)

// Relocate: the rank runs at To. It is carried alive, or, where Copy says, it begins again from there.
type Relocate struct {
	Rank     topology.Rank
	From, To topology.Place
	Start    bool            // the process at To must be started
	Again    bool            // from a copy, whatever became of the process at From
	Copy     string          // the host that has it; empty: there is none, it begins anew
	Fence    bool            // the process at From may still live
	Group    []topology.Rank // who are told
	Leader   string          // the host that commits
	Carry    time.Duration   // predicted
	Save     time.Duration   // at most, to reach a safe point
	Resume   time.Duration   // at most, before a source that does not say that it goes on is fenced
	Cost     float64         // predicted: seconds that the rank stands still
}

// Switch: two hosts talk over another network.
type Switch struct {
	Link Link
	To   string
}

// Start: there is a process at Place.
type Start struct{ Place topology.Place }

// Shut: the process at Place is out of the job.
type Shut struct{ Place topology.Place }

// Add: the host has an agent.
type Add struct{ Host, Leader string }

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
func (s Start) String() string  { return fmt.Sprintf("start a spare at %v", s.Place) }
func (s Shut) String() string   { return fmt.Sprintf("fence %v", s.Place) }
func (s Add) String() string    { return "add host " + s.Host }

// planner is the [adapt.Planner] of the leader: strategies are the structs above.
type planner struct{}

var _ adapt.Planner = planner{}

const (
	startWithin  = 10 * time.Second
	actWithin    = 2 * time.Second
	commitWithin = 5 * time.Second
)

// Plan says how a strategy is reached. The plan has no ID yet.
func (planner) Plan(world *topology.Map, s adapt.Strategy) (adapt.Plan, error) {
	p := adapt.Plan{What: s.String(), Epoch: world.Epoch()}
	switch s := s.(type) {
	case Relocate:
		at, ok := world.Place(s.Rank)
		switch {
		case !ok:
			return p, fmt.Errorf("plan %v: %w", s, topology.ErrNoRank)
		case at != s.From:
			return p, fmt.Errorf("plan %v: it is at %v: %w", s, at, topology.ErrStale)
		}
		p.Moves = []topology.Move{{Rank: s.Rank, From: s.From, To: s.To}}
		p.Steps = relocate(s)
	case Switch:
		a := adapt.Act{Verb: VerbSwitch, At: agent(s.Link.From), Rank: -1, To: agent(s.Link.To), Network: s.To}
		undo := a
		undo.Network = s.Link.Network
		p.Steps = []adapt.Step{{Do: a, Undo: &undo, Within: actWithin}}
	case Start:
		p.Steps = []adapt.Step{starting(s.Place)}
	case Shut:
		a := adapt.Act{Verb: VerbFence, At: s.Place, Rank: -1}
		p.Steps = []adapt.Step{{Do: a, Within: commitWithin}}
	case Add:
		p.Steps = []adapt.Step{{Do: adapt.Act{Verb: VerbAdd, At: agent(s.Leader), Rank: -1, To: agent(s.Host)}, Within: 6 * startWithin}}
	default:
		return p, fmt.Errorf("plan %v: the leader has no plan for a %T", s, s)
	}
	return p, nil
}

func agent(host string) topology.Place { return topology.Place{Host: host, Slot: -1} }

func starting(p topology.Place) adapt.Step {
	return adapt.Step{
		Do:     adapt.Act{Verb: VerbStart, At: agent(p.Host), Rank: -1, To: p},
		Undo:   &adapt.Act{Verb: VerbEnd, At: agent(p.Host), Rank: -1, To: p},
		Within: startWithin,
	}
}

func relocate(s Relocate) (steps []adapt.Step) {
	act := func(verb string, at topology.Place) adapt.Act {
		return adapt.Act{Verb: verb, At: at, Rank: s.Rank, From: s.From, To: s.To}
	}
	to := func(verb string, at topology.Place) *adapt.Act { a := act(verb, at); return &a }
	if s.Start {
		steps = append(steps, starting(s.To))
	}
	// What the target has of a rank that is not its own is refused by its epoch: a fence is not
	// needed if it cannot be told, but without one nobody knows what it holds.
	target, source := to(VerbFence, s.To), to(VerbFence, s.From)
	steps = append(steps, adapt.Step{Do: act(VerbPrepare, s.To), Undo: to(VerbDiscard, s.To), Fence: target, Within: actWithin})
	carry := act(VerbCarry, s.To)
	if s.Again {
		if s.Fence {
			steps = append(steps, adapt.Step{Do: *source, Within: commitWithin})
		}
		carry.From = agent(s.Copy)
	} else {
		steps = append(steps, adapt.Step{Do: act(VerbSave, s.From), Undo: to(VerbResume, s.From), Fence: source, Within: s.Save, Back: s.Resume})
	}
	if !s.Again || s.Copy != "" {
		steps = append(steps, adapt.Step{Do: carry, Within: actWithin + 3*s.Carry})
	}
	tell := act(VerbTell, agent(s.Leader))
	tell.Ranks = s.Group
	steps = append(steps,
		adapt.Step{Do: act(VerbCommit, agent(s.Leader)), Undo: to(VerbAbort, agent(s.Leader)), Within: commitWithin, Commit: true},
		adapt.Step{Do: act(VerbRun, s.To), Fence: target, Within: actWithin},
		adapt.Step{Do: tell, Within: actWithin})
	if !s.Again {
		steps = append(steps, adapt.Step{Do: act(VerbRelease, s.From), Fence: source, Within: actWithin})
	}
	return steps
}
