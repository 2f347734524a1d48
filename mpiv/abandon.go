package mpiv

import (
	"errors"
	"iter"
	"strings"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// failed makes err the error with which the rank gives up the collective, and
// tells the other ranks, who would wait for it.
func (s *series) failed(err error, peer int) error {
	re := s.c.fail(s.call.Op, peer, -1, err).(*RankError)
	if re.Where == "" && s.call.Begun != nil {
		re.Where = callsite.Of(s.call.Begun[:])
	}
	s.abandon(re)
	return re
}

// abandon tells the other ranks that this one has given up the collective with
// err; nobody, if one of them was the first to do so.
func (s *series) abandon(err error) {
	if s.c.size == 1 || s.m.Check == 0 || errors.Is(err, ErrRevoked) || s.c.state.moved() { // it has no messages, all are told, or it is called elsewhere
		return
	}
	first, _, _ := strings.Cut(err.Error(), "\n") // the stack of a panic stays here
	if errors.Is(err, ErrProcFailed) {
		first = failureMark + first
	}
	s.c.box.Abandon(s.m, first, s.c.members())
}

// members is the ranks of c in the world.
func (c *Comm) members() iter.Seq[topology.Rank] {
	return func(yield func(topology.Rank) bool) {
		for r := range c.size {
			if r != c.rank && !yield(c.world(r)) {
				return
			}
		}
	}
}

// passes is who is told what this rank has heard of calls on a context of c, in case who told it fails. nil: nobody, as
// calls of CreateGroup are of some members, who tell each other.
func (c *Comm) passes(context uint32) iter.Seq[topology.Rank] {
	if context%contextStep == groups {
		return nil
	}
	return c.members()
}

// told makes the error of a collective that another rank has given up.
func (s *series) told(why *engine.AbandonedError) error {
	cause, failure := strings.CutPrefix(why.Cause, failureMark)
	return s.c.fail(s.call.Op, s.c.local(why.By), -1, &toldError{cause, failure})
}

// failureMark is what the cause begins with where that is a failure of a process.
const failureMark = "\x01"

// A toldError is ErrAbandoned, with what another rank gave up for.
type toldError struct {
	cause   string
	failure bool // it is ErrProcFailed too
}

func (e *toldError) Error() string { return ErrAbandoned.Error() + ": " + e.cause }

func (e *toldError) Is(err error) bool {
	return err == ErrAbandoned || err == ErrProcFailed && e.failure
}

// look is begin where the rank looks closer at its collectives.
func (c *Comm) look(number int32, op collOp) {
	if c.state.options.Check {
		c.state.history.note(c.context+collectives, number, op)
	}
	c.wary.Store(true)
}

// enter is for when the arguments are right and no message has been sent: the
// error says that the Comm was freed, or another rank has given up the
// collective already.
func (s *series) enter() error {
	if s.c.wary.Load() {
		return s.enterWary()
	}
	return nil
}

func (s *series) enterWary() error {
	if err := s.c.ended(); err != nil && (err != ErrComm || s.freed) { // what was begun before Free goes on
		return s.fail(err)
	}
	if why := s.c.box.Abandoned(s.m.Context, s.m.Tag); why != nil {
		return s.told(why)
	}
	return nil
}

// watched runs a reduction that calls a function of the program: if that
// panics, or calls runtime.Goexit, the other ranks are told.
func (s *series) watched(run func() error) error {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			s.fail(&PanicError{Value: p})
			panic(p)
		}
		if !returned {
			s.fail(exited())
		}
	}()
	err := run()
	returned = true
	return err
}
