// Package adapt is the one shape in which anything adapts to what happens: an
// event, a decider that answers it with a strategy, a planner that makes the
// strategy a plan, and an executor. Everything up to the plan is a function
// of its arguments.
//
// After Buisson's Dynaco, as section 3 of the paper on thief-induced dynamic
// certification has it.
package adapt

import (
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

// An ID numbers the plans of a job, from 1.
type ID uint64

// An Act is one thing that can be done. What its verb means is between the planner
// and who executes.
type Act struct {
	Verb  string
	Rank  topology.Rank  // -1: it concerns none
	From  topology.Place // of the rank; with slot -1 a host
	To    topology.Place // as that
	Leave string         // a network
}

// A Plan is an act that is wanted.
type Plan struct {
	ID   ID
	What string // "move rank 2 from X/0 to Z/1"
	Act  Act
}

// An End is how a plan ended.
type End string

const (
	Finished End = "done"   // what was to be reached is so
	Undone   End = "undone" // all is as if it had never been
)

// An Outcome is how a plan ended, and why not otherwise.
type Outcome struct {
	End   End
	Why   string
	Took  time.Duration
	Stood time.Duration // of that, in which what was adapted did not run
}

// An Executor performs plans. What is on the way is its own: it does a plan as a whole, or
// undoes what it has begun, which is so when a deadline of its own has passed, too. Ended
// is called once for each plan, perhaps before Execute returns.
type Executor interface {
	Execute(p Plan, ended func(Outcome))
}
