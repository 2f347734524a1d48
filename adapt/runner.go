package adapt

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// DefaultWithin is how long an act may take whose step does not say.
const DefaultWithin = 5 * time.Second

// ErrCommitted is what the Undo of a commit fails with that came too late. The
// plan then goes on.
var ErrCommitted = errors.New("the commit came first")

// A Phase is what of a step is performed.
type Phase uint8

const (
	Doing Phase = iota
	Undoing
	Fencing
	Ended
)

func (p Phase) String() string { return [...]string{"do", "undo", "fence", "ended"}[p] }

// A Report is what an executor tells its Runner: [Begin], [Done], [Failed],
// [Abandon] or [Tick].
type Report interface{ report() }

// Begin is the first report.
type Begin struct{}

// Done: an act was performed.
type Done struct {
	Step  int
	Phase Phase
}

// Failed: an act was not performed, or nobody knows.
type Failed struct {
	Step  int
	Phase Phase
	Err   error
}

// Abandon: the plan is not wanted any more. Before its commit it is undone,
// afterwards nothing changes.
type Abandon struct{ Why string }

// Tick: time has passed.
type Tick struct{}

func (Begin) report()   {}
func (Done) report()    {}
func (Failed) report()  {}
func (Abandon) report() {}
func (Tick) report()    {}

// An End is how a plan ended.
type End string

const (
	Finished End = "done"   // its moves hold
	Undone   End = "undone" // as if it had never been, but for what was fenced
	Broken   End = "failed" // something could be neither undone nor fenced
)

// An Outcome is how a plan ended, and why not otherwise.
type Outcome struct {
	End    End              `json:"end"`
	Fenced []topology.Place `json:"fenced,omitempty"` // in the order in which it happened
	Why    string           `json:"why,omitempty"`    // the first thing that went wrong
	Took   time.Duration    `json:"took"`
}

// Next is what an executor does now.
type Next struct {
	Perform  bool // Act, and report Done or Failed of Step and Phase
	Step     int
	Phase    Phase // Ended: Outcome is set, and nothing is left to do
	Act      Act
	Deadline time.Time // of the act under way: Tick then
	Outcome  Outcome
}

// A Runner knows what of one plan comes next. It is a pure state machine for one
// goroutine.
type Runner struct {
	plan      Plan
	at        int
	phase     Phase
	begun     time.Time
	deadline  time.Time
	committed bool
	undoing   bool // the way is back
	out       Outcome
}

// NewRunner is for a plan that nobody performs yet. It panics if two steps
// commit.
func NewRunner(p Plan) *Runner {
	commits := 0
	for _, s := range p.Steps {
		if s.Commit {
			commits++
		}
	}
	if commits > 1 {
		panic(fmt.Sprintf("plan %d (%s) commits %d times", p.ID, p.What, commits))
	}
	return &Runner{plan: p, at: -1}
}

// Step takes a report and answers what to do. Reports of acts that are not under
// way, such as late ones, change nothing: Perform is false, and the deadline is that of the act
// which is.
func (r *Runner) Step(now time.Time, in Report) Next {
	if r.at < 0 {
		if _, ok := in.(Begin); !ok {
			panic("the first report to a Runner is Begin")
		}
		r.begun = now
		return r.forward(now, 0)
	}
	switch in := in.(type) {
	case Done:
		if r.current(in.Step, in.Phase) {
			return r.done(now)
		}
	case Failed:
		if r.current(in.Step, in.Phase) {
			return r.failed(now, in.Err)
		}
	case Abandon:
		if r.phase == Doing && !r.committed {
			return r.failed(now, fmt.Errorf("abandoned: %s", in.Why))
		}
	case Tick:
		if r.phase != Ended && !now.Before(r.deadline) {
			return r.failed(now, fmt.Errorf("not done within %v", r.within()))
		}
	}
	return Next{Step: r.at, Phase: r.phase, Deadline: r.deadline, Outcome: r.out}
}

func (r *Runner) current(step int, phase Phase) bool {
	return r.phase != Ended && step == r.at && phase == r.phase
}

func (r *Runner) within() time.Duration {
	s := r.plan.Steps[r.at]
	if r.phase != Doing && s.Back > 0 {
		return s.Back
	}
	if s.Within > 0 {
		return s.Within
	}
	return DefaultWithin
}

func (r *Runner) done(now time.Time) Next {
	s := r.plan.Steps[r.at]
	switch r.phase {
	case Doing:
		r.committed = r.committed || s.Commit
	case Fencing:
		if !slices.Contains(r.out.Fenced, s.Fence.At) {
			r.out.Fenced = append(r.out.Fenced, s.Fence.At)
		}
	}
	return r.onward(now)
}

func (r *Runner) failed(now time.Time, err error) Next {
	s := r.plan.Steps[r.at]
	switch r.phase {
	case Doing:
		r.note(s.Do, err)
		if r.committed {
			return r.fence(now)
		}
		r.undoing = true
		return r.back(now, r.at)
	case Undoing:
		if s.Commit && errors.Is(err, ErrCommitted) {
			r.undoing, r.committed, r.out.Why = false, true, ""
			return r.onward(now)
		}
		r.note(*s.Undo, err)
		if s.Fence == nil {
			r.out.End = Broken
		}
		return r.fence(now)
	default: // Fencing
		r.note(*s.Fence, err)
		r.out.End = Broken
		return r.onward(now)
	}
}

// note keeps the first thing that went wrong.
func (r *Runner) note(a Act, err error) {
	if r.out.Why == "" {
		r.out.Why = fmt.Sprintf("%v: %v", a, err)
	}
}

func (r *Runner) fence(now time.Time) Next {
	if r.plan.Steps[r.at].Fence == nil {
		return r.onward(now)
	}
	return r.perform(now, Fencing)
}

// onward leaves the step, in whichever direction the plan goes.
func (r *Runner) onward(now time.Time) Next {
	if r.undoing {
		return r.back(now, r.at-1)
	}
	return r.forward(now, r.at+1)
}

func (r *Runner) forward(now time.Time, step int) Next {
	r.at = step
	if step == len(r.plan.Steps) {
		return r.end(now, Finished)
	}
	return r.perform(now, Doing)
}

func (r *Runner) back(now time.Time, step int) Next {
	for ; step >= 0; step-- {
		if r.at = step; r.plan.Steps[step].Undo != nil {
			return r.perform(now, Undoing)
		}
	}
	return r.end(now, Undone)
}

func (r *Runner) perform(now time.Time, p Phase) Next {
	r.phase = p
	s := r.plan.Steps[r.at]
	act := s.Do
	switch p {
	case Undoing:
		act = *s.Undo
	case Fencing:
		act = *s.Fence
	}
	r.deadline = now.Add(r.within())
	return Next{Perform: true, Step: r.at, Phase: p, Act: act, Deadline: r.deadline}
}

func (r *Runner) end(now time.Time, e End) Next {
	r.phase = Ended
	if r.out.End == "" {
		r.out.End = e
	}
	r.out.Took = now.Sub(r.begun)
	return Next{Step: r.at, Phase: Ended, Outcome: r.out}
}
