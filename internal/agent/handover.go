package agent

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/replica"
	"github.com/mpiv/mpiv/leader"
	"github.com/mpiv/mpiv/sensors"
)

// A head whose own host is not well, or is to be left, has another agent lead.

// handOver has the agent of a host lead, or of another that votes if that one does not.
func (a *Agent) handOver(to, why string) {
	if a.pen == nil || a.pen.queue == nil {
		return // there is nobody to whom it could
	}
	if a.head.term != 0 && time.Since(a.since) < handOverRest {
		a.stays("it is not long that the agent of host %s leads, so it goes on: %s", a.hosts[a.own()].name, why)
		return
	}
	if rtt := a.head.slowest(); rtt > a.job.Silence/handOverTrips {
		a.stays("the agent of host %s goes on leading, since others could be late to find another: round trips take up to %v: %s", a.hosts[a.own()].name, rtt.Round(time.Millisecond), why)
		return
	}
	next := -1
	for _, i := range a.voters {
		if i != a.own() && a.hosts[i].able() && (next < 0 || a.hosts[i].name == to) {
			next = i
		}
	}
	if next < 0 {
		a.stays("the agent of host %s goes on leading, as no other that decides is there: %s", a.hosts[a.own()].name, why)
		return
	}
	a.recordPromises()
	a.warn("the agent of host %s is to lead the job: %s", a.hosts[next].name, why)
	for _, h := range a.hosts {
		a.notAdded(h, errors.New("another agent is to lead the job: ask again when it does"))
	}
	for ref, o := range a.policy.refs {
		if o.op == "add" {
			continue // is answered as what was not done
		}
		delete(a.policy.refs, ref) // the order is in the ledger
		o.answer(fmt.Sprintf("the agent of host %s is to lead the job, and to see to it", a.hosts[next].name))
	}
	v := a.voterOf(next)
	// Not before what was decided is agreed on: the next head goes by that.
	a.agreed(func() {
		r := a.deputy.office.votes()
		if r == nil {
			return
		}
		a.wg.Go(func() {
			select {
			case <-time.After(answerTime):
			case <-a.done:
				return
			}
			if err := r.HandOverTo(v)(); err != nil {
				a.post(func() {
					a.warn("it goes on leading from here: %v", err)
					a.tellPolicy(leader.Stays{})
				})
			}
		})
	})
}

// stays says why this head does not hand over, and has the policy ask again later, if there is still a reason then.
func (a *Agent) stays(format string, values ...any) {
	a.detail(format, values...)
	a.post(func() { a.tellPolicy(leader.Stays{}) })
}

// handOverRest is for how long a head that was elected does not hand over: where no host
// is well they would do nothing else.
const handOverRest = 10 * time.Second

// handOverTrips are made within the silence until another leads: it has all that was decided, is told
// to ask for an election, and is elected.
const handOverTrips = 3

// answerTime is for answers that are on their way.
const answerTime = 50 * time.Millisecond

// votes is this agent's part in elections; nil: it has none.
func (s *office) votes() *replica.Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replica
}

// promisesEvery is how often it is written down what links promise: a new head would take
// for normal what it finds.
const promisesEvery = 10 * time.Second

// recordPromises writes that down, if it has changed.
func (a *Agent) recordPromises() {
	if a.pen == nil || a.contracts == nil {
		return
	}
	var text bytes.Buffer
	if a.contracts.Contract().Store(&text) == nil && !slices.Equal(text.Bytes(), a.pen.State.Promises) {
		a.record(ledger.Entry{Promises: &ledger.Promises{Text: text.Bytes()}})
	}
}

// recallPromises has the watch over links begin with what they promised the head before.
func (a *Agent) recallPromises(text []byte) error {
	mode, err := a.contractMode()
	if err != nil || mode == sensors.Off {
		return err
	}
	o := sensors.WatchOptions{Mode: mode}
	if o.Thresholds, err = a.thresholds(mode); err != nil {
		return err
	}
	if len(text) > 0 {
		if o.Contract, err = sensors.Load(bytes.NewReader(text)); err != nil {
			return err
		}
	}
	a.contracts, err = sensors.NewWatch(o)
	return err
}
