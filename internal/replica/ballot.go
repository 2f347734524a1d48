package replica

import (
	"cmp"
	"time"

	"github.com/hashicorp/raft"
)

// A ballot passes on to raft what other voters ask of it.
//
// Voters look in turn (see impatient), and who looks last is elected: but not where it lacks what was
// replicated just before the head was lost. The voters that have more of it have asked by then, and were refused, since this
// one had a head; they would ask again at raft's own time, one or two silences later. So the request of one that has more
// waits here until this voter has looked, too.
type ballot struct {
	in      <-chan raft.RPC
	out     chan<- raft.RPC
	raft    elector
	last    func() position
	silence time.Duration
	over    <-chan struct{}
}

// An elector is raft as a voter that may be asked for its vote sees it.
type elector interface {
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
	LastContact() time.Time
}

// A position is the end of a voter's log.
type position struct{ term, index uint64 }

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.term, q.term), cmp.Compare(p.index, q.index))
}

// run ends when it is over.
func (b *ballot) run() {
	var waits raft.RPC // its request may be granted once this voter has looked; without a command: none
	var has position   // of who asked
	var until time.Time
	for {
		var look <-chan time.Time
		if waits.Command != nil {
			look = time.After(b.silence / 100)
		}
		next := raft.RPC{}
		select {
		case next = <-b.in:
			q, ok := next.Command.(*raft.RequestPreVoteRequest)
			if !ok || b.free() {
				break
			}
			if p := (position{q.LastLogTerm, q.LastLogIndex}); p.compare(b.last()) > 0 && (waits.Command == nil || p.compare(has) > 0) {
				next, waits, has = waits, next, p
				until = time.Now().Add(b.silence * (VoterTurns - 1) / VoterTurns) // then who asked asks again
			}
		case <-look:
			if b.free() || time.Now().After(until) {
				next, waits = waits, raft.RPC{}
			}
		case <-b.over:
			return
		}
		if next.Command == nil {
			continue
		}
		select {
		case b.out <- next:
		case <-b.over:
			return
		}
	}
}

// free tells whether an answer now is as good as one later: this voter has looked, or has a head that it hears.
func (b *ballot) free() bool {
	_, head := b.raft.LeaderWithID()
	return head == "" || time.Since(b.raft.LastContact()) < b.silence/2
}
