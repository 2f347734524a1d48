package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/ledger"
)

// What becomes of ranks whose process is lost, alone or with its host: they are stranded
// until there is a spare process for each, and what it goes on from.

// A stranded process is lost, and its ranks have not gone on elsewhere yet.
type stranded struct {
	p   *process
	why verdict   // should they never
	end time.Time // until then the end of the process is waited for
}

// A wish is where a stranded rank should go on.
type wish struct {
	to    *process
	ended func(error) // told whether it did
}

// survives tells whether the job goes on though p has died.
func (a *Agent) survives(p *process) bool {
	by := p.endedBy()
	return a.job.Options.Survive == "crashes" && a.toldStart && a.interrupts == 0 && !a.mourning && p.hello != nil && !p.failed &&
		by != 0 && !(by == syscall.SIGPIPE && p.unread())
}

// endedBy is the signal that has ended p, or the program in it if a shell has started that: it says so with its
// exit code. 0: none has.
func (p *process) endedBy() syscall.Signal {
	switch st := p.status; {
	case st.Signaled():
		return st.Signal()
	case p.hello != nil && p.hello.PID != p.pid && !p.allFinished() && st.ExitStatus() > exit.Signal && st.ExitStatus() <= exit.Signal+lastSignal:
		return syscall.Signal(st.ExitStatus() - exit.Signal)
	}
	return 0
}

const lastSignal = 64

// recover has the ranks of p, which has died, go on in spare processes.
func (a *Agent) recover(p *process) {
	a.strand(verdict{code: exitCode(p.status), by: p, died: true, text: a.obituary(p)}, p)
}

// strand has the ranks of processes that are lost go on.
func (a *Agent) strand(why verdict, lost ...*process) {
	s := &a.survival
	for _, p := range lost {
		a.breakMoves(p, why.text)
		if a.policy != nil && !p.host.lost {
			a.policy.died(p, time.Now())
		}
		for _, r := range p.ranks {
			delete(p.finished, r)
			if s.lives[r]++; s.lives[r] > livesMost {
				why.text = fmt.Sprintf("%s: %d times now since rank %d was last saved, so another life will not help", why.text, s.lives[r], r)
				a.endFor(why)
				return
			}
		}
		s.stranded = append(s.stranded, stranded{p, why, time.Now().Add(dyingMost)})
		if a.survival.copied && !p.exited && p.host.able() {
			a.after(dyingMost, a.goOn)
		}
	}
	s.failures.again()
	a.goOn()
	if len(s.stranded) > 0 && !a.ending && !a.mourning {
		a.detail("%s; its ranks go on when a spare process is ready, and what they go on from is there", why.text)
	}
	a.refill()
}

// endFor ends the job for a process or host that was lost.
func (a *Agent) endFor(v verdict) {
	if v.by == nil {
		a.fail(v)
	} else {
		a.mourn(v)
	}
}

// goOn has stranded ranks go on, all at once, as soon as there is a spare process for
// each and what it goes on from is there.
func (a *Agent) goOn() {
	s := &a.survival
	if len(s.stranded) == 0 || a.ending || a.mourning {
		return
	}
	targets, from := map[int]*process{}, map[int]stored{}
	ready := true
	for _, x := range s.stranded {
		for _, r := range x.p.ranks {
			to, st, err := a.refuge(x.p, r, targets)
			if err == nil && a.choicesLost(r, to) {
				err = fmt.Errorf("every host that knew in which order rank %d has received is lost", r)
			}
			if err == errApart && time.Since(x.end) < control.AlivePatient {
				err = nil // they may not be any more
			}
			if err != nil {
				x.why.text += "; " + err.Error()
				a.endFor(x.why)
				return
			}
			if to == nil {
				ready = false
				continue
			}
			targets[r], from[r] = to, st
			if st.file != "" && st.host != to.host {
				a.fetch(r, st, to.host)
				ready = false
			}
			if a.dying(x) || !a.choicesAt(r, st, to.host) {
				ready = false
			}
		}
	}
	if ready {
		a.settleIn(targets, from)
		a.refill()
	}
}

