package mpiv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/internal/trace"
	"github.com/mpiv/mpiv/migrate"
)

// Errors of a State, for errors.Is.
var (
	// ErrMoved: the rank goes on in another process. Return it from run. Here every later
	// call of the rank fails with it.
	ErrMoved = errors.New("the rank goes on in another process: return this error from run")
	// ErrState: the State is not used as it has to be.
	ErrState = errors.New("not how a State is used")
)

// A State is what of a rank goes on when it is moved to another process, or when its
// process dies: the variables that the program protects, and where its messages are.
//
// run makes its communicators, protects its variables, calls Restore, and then
// SafePoint again and again, where no request is pending. When a rank goes on
// elsewhere run begins again there: what it does before Restore is done again, and
// Restore fills the variables. So before Restore nothing is sent or received but by
// the making of communicators, which gives the same ones again without a message; what
// the ranks tell each other once comes after it, where First says so.
type State struct {
	c        *Comm // the world
	vars     migrate.Vars
	err      error // of Protect
	restored atomic.Bool
	first    bool
	saving   sync.Mutex // held at a SafePoint that does something: any goroutine may call it
}

// State is that of the calling rank, whichever of its Comms c is.
func (c *Comm) State() *State {
	if c == nil {
		panicNoComm("State")
	}
	return c.state.state
}

// Protect adds the variable that ptr points to, under a name that is its own: with
// all that it refers to it goes where the rank goes. A type that cannot travel is said by
// Restore; a value that cannot, and memory that is shared ([migrate.ErrShared]), by the
// SafePoint that saves it, and with Options.Check by each. [migrate] says what can.
func (s *State) Protect(name string, ptr any) {
	if s.restored.Load() {
		s.err = errors.Join(s.err, fmt.Errorf("%w: %q is protected after Restore (%s)", ErrState, name, callsite.Here()))
		return
	}
	if err := s.vars.Protect(name, ptr); err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("protect %q (%s): %w", name, callsite.Here(), err))
	}
}

// Restore fills the protected variables, where the rank goes on from another process.
// Where it begins they stay as they are. Call it once.
func (s *State) Restore(ctx context.Context) error {
	rs := s.c.state
	switch {
	case s.err != nil:
		return s.fail("Restore", s.err)
	case s.restored.Load():
		return s.fail("Restore", fmt.Errorf("%w: Restore is called twice", ErrState))
	}
	life := rs.life
	defer func() { s.restored.Store(true) }()
	if life == nil || life.From == nil {
		s.first = true
		if sent := sentBy(s.c); sent > rs.prologue.sent {
			return s.fail("Restore", fmt.Errorf("%w: %d messages were sent before Restore beside those that make communicators; send them after it, where First is true", ErrState, sent-rs.prologue.sent))
		}
		if rs.prologue.tooMany() {
			return s.fail("Restore", errManyNotes)
		}
		if life != nil {
			life.Begins()
		}
		return nil
	}
	past := life.From
	if err := rs.resume(past.Extra); err != nil {
		return s.fail("Restore", err)
	}
	f, err := s.vars.Receive(past.Manifest)
	if err != nil {
		return s.fail("Restore", err)
	}
	if err := past.Fill(ctx, f.Segments()); err != nil {
		return s.fail("Restore", err)
	}
	if err := f.Finish(); err != nil {
		return s.fail("Restore", err)
	}
	life.Arrived(f.Bytes())
	return nil
}

// First tells, after Restore, whether the rank begins: it does not go on from
// elsewhere.
func (s *State) First() bool { return s.first }

// Due tells whether SafePoint has something to do now. A program that has requests
// under way most of the time ends them only then: a safe point that is called later
// does the same.
func (s *State) Due() bool { return s.c.state.life != nil && s.c.state.life.Due() }

