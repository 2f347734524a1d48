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
	comms    []*Comm    // the world and those made, in order
	notes    [][]byte
	next     int    // note, where they are recalled
	recalled bool   // they are those of an earlier life
	sent     uint64 // messages that were sent for them
}

// agreed runs f, by which the ranks of the Comm agree on something, and notes what;
// or answers what they agreed on in an earlier life.
func (s *series) agreed(f func() ([]byte, error)) ([]byte, error) {
	rs := s.c.state
	if rs.state.restored {
		return f()
	}
	p := &rs.prologue
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recalled {
		if p.next == len(p.notes) {
			return nil, s.fail(fmt.Errorf("%w: more communicators are made before Restore than where the rank was before", ErrState))
		}
		p.next++
		return p.notes[p.next-1], nil
	}
	before := sentBy(s.c)
	b, err := f()
	p.sent += sentBy(s.c) - before
	if err == nil {
		p.notes = append(p.notes, b)
	}
	return b, err
}

// made notes a Comm that was made.
func (rs *rankState) made(c *Comm) {
	if rs.state.restored {
		rs.prologue.late.Add(1)
		c.late = true
		return
	}
	rs.prologue.mu.Lock()
	defer rs.prologue.mu.Unlock()
	rs.prologue.comms = append(rs.prologue.comms, c)
}
