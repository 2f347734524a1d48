package mpiv

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// What a program is told of failures, in a job of level "report", with User-Level
// Failure Mitigation's classes and words: Bland, Bouteiller, Herault, Bosilca and
// Dongarra, "Post-failure recovery of MPI communication capability" (IJHPCA 27, 2013).

// Revoke ends the use of c by all its ranks: what waits on it, here and elsewhere, now and later,
// ends with ErrRevoked, but for Shrink and Agree. One rank calls it, which has found that another
// failed, so that those learn of it that wait for others. It does not wait; that all
// live ranks hear of it does not hang on the one that called it.
//
// It is for level report: at level crashes a rank whose process has died does again what it did on c before, and
// finds it revoked.
func (c *Comm) Revoke(ctx context.Context) error {
	if err := c.gone(); err != nil {
		return c.fail("Revoke", -1, -1, err)
	}
	c.box.Revoke(c.context, c.members())
	return nil
}

// Revoked tells whether the calling rank has heard that c is revoked.
func (c *Comm) Revoked() bool {
	if c == nil {
		panicNoComm("Revoked")
	}
	return c.revoked.Load()
}

// Failed is the ranks of c that the calling rank knows to have failed, in the order in
// which it was told. Others may know of other ones.
func (c *Comm) Failed() Group {
	if c == nil {
		panicNoComm("Failed")
	}
	return c.failedOf(c.box.Engine().Failed())
}

// AckFailed says that the program knows of the ranks in Failed, and returns them. From
// then on a receive from AnySource waits for those that are left, and an agreement does not fail for the others' failure.
func (c *Comm) AckFailed() Group {
	if c == nil {
		panicNoComm("AckFailed")
	}
	all := c.box.Engine().Failed()
	for n, was := int64(len(all)), c.acked.Load(); n > was && !c.acked.CompareAndSwap(was, n); {
		was = c.acked.Load()
	}
	return c.failedOf(all)
}

// failedOf is those of failed that are ranks of c.
func (c *Comm) failedOf(failed []topology.Rank) Group {
	own := slices.DeleteFunc(slices.Clone(failed), func(r topology.Rank) bool { return c.group.index(r) < 0 })
	return groupOf(own, c.box.Rank())
}

// A witness has the Comms of a rank learn of failures and revocations.
type witness struct {
	box *engine.Box

	mu    sync.Mutex // guards what follows; nothing else is locked while it is held
	comms map[uint32]*Comm
	freed []*Comm // of those, what something is under way on that is to hear of failures
}

// A health is what a Comm knows of that.
type health struct {
	revoked atomic.Bool
	passed  atomic.Bool  // and this rank has told the others
	under   atomic.Int32 // agreements and non-blocking collectives that have not ended: others wait for what it hears
	acked   atomic.Int64 // so many of the failures of which the process knows are acknowledged
}

func newWitness(b *engine.Box) *witness {
	w := &witness{box: b, comms: map[uint32]*Comm{}}
	b.Witness(w)
	return w
}

// has takes that there is c.
func (w *witness) has(c *Comm) {
	w.mu.Lock()
	w.comms[c.context] = c
	w.mu.Unlock()
	if _, is := w.box.RevokedBy(c.context); is { // others were faster
		c.wasRevoked()
	}
	if len(w.box.Engine().Failed()) > 0 { // they may have revoked it, or given up a call, before they failed
		w.Failed()
	}
}

// leaves takes that c was freed.
func (w *witness) leaves(c *Comm) {
	w.mu.Lock()
	all := append(w.freed, c)
	w.freed = nil
	w.mu.Unlock()
	over := slices.DeleteFunc(slices.Clone(all), func(c *Comm) bool { return c.under.Load() > 0 || w.box.AwaitsAny(c.context) })
	w.mu.Lock()
	for _, c := range over {
		delete(w.comms, c.context)
	}
	w.freed = append(w.freed, slices.DeleteFunc(all, func(c *Comm) bool { return w.comms[c.context] == nil })...)
	w.mu.Unlock()
	if _, is := w.box.RevokedBy(c.context); !is || !c.passed.Swap(true) {
		w.box.Leave(c.context, c.members(), c.passes)
	}
}

func (w *witness) comm(base uint32) *Comm {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.comms[base]
}

// Revoked implements engine.Witness.
func (w *witness) Revoked(base uint32) {
	if c := w.comm(base); c != nil {
		c.wasRevoked()
	}
}

func (c *Comm) wasRevoked() {
	c.revoked.Store(true)
	c.wary.Store(true)
	c.odd.Store(true)
}

// moved has calls on all Comms look closer: the rank goes on elsewhere.
func (w *witness) moved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.comms {
		c.wary.Store(true)
		c.odd.Store(true)
	}
}

// Failed implements engine.Witness: who told this rank that a Comm is revoked, or a collective given up, may have
// failed before it had told all.
func (w *witness) Failed() {
	failed := w.box.Engine().Failed()
	w.mu.Lock()
	var pass []*Comm
	for base, c := range w.comms {
		if by, is := w.box.RevokedBy(base); is && slices.Contains(failed, by) && !c.passed.Swap(true) {
			pass = append(pass, c)
		}
	}
	w.mu.Unlock()
	for _, c := range pass {
		w.box.PassRevoke(c.context, c.members())
	}
	w.box.PassAbandoned(func(context uint32) iter.Seq[topology.Rank] {
		if c := w.comm(context - context%contextStep); c != nil {
			return c.passes(context)
		}
		return nil
	})
}

// Unacknowledged implements engine.Witness.
func (w *witness) Unacknowledged(context uint32) bool {
	c := w.comm(context &^ (contextStep - 1))
	if c == nil {
		return false
	}
	known := &c.acked
	if context == c.context+survivors {
		known = &c.agreements.seen
	}
	n := known.Load() // before the list, which only grows
	return slices.ContainsFunc(w.box.Engine().Failed()[n:], func(r topology.Rank) bool { return c.group.index(r) >= 0 })
}
