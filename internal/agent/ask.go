package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/waits"
)

const (
	askTime  = 300 * time.Millisecond // for all processes to answer
	askAgain = 120 * time.Millisecond // between the two looks that prove a deadlock

	// What is a deadlock unless a timer wakes a goroutine is told after so long,
	// and later where a rank is in no call of mpiv at all.
	suspectAfter      = 600 * time.Millisecond
	suspectAfterLater = 5 * time.Second

	standsFor = 2 * time.Second // between the looks whether one that was told still is
)

// A round is one question to all processes.
type round struct {
	wanted  map[*process]bool
	reports []control.Report
	then    func(reports []control.Report, silent []*process)
}

// ask asks every process what its ranks do, and has then run by the loop with
// the answers and those who gave none. Ranks that have finished, and told their
// counts, are among the answers.
func (a *Agent) ask(then func([]control.Report, []*process)) { a.askFor(askTime, then) }

// askFor is ask with a time of its own for the answers.
func (a *Agent) askFor(patience time.Duration, then func([]control.Report, []*process)) {
	a.begin(patience, then, func(id uint64) control.Message { return control.Message{Ask: &control.Ask{ID: id}} })
}

// readAll has a reading taken of every process, and then run by the loop with those
// who did not answer.
func (a *Agent) readAll(then func(silent []*process)) {
	all := func(_ []control.Report, silent []*process) { then(silent) }
	a.begin(askTime, all, func(id uint64) control.Message { return control.Message{Watch: &control.Watch{ID: id}} })
}

// begin begins a round.
func (a *Agent) begin(patience time.Duration, then func([]control.Report, []*process), question func(id uint64) control.Message) {
	a.lastRound++
	id := a.lastRound
	r := &round{wanted: map[*process]bool{}, then: then}
	for _, p := range a.processes {
		// Before Start there is nothing to tell, and a process awaits nothing else.
		if p.joined && !p.exited && p.send(question(id)) {
			r.wanted[p] = true
		}
	}
	a.rounds[id] = r
	a.after(patience, func() { a.close(id) })
	a.answered()
}

// report is told an answer.
func (a *Agent) report(p *process, rep control.Report) {
	r := a.rounds[rep.ID]
	if r == nil || !r.wanted[p] {
		return // too late
	}
	delete(r.wanted, p)
	rep.Process = p.index
	if rep.Reading != nil {
		a.read(p, rep.Reading)
	}
	r.reports = append(r.reports, rep)
	a.answered()
}

// answered closes the rounds that need not wait any more: who has ended will
// not answer.
func (a *Agent) answered() {
	for id, r := range a.rounds {
		waiting := false
		for p := range r.wanted {
			waiting = waiting || !p.exited && !p.linkEnded
		}
		if !waiting {
			a.close(id)
		}
	}
}

// close ends a round.
func (a *Agent) close(id uint64) {
	r := a.rounds[id]
	if r == nil {
		return
	}
	delete(a.rounds, id)
	told := map[int]bool{}
	for _, rep := range r.reports {
		for _, rr := range rep.Ranks {
			told[rr.Rank] = true
		}
	}
	var silent []*process
	for _, p := range a.processes {
		rest := control.Report{Process: p.index}
		for rank, last := range p.finished {
			if !told[rank] && last.State != "" {
				rest.Ranks = append(rest.Ranks, last)
			}
		}
		if len(rest.Ranks) > 0 {
			r.reports = append(r.reports, rest)
		}
		if r.wanted[p] && !p.exited && !p.linkEnded {
			silent = append(silent, p)
		}
	}
	slices.SortFunc(r.reports, func(a, b control.Report) int { return a.Process - b.Process })
	r.then(r.reports, silent)
}

// A watch looks for deadlocks.
type watch struct {
	stalled bool // some process has said that it makes no progress
	looking bool
	again   bool // something happened while looking
	said    bool // the user has read of one, and the job goes on as asked
	hinted  bool // the user has read of one that was suspected
	later   bool // a look is due
}

// stalled is told that no rank of some process has made progress for a while.
func (a *Agent) stalled() {
	a.watch.stalled = true
	a.look()
}

// finishedSome is told that ranks have finished: who waits for them may now
// wait in vain.
func (a *Agent) finishedSome() {
	if a.watch.stalled {
		a.look()
	}
}

