// Package adapt is the one shape in which anything adapts to what happens: an
// event, a decider that answers it with a strategy, a planner that makes the
// strategy a plan, and an executor. Everything up to the plan is a function of
// its arguments, and so is Runner, which knows what of a plan comes next: an
// executor performs acts and decides nothing.
//
// After Buisson's Dynaco, as section 3 of the paper on thief-induced dynamic
// certification has it. Undoing, deadlines and fences are added.
package adapt

import (
	"context"
	"fmt"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// An Event is something that happened, such as "host X is flooded". String is for
// people and the audit.
type Event interface{ fmt.Stringer }

// A Strategy is what is to be reached, such as "rank 2 runs on Z".
type Strategy interface{ fmt.Stringer }

// A Decider answers an event with what is to be reached, or with nothing.
type Decider interface {
	Decide(e Event) (Strategy, bool)
}

// A Planner says how a strategy is reached from the map m.
type Planner interface {
	Plan(m *topology.Map, s Strategy) (Plan, error)
}

// An Executor performs a plan, as Runner orders, and answers the map that then
// holds. The map is also that of a plan which was undone; the error says why.
type Executor interface {
	Execute(ctx context.Context, p Plan) (*topology.Map, error)
}

// An ID numbers the plans of a job, from 1.
type ID uint64

// An Act is one thing that one process or agent does. What its verb means is
// between the planner and the executor.
type Act struct {
	Verb    string          `json:"verb"`
	At      topology.Place  `json:"at"`                // who does it; slot -1: the agent of the host
	Rank    topology.Rank   `json:"rank"`              // -1: it concerns none
	From    topology.Place  `json:"from,omitzero"`     // of what moves
	To      topology.Place  `json:"to,omitzero"`       // of what moves
	Ranks   []topology.Rank `json:"ranks,omitempty"`   // who hear of it: one message each
	Network string          `json:"network,omitempty"` // to be used
}

func (a Act) String() string {
	s := a.Verb
	if a.Rank >= 0 {
		s += fmt.Sprintf(" rank %d", a.Rank)
	}
	if a.At.Slot < 0 {
		s += " at " + a.At.Host
	} else {
		s += fmt.Sprintf(" at %v", a.At)
	}
	if a.From != (topology.Place{}) {
		s += fmt.Sprintf(" from %v", a.From)
	}
	if a.To != (topology.Place{}) {
		s += fmt.Sprintf(" to %v", a.To)
	}
	if a.Network != "" {
		s += " over " + a.Network
	}
	if len(a.Ranks) > 0 {
		s += fmt.Sprintf(" %d", a.Ranks)
	}
	return s
}

// A Step of a plan. Undo must be harmless where Do was not begun, or half done:
// it is also performed when Do failed or its time was up.
type Step struct {
	Do     Act           `json:"do"`
	Undo   *Act          `json:"undo,omitempty"`   // nil: nothing is to be undone
	Fence  *Act          `json:"fence,omitempty"`  // when Undo fails, or Do after the commit: shuts At out of the job
	Within time.Duration `json:"within"`           // for Do. Zero means 5 s.
	Back   time.Duration `json:"back,omitempty"`   // for each of Undo and Fence. Zero means Within.
	Commit bool          `json:"commit,omitempty"` // from here the plan is finished, not undone
}

// A Plan is steps that are performed one after the other. One that cannot finish
// is undone from the failed step back, and what cannot be undone is fenced.
//
// At most one step is the commit: after it the plan's moves hold. An Undo of the
// commit says ErrCommitted if it came too late.
type Plan struct {
	ID    ID              `json:"id"`
	What  string          `json:"what"`            // "move rank 2 from X/0 to Z/1"
	Epoch topology.Epoch  `json:"epoch"`           // of the map for which it was made
	Moves []topology.Move `json:"moves,omitempty"` // what is different in the map afterwards
	Steps []Step          `json:"steps"`
}

// Messages is how many messages the plan takes when nothing fails: one for each
// act, and one for each rank that hears of it.
func (p Plan) Messages() int {
	n := len(p.Steps)
	for _, s := range p.Steps {
		n += len(s.Do.Ranks)
	}
	return n
}