// refuge is a process to which rank r of p can go, and what it goes on from: nothing if
// it has never saved. None, and no error: it is about to be there. A host that is to have
// no more ranks, or that may be lost, gets one only if it can go nowhere else.
func (a *Agent) refuge(p *process, r int, taken map[int]*process) (*process, stored, error) {
	free := a.sparesFor(p, taken)
	takes := func(q *process) bool { return a.healthy(q.host) }
	heard := func(q *process) bool { return takes(q) && a.hearsOf(q.host, 3*control.Beat(a.job.Silence)) }
	for _, fits := range []func(*process) bool{heard, takes} {
		some := slices.DeleteFunc(slices.Clone(free), func(q *process) bool { return !fits(q) })
		if len(some) > 0 && len(some) < len(free) {
			if to, from, err := a.refugeAmong(some, p, r); err == nil {
				return to, from, nil
			}
		}
	}
	return a.refugeAmong(free, p, r)
}

// refugeAmong is refuge where free are the processes that can take a rank of p.
func (a *Agent) refugeAmong(free []*process, p *process, r int) (*process, stored, error) {
	all := a.storedOf(r)
	if len(all) == 0 && a.survival.covered[r] != (version{}) {
		return nil, stored{}, fmt.Errorf("every host that had the state of rank %d is lost", r)
	}
	if w, ok := a.survival.wanted[r]; ok {
		// Its host is to be left, so it is not asked for a copy if another has one.
		if slices.ContainsFunc(all, func(st stored) bool { return st.host != p.host }) {
			all = slices.DeleteFunc(all, func(st stored) bool { return st.host == p.host })
		}
		if slices.Contains(free, w.to) {
			free = slices.Insert(slices.DeleteFunc(free, func(q *process) bool { return q == w.to }), 0, w.to)
			if !slices.ContainsFunc(all, func(st stored) bool { return a.survival.apart[[2]*host{st.host, w.to.host}] }) {
				free = free[:1]
			}
		}
	}
	for i, st := range all {
		for _, q := range free {
			if q.host == st.host {
				return q, st, nil
			}
		}
		if i+1 < len(all) && all[i+1].before(st.version) && a.survival.sizes[r] <= sentSoon && a.hearsOf(st.host, 3*control.Beat(a.job.Silence)) {
			break // who has only an older one may be about to be lost: why else has it not got this one?
		}
	}
	if len(free) > 0 && len(all) == 0 {
		return free[0], stored{}, nil
	}
	for _, st := range all {
		at := slices.IndexFunc(free, func(q *process) bool { return q.host == a.survival.fetching[r] })
		if at < 0 {
			at = slices.IndexFunc(free, func(q *process) bool { return !a.survival.apart[[2]*host{st.host, q.host}] })
		}
		if at >= 0 {
			return free[at], st, nil
		}
	}
	if len(free) > 0 {
		return free[0], all[0], errApart
	}
	a.refill()
	how, none := a.sparesFail()
	switch {
	case a.awaited(p), how != "" && !none:
		return nil, stored{}, nil
	case none:
		return nil, stored{}, fmt.Errorf("there is no spare process left for it, and none can be started: %s", how)
	}
	return nil, stored{}, errors.New("there is no spare process left for it (--spares)")
}

// errApart: between all hosts in question a copy could not be sent before.
var errApart = errors.New("its state cannot be sent to a host with a spare process")

// sentSoon is the state that is sent to another host rather than that its rank goes on from an
// older one that is there, in bytes.
const sentSoon = 1 << 20

