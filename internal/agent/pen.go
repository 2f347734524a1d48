package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mpiv/mpiv/internal/ledger"
)

// Where a job outlives its head, the head writes each decision that must not be lost into
// the ledger, and goes on at once as if it were agreed on. What it tells others because of
// it waits until it is: should another head have taken over, nobody has heard of it.

// A pen is what the head writes with. Owned by loop, but for queue.
type pen struct {
	ledger.Pen
	queue   chan writing  // to the goroutine that has it agreed on; nil before there are other voters
	changes chan []change // of who votes
}

// A writing is entries on their way to being agreed on.
type writing struct {
	batch
	upTo uint64
}

// penQueue is how many entries may wait to be agreed on. Who writes more waits for the
// other voters, as everybody who is to hear of it does anyway.
const penQueue = 4096

// record writes e. It is one that can follow, or the head is not what the ledger says.
func (a *Agent) record(e ledger.Entry) {
	p := a.pen
	if p == nil || a.deposed != nil {
		return
	}
	n, err := p.Write(e)
	switch {
	case err != nil:
		panic(fmt.Sprintf("agent: a decision that cannot be: %v: %s", err, e.Append(nil)))
	case p.queue == nil:
		p.Agreed(n)
	default:
		p.send(writing{batch{Entries: []ledger.Entry{e}}, n}, a.done)
	}
}

func (p *pen) send(w writing, done <-chan struct{}) {
	select {
	case p.queue <- w:
	case <-done:
	}
}

// agreed runs do when all that was written is agreed on, in the order of calls.
func (a *Agent) agreed(do func()) {
	if a.pen == nil {
		do()
		return
	}
	a.pen.Then(do)
}

// pending tells whether agreed would wait.
func (a *Agent) pending() bool { return a.pen != nil && a.pen.Waits() }

// wasAgreed is told that entries up to that are agreed on.
func (a *Agent) wasAgreed(upTo uint64) {
	if a.deposed == nil {
		a.pen.Agreed(upTo)
	}
}

// replicate has what is written agreed on by voters from now on, beginning with all that
// was, unless they have it.
func (a *Agent) replicate(r *replica, known bool) {
	p := a.pen
	p.queue, p.changes = make(chan writing, penQueue), make(chan []change, votersMost)
	a.wg.Go(func() { a.revote(r, p.changes) })
	a.wg.Go(func() { a.agree(r, p.queue) })
	if !known {
		p.send(writing{batch{Whole: p.State.Snapshot()}, p.Again()}, a.done)
	}
}

// leadTime is how long the first election may take.
const leadTime = 20 * time.Second

// agree has writings agreed on until the head ends, or is none any more.
func (a *Agent) agree(r *replica, queue <-chan writing) {
	for {
		var w writing
		select {
		case w = <-queue:
		case <-a.done:
			return
		}
		for more := true; more && len(w.Entries) < penQueue; {
			select {
			case next := <-queue:
				w.Entries, w.upTo = append(w.Entries, next.Entries...), next.upTo
			default:
				more = false
			}
		}
		err := r.commit(w.batch)
		for errors.Is(err, raft.ErrLeadershipTransferInProgress) { // which may come to nothing
			select {
			case <-a.done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			err = r.commit(w.batch)
		}
		if err != nil {
			a.post(func() { a.depose(err) })
			r.raft.LeadershipTransfer() // should this voter still be the one that is agreed with
			return
		}
		a.post(func() { a.wasAgreed(w.upTo) })
	}
}

// depose ends the head, though not the job: another leads, or will.
func (a *Agent) depose(err error) {
	if a.deposed == nil {
		a.deposed = err
		a.detail("this agent leads the job no more: %v", err)
	}
}
