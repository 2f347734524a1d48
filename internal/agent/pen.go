package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/replica"
)

// Where a job outlives its head, the head writes each decision that must not be lost into
// the ledger, and goes on at once as if it were agreed on. What it tells others because of
// it waits until it is, and so does the end of the job: should another head have taken over,
// nobody has heard of it.

// A pen is what the head writes with. Owned by loop, but for queue and changes.
type pen struct {
	ledger.Pen
	queue   *backlog[writing] // nil before there are other voters. Who writes goes on; others, whose doing makes it write, wait
	changes *backlog[change]  // of who votes
	term    uint64            // in which this head was elected
	known   bool              // what was written before there was a queue is
}

// A writing is entries on their way to being agreed on.
type writing struct {
	replica.Batch
	upTo uint64
}

// joined is the first of all that can be agreed on as one, and the others.
func joined(all []writing) (w writing, rest []writing) {
	for n, next := range all {
		if n > 0 && next.Whole != nil || n >= batchMost {
			return w, all[n:]
		}
		w.Entries, w.upTo = append(w.Entries, next.Entries...), next.upTo
		if next.Whole != nil {
			w.Whole = next.Whole
		}
	}
	return w, nil
}

// batchMost is how many are agreed on as one.
const batchMost = 1024

// record writes e. It is one that can follow, or the head is not what the ledger says.
func (a *Agent) record(e ledger.Entry) {
	p := a.pen
	if p == nil || a.deposed != nil {
		return
	}
	n, err := p.Write(e)
	switch {
	case err != nil:
		panic(fmt.Sprintf("agent: a decision that cannot be: %v: %v", err, e))
	case p.queue == nil:
		p.Agreed(n)
	default:
		p.queue.add(writing{replica.Batch{Entries: []ledger.Entry{e}}, n})
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
// was, unless it is known to them.
func (a *Agent) replicate(r *replica.Replica) {
	p := a.pen
	p.queue, p.changes = newBacklog[writing](), newBacklog[change]()
	a.wg.Go(func() { a.revote(r, p.changes) })
	p.term = r.Term()
	a.wg.Go(func() { a.agree(r, p.queue) })
	if !p.known {
		p.queue.add(writing{replica.Batch{Whole: p.State.Snapshot()}, p.Again()})
		a.agreed(func() { p.known = true })
	}
}

// leadTime is how long the first election may take without a word.
const leadTime = 20 * time.Second

// agree has writings agreed on until the head ends, or is none any more.
func (a *Agent) agree(r *replica.Replica, queue *backlog[writing]) {
	var rest []writing
	for {
		if len(rest) == 0 {
			if rest = queue.take(a.done); rest == nil {
				return
			}
		}
		var w writing
		w, rest = joined(rest)
		if err := a.leading(func() error { return r.Commit(w.Batch) }); err != nil {
			a.post(func() { a.depose(err) })
			r.HandOver() // should this voter still be the one that is agreed with
			return
		}
		a.post(func() { a.wasAgreed(w.upTo) })
	}
}

// leading does again what failed since the lead is being given to another, which may come to nothing.
func (a *Agent) leading(do func() error) error {
	for {
		err := do()
		if !errors.Is(err, replica.ErrHandingOver) {
			return err
		}
		select {
		case <-a.done:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// depose ends the head, though not the job: another leads, or will. One whose ledger nobody
// else has stays: those who are elected in its place have it elected again.
func (a *Agent) depose(err error) {
	if a.pen.queue != nil {
		a.resign(err)
	}
}

// resign is depose of any head.
func (a *Agent) resign(err error) {
	if a.deposed == nil {
		a.deposed = err
		if a.job.Verbose {
			a.speaker.say(a.stamped("this agent leads the job no more: %v", err))
		}
	}
}