// settleIn has the stranded ranks go on in targets, by rank, from what is stored there.
func (a *Agent) settleIn(targets map[int]*process, stores map[int]stored) {
	s := &a.survival
	s.epoch++
	s.changed = time.Now()
	place := control.Place{Epoch: s.epoch, Lost: s.lost}
	s.lost = nil
	gone := s.stranded
	s.stranded = nil
	entry := ledger.Recovered{Epoch: s.epoch, Lost: slices.Clone(place.Lost)}
	for _, x := range gone {
		place.Lost = append(place.Lost, x.p.index)
		entry.Lost = append(entry.Lost, x.p.index)
		ranks := x.p.ranks
		x.p.ranks = nil
		for _, r := range ranks {
			delete(s.fetching, r)
			a.broughtAll(r)
			s.stored[r] = slices.DeleteFunc(s.stored[r], func(st stored) bool { return stores[r].before(st.version) }) // it may go another way now
			to := targets[r]
			to.ranks = []int{r}
			a.signAs(to, r)
			st := stores[r]
			entry.Ranks = append(entry.Ranks, ledger.Revived{Rank: r, Process: to.index, From: ledger.Version{Epoch: st.epoch, Number: st.number}, File: st.file})
			place.Ranks = append(place.Ranks, control.Placement{Rank: r, Process: to.index})
			a.emitOf(to, events.Event{Kind: events.RankMoved, Rank: new(r), Text: x.why.text, Moved: &events.Moved{From: x.p.index, Epoch: s.epoch, Lost: true, Snapshot: stores[r].number}})
			from := "from the beginning"
			s.past[r] = append(s.past[r], s.epoch)
			s.settling[r] = s.epoch
			s.homes[control.Life{Rank: r, Epoch: s.epoch}] = to.host
			s.since[r] = since{s.epoch, stores[r].version}
			if st := stores[r]; st.file != "" {
				from = fmt.Sprintf("from snapshot %d", st.number)
			}
			a.warn("%s: rank %d goes on %s in process %d%s", x.why.text, r, from, to.index, a.onHost(to))
		}
	}
	a.record(ledger.Entry{Recovered: &entry})
	adopts := func(q *process) bool { return len(q.ranks) == 1 && targets[q.ranks[0]] == q }
	a.tellMembers(control.Message{Place: &place}, adopts)
	for _, q := range a.members() {
		if adopts(q) {
			r := q.ranks[0]
			q.send(control.Message{Adopt: &control.Adopt{Rank: r, Epoch: s.epoch, Snapshot: stores[r].file, Number: stores[r].number, Covered: stores[r].file != "" && !s.covered[r].before(stores[r].version), Lives: a.livesOf(r, stores[r].epoch), Place: place}})
		}
	}
	a.voidMaps()
	a.settledIn(gone, place.Ranks)
	epoch := s.epoch
	a.after(refillLater, func() {
		maps.DeleteFunc(s.settling, func(_ int, recovered uint32) bool { return recovered <= epoch })
		a.refill()
	})
}

// refillLater is for how long at most processes are not started while ranks are recovered.
const refillLater = 500 * time.Millisecond

// livesOf is the epochs in which the lives of rank r began, the newest first, back to that
// which began in an epoch.
func (a *Agent) livesOf(r int, back uint32) []uint32 {
	lives := append([]uint32{1}, a.survival.past[r]...)
	lives = slices.DeleteFunc(lives, func(epoch uint32) bool { return epoch < back })
	slices.Reverse(lives)
	return lives
}

// breakMoves ends the moves from and to p, which has died. Where the rank is cannot be
// known: it may have left, and not have come whole. So the other end is killed, and is
// lost from now on; the rank goes on from its last snapshot.
func (a *Agent) breakMoves(p *process, why string) {
	for _, m := range a.survival.moving {
		other := m.to
		switch p {
		case m.from:
		case m.to:
			other = m.from
		default:
			continue
		}
		a.condemn(other)
		if m.came {
			a.placed(m.rank, m.to) // or the policy would have it recovered from where it is no more
		} else {
			a.survival.void = append(a.survival.void, m.epoch)
			a.record(ledger.Entry{Void: &ledger.Void{Epoch: m.epoch}})
		}
		a.endMove(m, fmt.Errorf("a process that takes part has died: %s", why))
		if other.exited {
			continue
		}
		a.detail("process %d is ended too: a move between the two was not finished", other.index)
		other.kill(syscall.SIGKILL)
		if len(other.ranks) == 0 {
			a.survival.lost = append(a.survival.lost, other.index)
		}
	}
}

// condemn notes that p is being killed. The next head, if there is one before that is done, kills it, too.
func (a *Agent) condemn(p *process) {
	if !p.condemned {
		p.condemned = true
		a.record(ledger.Entry{Condemned: &ledger.Condemned{Process: p.index}})
	}
}

// voidMaps has all told that the maps of moves which have come to nothing are those
// before them: so that none is missing.
func (a *Agent) voidMaps() {
	for _, n := range a.survival.void {
		a.tellMembers(control.Message{Place: &control.Place{Epoch: n}}, nil)
	}
	a.survival.void = nil
}
