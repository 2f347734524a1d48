package leader

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// An Action is something to be done: [Do], [Tell], [HandOver] or [GiveUp].
type Action interface{ action() }

// Do: perform a plan, beside those under way, and say how it ended with [PlanEnded].
type Do struct{ Plan adapt.Plan }

// Tell: keep the record for the audit. One with the ID of an earlier one takes its
// place.
type Tell struct{ Record Record }

// HandOver: the leader's own host is not well; the agent of another is to lead.
type HandOver struct{ To, Why string }

// GiveUp: nothing can be done, and the job must end. It is the last action.
type GiveUp struct{ Reason string }

func (Do) action()       {}
func (Tell) action()     {}
func (HandOver) action() {}
func (GiveUp) action()   {}

// A Record explains one decision: what was seen, who was blamed, what could have
// been done, what was chosen, and in the end what it did cost and what it has brought.
type Record struct {
	ID      uint64    `json:"id"` // of the job's decisions, from 1
	At      time.Time `json:"at"`
	Seen    []string  `json:"seen"`
	Blamed  string    `json:"blamed,omitempty"`
	Verdict Kind      `json:"verdict,omitempty"`
	Reasons []string  `json:"reasons,omitempty"` // of the verdict
	Options []Option  `json:"options,omitempty"`
	Chosen  string    `json:"chosen"`
	Why     string    `json:"why,omitempty"`
	Ref     string    `json:"ref,omitempty"` // of the operator's command
	Plans   []Planned `json:"plans,omitempty"`

	Measured *Measured `json:"measured,omitempty"` // what it has brought; nil: not measured, or not yet
}

// An Option is what could be done, with what it was predicted to bring. All are seconds
// of the ranks concerned: what they would lose within the horizon if nothing were
// done, and how long they stand still for the remedy.
type Option struct {
	What    string  `json:"what"`
	Benefit float64 `json:"benefit"` // at most: where no rank waits for another
	Surely  float64 `json:"surely"`  // where each goes at the pace of the slowest
	Cost    float64 `json:"cost"`
	Refused string  `json:"refused,omitempty"` // why it cannot be done

	relocate []Relocate
	change   []Switch
}

// A Planned is a plan of a decision, and once it has ended what was measured.
type Planned struct {
	ID    adapt.ID       `json:"id"`
	What  string         `json:"what"`
	Cost  float64        `json:"cost,omitempty"` // predicted, seconds
	End   adapt.End      `json:"end,omitempty"`
	Stood float64        `json:"stood,omitempty"` // seconds the rank did not run
	Took  float64        `json:"took,omitempty"`  // seconds
	Why   string         `json:"why,omitempty"`   // it ended otherwise than planned
	Epoch topology.Epoch `json:"epoch,omitempty"` // of the map that then held
}

func (o Option) String() string {
	if o.Refused != "" {
		return fmt.Sprintf("%s: no, %s", o.What, o.Refused)
	}
	brings := fmt.Sprintf("%.3g", o.Benefit)
	if least := fmt.Sprintf("%.3g", o.Surely); least != brings {
		brings = least + " to " + brings
	}
	return fmt.Sprintf("%s: brings %s s for %.3g s", o.What, brings, o.Cost)
}
