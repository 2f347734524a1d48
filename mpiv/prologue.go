package mpiv

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A prologue is what a rank does before Restore, as far as it hangs on other ranks:
// the communicators that it made, and what was said to make them. When the rank goes
// on elsewhere the same is done again from these notes, without a message.
type prologue struct {
	late atomic.Int32 // Comms made after Restore and not freed

	mu       sync.Mutex // guards what follows
	stays    bool       // the rank cannot go on elsewhere: nothing is noted any more
	many     bool       //   as it has made too many communicators
	comms    []*Comm    // the world and those made
	notes    map[noteKey][]byte
	calls    map[noteKey]uint32 // how often there was one, whose call is 0
	recalled bool               // notes are those of an earlier life
	under    int                // communicators that are being made: what was sent for them is not in sent yet
	sent     uint64             // messages that were sent for them, at least
}

// A noteKey names one thing that was agreed on in one call.
type noteKey struct {
	context uint32
	number  int32
	what    noteKind
	call    uint32 // of CreateGroup: how many had the same tag before
}

type noteKind uint8

const (
	noteContext noteKind = iota
	noteChoices
)

// agreed runs f, by which the ranks of the Comm agree on something, and notes what;
// or answers what they agreed on in an earlier life.
func (s *series) agreed(what noteKind, f func() ([]byte, error)) ([]byte, error) {
	rs := s.c.state
	p := &rs.prologue
	if rs.state.restored.Load() {
		return f()
	}
	p.mu.Lock()
	key := noteKey{context: s.m.Context, number: s.m.Tag, what: what}
	if !p.stays {
		key = p.keyLocked(key)
	}
	was, known := p.notes[key]
	recalled := p.recalled
	if !recalled {
		p.under++
	}
	p.mu.Unlock()
	switch {
	case recalled && known:
		return was, nil
	case recalled:
		return nil, s.fail(fmt.Errorf("%w: other communicators are made before Restore than where the rank was before", ErrState))
	}
	before := sentBy(s.c)
	p.stayIfLate(before)
	b, err := f()
	after := sentBy(s.c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent += after - before
	p.under--
	if err == nil && !p.stays {
		if p.notes == nil {
			p.notes = make(map[noteKey][]byte)
		}
		p.notes[key] = b
	}
	return b, err
}

// notesMost is how much is noted of a rank that has not called Restore. Most programs never do.
const notesMost = 1 << 10

var errManyNotes = fmt.Errorf("%w: more than %d communicators were made before Restore; make them after it, and free them before the next safe point", ErrState, notesMost/2)

// stayIfLate forgets what is noted if it is too late for Restore: the rank has sent messages beside those
// that make communicators, or has made too many. The caller is about to make one, and has counted the messages.
func (p *prologue) stayIfLate(sent uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.many = p.many || len(p.notes) >= notesMost
	if p.many || p.under == 1 && sent > p.sent {
		p.stays, p.comms, p.notes, p.calls = true, nil, nil, nil
	}
}

// tooMany tells whether the rank has made too many communicators to call Restore.
func (p *prologue) tooMany() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.many
}

// keyLocked numbers the calls of which k would be the name.
func (p *prologue) keyLocked(k noteKey) noteKey {
	if p.calls == nil {
		p.calls = make(map[noteKey]uint32)
	}
	first := k
	k.call = p.calls[first]
	p.calls[first]++
	return k
}

// made notes a Comm that was made.
func (rs *rankState) made(c *Comm) {
	p := &rs.prologue
	if rs.state.restored.Load() {
		p.late.Add(1)
		c.late = true
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stays {
		p.comms = append(p.comms, c)
	}
}