// SafePoint is where the rank may be saved or moved. No request of the rank may be
// pending, no Bsend be under way (BufferDetach waits for them), and each Message that a
// probe took must have been received. Mostly it does
// nothing, in a few nanoseconds; when the state is saved, it takes as long as copying what
// was written to since the last time does: whole pages, of slices of 1 MiB or more; all of
// the rest. ErrMoved: return it from run, which has begun in another process by then.
func (s *State) SafePoint(ctx context.Context) error {
	rs, due := s.c.state, s.Due()
	if !due && s.restored.Load() && s.err == nil && rs.prologue.late.Load() == 0 && !rs.options.Check {
		if rs.life != nil {
			rs.life.Pass()
		}
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	if rs.moved() {
		return ErrMoved
	}
	due = due && s.Due() // another goroutine of the rank may have done it meanwhile
	agreeing := rs.agreeing.left() > 0
	if err := s.wrong(agreeing); err != nil {
		return s.fail("SafePoint", err)
	}
	if !due || agreeing { // then a later one does what is due
		return s.check()
	}
	return s.safePoint(ctx, rs.life)
}

// check lays the state out for nothing, if that is asked for: what cannot be saved is said
// before the rank has to be, which may be much later, or when somebody moves it.
func (s *State) check() error {
	if !s.c.state.options.Check {
		return nil
	}
	if _, err := s.vars.Image(); err != nil {
		return s.fail("SafePoint", err)
	}
	return nil
}

// wrong tells what the program has done that it must not before a safe point. agreeing:
// messages of agreements are under way, of which the program knows nothing.
func (s *State) wrong(agreeing bool) error {
	switch {
	case s.err != nil:
		return s.err
	case !s.restored.Load():
		return fmt.Errorf("%w: call Restore before it", ErrState)
	case s.c.state.prologue.late.Load() > 0:
		return fmt.Errorf("%w: a communicator was made after Restore, and would be lost; make it before, or Free it", ErrState)
	}
	if err := s.c.state.taken.left(); err != nil {
		return err
	}
	if n := s.c.state.buffered.left(); n > 0 {
		return fmt.Errorf("%w: %d messages of Bsend are under way; BufferDetach waits for them", ErrState, n)
	}
	if err := s.c.box.Idle(); err != nil && !agreeing {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return nil
}

func (s *State) safePoint(ctx context.Context, life *process.Life) error {
	rs := s.c.state
	image, err := s.vars.Image()
	if err != nil {
		return s.fail("SafePoint", err)
	}
	extra, err := rs.extra()
	if err != nil {
		return s.fail("SafePoint", err)
	}
	span := rs.span()
	err = life.SafePoint(ctx, image, extra)
	span.End(trace.Record{Op: "SafePoint"})
	if errors.Is(err, process.ErrLeft) {
		s.err = ErrMoved
		rs.leave()
		return ErrMoved
	}
	if err != nil {
		return s.fail("SafePoint", err)
	}
	return nil
}

// leave has every call of the rank fail from now on: it goes on elsewhere.
func (rs *rankState) leave() {
	close(rs.left)
	rs.witness.moved()
}

// moved tells whether the rank goes on elsewhere.
func (rs *rankState) moved() bool {
	select {
	case <-rs.left:
		return true
	default:
		return false
	}
}

func (s *State) fail(op string, err error) error {
	return &RankError{Op: op, Comm: s.c.Name(), Rank: s.c.rank, Peer: -1, Tag: -1, Where: callsite.Here(), Err: err}
}

// barred is why the rank will reach no safe point; nil: it may. Any goroutine may ask.
func (s *State) barred() error {
	rs := s.c.state
	if rs.life == nil || rs.life.From != nil || s.restored.Load() {
		return nil
	}
	sent, p := sentBy(s.c), &rs.prologue
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.many:
		return errManyNotes
	case p.under > 0 || sent <= p.sent:
		return nil // it makes its communicators, or has not come to anything
	}
	return errors.New("its program has sent messages without calling State.Restore before, and so has no safe points")
}

// sentBy is how many messages the rank of c has sent.
func sentBy(c *Comm) (n uint64) {
	sent, _, _ := c.box.Counts()
	for _, s := range sent {
		n += s.N
	}
	return n
}

// A ledger is what the library notes of a rank beside its state.
type ledger struct {
	Contexts uint32 // this and all later ones the rank has not used
	Comms    []commLedger
	Notes    []noteLedger
}

// A commLedger is how far the rank is on a Comm that it made.
type commLedger struct {
	Context, Series uint32
	Agreed          agreeLedger
}

// An agreeLedger is how far it is with the agreements on a Comm.
type agreeLedger struct {
	Number uint32
	Early  []earlyLedger `json:",omitempty"`
}

type earlyLedger struct {
	From    int
	Message []byte
}

type noteLedger struct {
	Context uint32
	Number  int32
	What    noteKind
	Call    uint32
	Text    []byte
}

func (rs *rankState) extra() ([]byte, error) {
	p := &rs.prologue
	p.mu.Lock()
	defer p.mu.Unlock()
	l := ledger{Contexts: rs.contexts.Load()}
	for _, c := range p.comms {
		l.Comms = append(l.Comms, commLedger{c.context, c.series.Load(), c.agreements.ledger()})
	}
	for k, text := range p.notes {
		l.Notes = append(l.Notes, noteLedger{k.context, k.number, k.what, k.call, text})
	}
	return json.Marshal(l)
}

// recall takes out of extra what the ranks told each other before Restore.
func (rs *rankState) recall(extra []byte) error {
	var l ledger
	if err := json.Unmarshal(extra, &l); err != nil {
		return fmt.Errorf("what the library noted of the rank: %w", err)
	}
	p := &rs.prologue
	p.recalled, p.notes = true, make(map[noteKey][]byte)
	for _, n := range l.Notes {
		p.notes[noteKey{n.Context, n.Number, n.What, n.Call}] = n.Text
	}
	return nil
}

// resume sets the Comms to where they were.
func (rs *rankState) resume(extra []byte) error {
	var l ledger
	if err := json.Unmarshal(extra, &l); err != nil {
		return err
	}
	p := &rs.prologue
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.Comms) != len(p.comms) {
		return fmt.Errorf("%w: %d communicators were made before Restore here, %d where the rank was before", ErrState, len(p.comms)-1, len(l.Comms)-1)
	}
	was := make(map[uint32]commLedger)
	for _, c := range l.Comms {
		was[c.Context] = c
	}
	for _, c := range p.comms {
		c.series.Store(was[c.context].Series)
		if err := c.agreements.resume(was[c.context].Agreed, c.size); err != nil {
			return err
		}
	}
	rs.contexts.Store(l.Contexts)
	p.recalled = false
	return nil
}
