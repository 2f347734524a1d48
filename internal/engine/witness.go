package engine

import (
	"time"

	"github.com/mpiv/mpiv/wire"
)

// A choice that is known on its host alone is lost with the host. So a message that may
// hang on one leaves the host when all choices of the host up to then are known on
// another: of all its ranks, since what a rank does hangs on the messages that it had from
// its neighbours, and so on their choices, too.
//
// This is the optimistic half of causal message logging turned around: messages on one
// host wait for nothing, those between hosts wait for the log. After Elnozahy and others,
// as choices.go.

// A Ledger tells which choices of the ranks of this host are known on another. Its
// methods must not wait, but for what a store in memory takes.
type Ledger interface {
	Recorded() uint64  // how many choices the host's ranks have made
	Witnessed() uint64 // so many of them, the first, are known on another host
	Wake()             // somebody waits for more to be
}

// SetFar has what is sent to a process wait for Config.Witness: it is on another host.
func (e *Engine) SetFar(process int) {
	if e.cfg.Witness == nil || process == e.cfg.Process {
		return
	}
	l := e.link(process)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.witness = e.cfg.Witness
}

// needs is how many choices what is sent now may hang on.
func (l *link) needs() uint64 {
	if l.witness == nil {
		return 0
	}
	return l.witness.Recorded()
}

// may tells whether what hangs on so many choices may leave. If not it is looked at again
// soon.
func (l *link) may(needs uint64) bool {
	if l.witness == nil || needs == 0 || needs <= l.witness.Witnessed() {
		return true
	}
	now := time.Now()
	if l.heldSince.IsZero() {
		l.heldSince = now
	}
	l.held = true
	l.witness.Wake()
	l.attend()
	l.e.flushIn(min(max(now.Sub(l.heldSince)/8, soon), holdLook))
	return false
}

// holdLook is how long what may leave by now is held at most.
const holdLook = 250 * time.Microsecond

// awaited tells whether a control message tells of a choice: that an offer was taken is
// what a synchronous send waits for; and what is asked back, and what has come of that.
func awaited(h *wire.Header) bool { return h.Kind == wire.Done || h.Kind == wire.Retract }