// look asks twice, and ends the job if both times the same ranks wait for each
// other in the same calls. Being in deadlock is stable, so what was in one at
// the first look still is at the second; what only seemed so, because answers
// are not of the same instant, has changed. What was told, and did not end the job, is looked at until it is over.
func (a *Agent) look() {
	if a.job.Deadlock == "off" || a.ending {
		return
	}
	if a.watch.looking {
		a.watch.again = true
		return
	}
	if a.restless() {
		a.lookLater(settleMoves / 2)
		return
	}
	a.watch.looking, a.watch.again = true, false
	a.lookTwice(func(e waits.Explanation, silent []*process, proven, suspected bool) {
		a.watch.looking = false
		stands := a.news.state.Deadlock
		switch {
		case a.ending:
		case a.restless():
			a.lookLater(settleMoves / 2)
		case proven && (stands == nil || stands.Kind != events.DeadlockProven):
			a.prove(e)
		case suspected && stands == nil:
			a.hint(e)
		case a.watch.again:
			a.after(askAgain, a.look)
		case stands != nil && !proven && !suspected && len(silent) == 0:
			a.emit(events.Event{Kind: events.DeadlockOver, Text: "the ranks that seemed to wait for each other in vain go on"})
		}
		if a.news.state.Deadlock != nil && !a.ending {
			a.lookLater(standsFor)
		}
	})
}

// prove tells of a deadlock, which ends the job unless the user has said otherwise.
func (a *Agent) prove(e waits.Explanation) {
	a.emit(events.Event{Kind: events.DeadlockProven, Text: a.deadlockText(e)})
	switch {
	case a.job.Deadlock != "say":
		a.fail(verdict{code: 1, text: a.deadlockText(e) + "\n(if a timer of the program would still do something: --deadlock say)"})
	case !a.watch.said:
		a.watch.said = true
		a.warn("%s", a.deadlockText(e))
	}
}

// settleMoves is how long after a move or a recovery there is no deadlock: what ranks
// say of their messages may be of before and after.
const settleMoves = time.Second

// restless tells whether ranks come and go, or one has failed for a reason that is
// still to be found.
func (a *Agent) restless() bool {
	s := &a.survival
	return a.doubt != nil || a.mourning || len(s.moving) > 0 || len(s.stranded) > 0 || time.Since(s.changed) < settleMoves
}

// lookLater looks after d, when the ranks may have come to rest, or gone on.
func (a *Agent) lookLater(d time.Duration) {
	if a.watch.later {
		return
	}
	a.watch.later = true
	a.after(d, func() {
		a.watch.later = false
		a.look()
	})
}

// hint tells of a suspected deadlock, when it has lasted.
func (a *Agent) hint(e waits.Explanation) {
	since, all := e.Suspected.Since()
	if since.IsZero() {
		return // no rank waits for another
	}
	wait := suspectAfter
	if !all {
		wait = suspectAfterLater
	}
	if left := wait - time.Since(since); left > 0 {
		a.after(left, a.look)
		return
	}
	a.emit(events.Event{Kind: events.DeadlockSuspected, Text: e.String()})
	if a.watch.hinted {
		return
	}
	a.watch.hinted = true
	a.warn("perhaps a deadlock in job %s, which goes on: unless a timer, a signal or the network wakes a goroutine, nothing will happen any more\n%s", a.job.Name, e)
}

// lookTwice has then run with what is known about who waits for whom, and
// whether a deadlock in it is proven, or suspected.
func (a *Agent) lookTwice(then func(e waits.Explanation, silent []*process, proven, suspected bool)) {
	a.ask(func(first []control.Report, silent []*process) {
		before := waits.Explain(time.Now(), first)
		if before.Deadlock == nil && before.Suspected == nil {
			then(before, silent, false, false)
			return
		}
		a.after(askAgain, func() {
			a.ask(func(second []control.Report, silent []*process) {
				now := waits.Explain(time.Now(), second)
				then(now, silent, now.Confirms(before), now.Repeats(before))
			})
		})
	})
}

func (a *Agent) deadlockText(e waits.Explanation) string {
	return fmt.Sprintf("deadlock in job %s:\n%s", a.job.Name, e)
}

// limit has the job end when it has taken as long as it may, under whichever heads.
func (a *Agent) limit() {
	if a.job.Timeout > 0 {
		a.after(a.job.Timeout-time.Since(a.began), a.timedOut)
	}
}

// timedOut ends a job that has taken as long as it may.
func (a *Agent) timedOut() {
	if a.ending {
		return
	}
	text := fmt.Sprintf("the job did not end within %v (--timeout)", a.job.Timeout)
	a.ask(func(reports []control.Report, _ []*process) {
		if len(reports) > 0 {
			text += fmt.Sprintf(":\n%s", waits.Explain(time.Now(), reports))
		}
		a.fail(verdict{code: exit.Timeout, text: text})
	})
}
