package mpiv

import (
	"errors"
	"fmt"
	"sync"

	"github.com/mpiv/mpiv/internal/callsite"
)

// A history is the lines of a rank's last collectives, kept when Options.Check
// asks for it.
type history struct {
	mu    sync.Mutex // guards what follows
	lines []pastCall // a ring once it has pastCalls
	next  int
}

const pastCalls = 256

type pastCall struct {
	context uint32
	number  int32
	op      collOp
	where   string
}

// note keeps the line that calls a collective.
func (h *history) note(context uint32, number int32, op collOp) {
	where := callsite.Here()
	h.mu.Lock()
	defer h.mu.Unlock()
	c := pastCall{context, number, op, where}
	if len(h.lines) < pastCalls {
		h.lines = append(h.lines, c)
		return
	}
	h.lines[h.next] = c
	h.next = (h.next + 1) % pastCalls
}

func (h *history) find(context uint32, number int32) (pastCall, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.lines {
		if c.context == context && c.number == number {
			return c, true
		}
	}
	return pastCall{}, false
}

// leftovers looks, where Options.Check asks for it, for messages that have come
// for a rank which has finished, and which it has not received. Messages that
// come later are not found.
func (c *Comm) leftovers() error {
	if !c.state.options.Check {
		return nil
	}
	h := &c.state.history
	var errs []error
	if m, _ := c.state.taken.first(); m != nil {
		errs = append(errs, &RankError{Op: "end", Comm: m.c.Name(), Rank: m.c.rank, Peer: m.c.local(m.status.Source), Tag: int(m.status.Tag),
			Err: fmt.Errorf("%w, and was taken by a probe; receive it with Mrecv", ErrUnreceived)})
	}
	for _, m := range c.box.Unreceived() {
		comm := m.Context - m.Context%contextStep
		e := &RankError{Op: "end", Comm: c.box.ContextName(m.Context), Rank: c.box.ContextRank(comm, c.box.Rank()), Peer: c.box.ContextRank(comm, m.Peer), Tag: int(m.Tag)}
		switch mine, took := h.find(m.Context, m.Tag); {
		case m.Context%contextStep == survivors:
			continue
		case m.Check == 0:
			e.Err = fmt.Errorf("%w by a rank that has finished", ErrUnreceived)
		case c.box.Abandoned(m.Context, m.Tag) != nil:
			continue
		case took:
			e.Op, e.Where, e.Tag = mine.op.String(), mine.where, -1
			e.Err = fmt.Errorf("%w: it was sent in %s, as collective number %d, which this is here: give the same root on all ranks", ErrUnreceived, describeCheck(m.Check), m.Tag)
		default:
			e.Tag = -1
			e.Err = fmt.Errorf("%w: it was sent in %s, as collective number %d, in which this rank took no part", ErrUnreceived, describeCheck(m.Check), m.Tag)
		}
		if errs = append(errs, e); len(errs) == 4 {
			break
		}
	}
	return errors.Join(errs...)
}
