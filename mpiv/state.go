package mpiv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/migrate"
)

// Errors of a State, for errors.Is.
var (
	// ErrMoved: the rank goes on in another process. Return it from run.
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
	restored bool
	first    bool
}

// State is that of the calling rank, whichever of its Comms c is.
func (c *Comm) State() *State { return c.state.state }

// Protect adds the variable that ptr points to, under a name that is its own: with
// all that it refers to it goes where the rank goes. What cannot travel is said by
// Restore. [migrate] says what can.
func (s *State) Protect(name string, ptr any) {
	if s.restored {
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
	case s.restored:
		return s.fail("Restore", fmt.Errorf("%w: Restore is called twice", ErrState))
	}
	s.restored = true
	life := rs.life
	if life == nil || life.From == nil {
		s.first = true
		if sent := sentBy(s.c); sent != rs.prologue.sent {
			return s.fail("Restore", fmt.Errorf("%w: %d messages were sent before Restore beside those that make communicators; send them after it, where First is true", ErrState, sent-rs.prologue.sent))
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

// SafePoint is where the rank may be saved or moved. No request of the rank may be
// pending. Mostly it does nothing, in a few nanoseconds; when the state is saved, it
// takes as long as copying it does. ErrMoved: return it from run, which has begun in
// another process by then.
func (s *State) SafePoint(ctx context.Context) error {
	life := s.c.state.life
	if life == nil || !life.Due() {
		return nil
	}
	return s.safePoint(ctx, life)
}

func (s *State) safePoint(ctx context.Context, life *process.Life) error {
	rs := s.c.state
	switch {
	case !s.restored:
		return s.fail("SafePoint", fmt.Errorf("%w: call Restore before it", ErrState))
	case rs.prologue.late.Load() > 0:
		return s.fail("SafePoint", fmt.Errorf("%w: a communicator was made after Restore, and would be lost; make it before, or Free it", ErrState))
	}
	image, err := s.vars.Image()
	if err != nil {
		return s.fail("SafePoint", err)
	}
	err = life.SafePoint(ctx, image, rs.extra())
	if errors.Is(err, process.ErrLeft) {
		return ErrMoved
	}
	if err != nil {
		return s.fail("SafePoint", err)
	}
	return nil
}

func (s *State) fail(op string, err error) error {
	return &RankError{Op: op, Comm: s.c.name, Rank: s.c.rank, Peer: -1, Tag: -1, Where: callsite.Here(), Err: err}
}

// sentBy is how many messages the rank of c has sent.
func sentBy(c *Comm) (n uint64) {
	sent, _ := c.box.Counts()
	for _, s := range sent {
		n += s.N
	}
	return n
}

// extra is what the library notes of a rank beside its state: the Comms that it made,
// and how far each is.
func (rs *rankState) extra() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, rs.contexts.Load())
	p := &rs.prologue
	p.mu.Lock()
	defer p.mu.Unlock()
	b = le.AppendUint32(b, uint32(len(p.comms)))
	for _, c := range p.comms {
		b = le.AppendUint32(b, c.context)
		b = le.AppendUint32(b, c.series.Load())
	}
	b = le.AppendUint32(b, uint32(len(p.notes)))
	for _, n := range p.notes {
		b = le.AppendUint32(b, uint32(len(n)))
		b = append(b, n...)
	}
	return b
}

var errExtra = errors.New("the state is damaged, or of another version of the library")

// recall takes out of extra what the ranks told each other before Restore.
func (rs *rankState) recall(extra []byte) error {
	_, _, notes, err := parseExtra(extra)
	rs.prologue.notes, rs.prologue.recalled = notes, true
	return err
}

// resume sets the Comms to where they were.
func (rs *rankState) resume(extra []byte) error {
	next, series, notes, err := parseExtra(extra)
	if err != nil {
		return err
	}
	p := &rs.prologue
	if len(series) != len(p.comms) || p.next != len(notes) {
		return fmt.Errorf("%w: %d communicators were made before Restore here, %d where the rank was before", ErrState, len(p.comms), len(series))
	}
	for i, c := range p.comms {
		if c.context != series[i][0] {
			return fmt.Errorf("%w: communicator %q is another than where the rank was before", ErrState, c.name)
		}
		c.series.Store(series[i][1])
	}
	rs.contexts.Store(next)
	p.recalled = false
	return nil
}

func parseExtra(b []byte) (next uint32, series [][2]uint32, notes [][]byte, err error) {
	bad := false
	number := func() uint32 {
		if len(b) < 4 {
			bad = true
			return 0
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return n
	}
	next = number()
	for range min(number(), uint32(len(b)/8)) {
		series = append(series, [2]uint32{number(), number()})
	}
	for range min(number(), uint32(len(b)/4)) {
		n := number()
		if uint64(n) > uint64(len(b)) {
			bad = true
			break
		}
		notes = append(notes, b[:n:n])
		b = b[n:]
	}
	if bad || len(b) > 0 {
		return 0, nil, nil, errExtra
	}
	return next, series, notes, nil
}
