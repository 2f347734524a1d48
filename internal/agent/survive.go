package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
)

// Ranks come and go: here is what the first agent does about it. The map is who has
// which of process.ranks; each change is a new epoch, which all processes are told.

// survival is what the agent knows of it. Owned by loop.
type survival struct {
	epoch  uint32
	lives  map[int]int      // by rank: how often it was recovered since its last snapshot
	moving map[int]*move    // by rank
	past   map[int][]uint32 // by rank: the epochs in which its lives began, but for the first

	stored      map[int][]stored // by rank: where snapshots of it are
	covered     map[int]version  // by rank: what others have forgotten what it had before
	copied      bool             // processes were told to wait until their snapshots are covered
	stranded    []stranded
	fetching    map[int]*host // by rank: where a copy is being sent for it to go on
	fetchedFrom map[int]*host
	since       map[int]since     // by rank, if it was recovered
	apart       map[[2]*host]bool // the first could not send copies to the second
	alone       map[*host]bool    // was said to have no buddy
}

// A move is one that goes on.
type move struct {
	rank     int
	from, to *process
	epoch    uint32
	began    time.Time
	told     func(error) // who asked for it
}

func newSurvival() survival {
	return survival{epoch: 1, lives: map[int]int{}, moving: map[int]*move{}, past: map[int][]uint32{},
		stored: map[int][]stored{}, covered: map[int]version{}, fetching: map[int]*host{}, fetchedFrom: map[int]*host{}, since: map[int]since{},
		apart: map[[2]*host]bool{}, alone: map[*host]bool{}}
}

// How often a rank may be recovered without reaching a snapshot, and how long a move
// may take until its rank has left.
const (
	livesMost    = 8
	movePatience = 10 * time.Second
	moveTime     = movePatience + 20*time.Second // for its state to arrive, too
)

// roomFor is how many processes more than it began with a job may come to have.
func (a *Agent) roomFor() int {
	if a.job.Options.Survive == "none" {
		return 0
	}
	return 4096
}

// startOf is what a process that begins is told, but for which it is.
func (a *Agent) startOf() control.Start {
	all := make([]control.Process, len(a.processes))
	for i, p := range a.processes {
		all[i] = a.about(p)
	}
	a.survival.copied = a.copied()
	return control.Start{Copied: a.survival.copied, Job: a.job.Name, Processes: all, Room: a.roomFor() - (len(all) - a.first), Epoch: a.survival.epoch}
}

func (a *Agent) about(p *process) control.Process {
	q := control.Process{Host: p.host.name, Cores: p.host.cores, Slot: p.slot, Ranks: p.ranks, Addrs: p.addrs}
	if p.exited || p.judged {
		q.Addrs = nil
	}
	return q
}

// survives tells whether the job goes on though p has died.
func (a *Agent) survives(p *process) bool {
	st := p.status
	return a.job.Options.Survive == "crashes" && a.toldStart && a.interrupts == 0 && !a.mourning && p.hello != nil && !p.failed &&
		st.Signaled() && !(st.Signal() == syscall.SIGPIPE && p.unread())
}

// recover has the ranks of p, which has died, go on in spare processes.
func (a *Agent) recover(p *process) {
	a.strand(verdict{code: exitCode(p.status), by: p, died: true, text: a.obituary(p)}, p)
	a.refill()
}

// settleIn has the stranded ranks go on in targets, by rank, from what is stored there.
func (a *Agent) settleIn(targets map[int]*process, stores map[int]stored) {
	s := &a.survival
	s.epoch++
	place := control.Place{Epoch: s.epoch}
	for _, x := range s.stranded {
		place.Lost = append(place.Lost, x.p.index)
		ranks := x.p.ranks
		x.p.ranks = nil
		for _, r := range ranks {
			delete(x.p.finished, r)
			delete(s.fetching, r)
			to := targets[r]
			to.ranks = []int{r}
			place.Ranks = append(place.Ranks, control.Placement{Rank: r, Process: to.index})
			a.emitOf(to, events.Event{Kind: events.RankMoved, Rank: new(r), Text: x.why.text, Moved: &events.Moved{From: x.p.index, Epoch: s.epoch, Lost: true}})
			from := "from the beginning"
			s.past[r] = append(s.past[r], s.epoch)
			s.since[r] = since{s.epoch, stores[r].version}
			if st := stores[r]; st.file != "" {
				from = fmt.Sprintf("from snapshot %d", st.number)
			}
			a.warn("%s: rank %d goes on %s in process %d%s", x.why.text, r, from, to.index, a.onHost(to))
		}
	}
	s.stranded = nil
	for _, q := range a.members() {
		own := place
		adopts := len(q.ranks) == 1 && targets[q.ranks[0]] == q
		if !adopts {
			q.send(control.Message{Place: &own})
			continue
		}
		r := q.ranks[0]
		q.send(control.Message{Adopt: &control.Adopt{Rank: r, Epoch: s.epoch, Snapshot: stores[r].file, Lives: a.livesOf(r), Place: place}})
	}
}

// livesOf is the epochs in which the lives of rank r began, the newest first.
func (a *Agent) livesOf(r int) []uint32 {
	lives := append([]uint32{1}, a.survival.past[r]...)
	slices.Reverse(lives)
	return lives
}

// spareFor is a process without a rank that can take one of p; nil if there is none.
func (a *Agent) spareFor(p *process, taken map[int]*process) *process {
	if all := a.sparesFor(p, taken); len(all) > 0 {
		return all[0]
	}
	return nil
}

// sparesFor is all such, those on the host of p first.
func (a *Agent) sparesFor(p *process, taken map[int]*process) (all []*process) {
	near := 0
	for _, q := range a.processes {
		free := len(q.ranks) == 0 && q.ready && q.joined && !q.exited && !q.judged && !q.linkEnded && q != p && q.prog == p.prog
		for _, t := range taken {
			free = free && t != q
		}
		for _, m := range a.survival.moving {
			free = free && m.to != q
		}
		switch {
		case free && q.host == p.host:
			all = slices.Insert(all, near, q)
			near++
		case free:
			all = append(all, q)
		}
	}
	return all
}

// refill starts processes until there are as many spares as the job wants, or ranks that
// need one.
func (a *Agent) refill() {
	spares, want := 0, a.job.Spares
	need := 0
	for _, x := range a.survival.stranded {
		need += len(x.p.ranks)
	}
	if want > 0 {
		want = max(want, need)
	}
	for _, q := range a.processes {
		if len(q.ranks) == 0 && !q.exited && !q.judged && !q.linkEnded {
			spares++
		}
	}
	for ; spares < want && len(a.processes) < a.first+a.roomFor() && !a.ending; spares++ {
		var h *host
		for _, other := range a.hosts {
			if other.able() && (h == nil || a.sparesOn(other) < a.sparesOn(h)) {
				h = other
			}
		}
		if h == nil {
			return
		}
		p := &process{index: len(a.processes), prog: a.processes[0].prog, host: h, slot: len(h.processes), path: a.processes[0].path, finished: map[int]control.RankReport{}}
		if err := a.outputOf(p, a.screens); err != nil {
			a.warn("start a spare process: %v", err)
			return
		}
		a.processes = append(a.processes, p)
		all := a.processes
		a.known.Store(&all)
		h.processes = append(h.processes, p.index)
		a.running++
		a.emitOf(p, events.Event{Kind: events.ProcessAdded})
		if err := h.place.spawn(p); err != nil {
			a.forked(p, 0, err)
		}
	}
}

func (a *Agent) sparesOn(h *host) (n int) {
	for _, i := range h.processes {
		if q := a.processes[i]; len(q.ranks) == 0 && !q.exited {
			n++
		}
	}
	return n
}

// joinLate has p, which was started after the others, take part.
func (a *Agent) joinLate(p *process) {
	for _, q := range a.members() {
		if q != p {
			q.send(control.Message{Meet: &control.Meet{Index: p.index, Process: a.about(p)}})
		}
	}
	start := a.startOf()
	start.Process = p.index
	p.send(control.Message{Start: &start})
	p.joined = true
	a.goOn()
	a.letGo() // all may have finished meanwhile
}

// members is the processes that take part. Others are told how things stand when they
// begin to.
func (a *Agent) members() []*process {
	return slices.DeleteFunc(a.everyone(), func(p *process) bool { return !p.joined })
}

// saved is told that there is a snapshot.
func (a *Agent) saved(p *process, s control.Saved) {
	if !slices.Contains(p.ranks, s.Rank) || filepath.Dir(s.File) == "" {
		return
	}
	a.savedOn(p, s)
	delete(a.survival.lives, s.Rank)
}

// move begins to move a rank to a spare process on a host, or on any if that is
// empty; told is called when it has ended.
func (a *Agent) move(rank int, host string, told func(error)) {
	from := a.processOf(rank)
	switch {
	case from == nil:
		told(fmt.Errorf("there is no rank %d", rank))
		return
	case a.job.Options.Survive == "none":
		told(errors.New("the job runs with --survive none: its ranks cannot be moved"))
		return
	case !a.toldStart || a.ending:
		told(errors.New("the job has not started yet, or is ending"))
		return
	case a.survival.moving[rank] != nil:
		told(fmt.Errorf("rank %d is being moved already", rank))
		return
	case len(from.finished) > 0:
		told(fmt.Errorf("rank %d has finished", rank))
		return
	}
	to := a.spareOn(from, host)
	if to == nil {
		where := ""
		if host != "" {
			where = " on host " + host
		}
		told(fmt.Errorf("there is no spare process%s: start the job with --spares", where))
		return
	}
	s := &a.survival
	s.epoch++
	m := &move{rank: rank, from: from, to: to, epoch: s.epoch, began: time.Now(), told: told}
	s.moving[rank] = m
	from.send(control.Message{Depart: &control.Depart{Rank: rank, To: to.index, Epoch: m.epoch, Patience: movePatience}})
}

// spareOn is a spare process for a rank of p on a host; on any if that is empty.
func (a *Agent) spareOn(p *process, host string) *process {
	if host == "" {
		return a.spareFor(p, nil)
	}
	for _, h := range a.hosts {
		if h.name == host {
			twin := *p
			twin.host = h
			if s := a.spareFor(&twin, map[int]*process{-1: p}); s != nil && s.host == h {
				return s
			}
		}
	}
	return nil
}

func (a *Agent) processOf(rank int) *process {
	for _, p := range a.processes {
		if slices.Contains(p.ranks, rank) {
			return p
		}
	}
	return nil
}

// arrived is told that a rank goes on in p.
func (a *Agent) arrived(p *process, m control.Arrived) {
	mv := a.survival.moving[m.Rank]
	if mv != nil && mv.to == p && mv.epoch == m.Epoch && !m.Whole {
		mv.from.ranks = slices.DeleteFunc(mv.from.ranks, func(r int) bool { return r == m.Rank })
		p.ranks = []int{m.Rank}
		a.survival.past[m.Rank] = append(a.survival.past[m.Rank], m.Epoch)
		a.emitOf(p, events.Event{Kind: events.RankMoved, Rank: new(m.Rank), Text: "it was moved", Moved: &events.Moved{From: mv.from.index, Epoch: m.Epoch}})
		for _, q := range a.members() {
			q.send(control.Message{Place: &control.Place{Epoch: m.Epoch, Ranks: []control.Placement{{Rank: m.Rank, Process: p.index}}}})
		}
		return
	}
	if !m.Whole || !slices.Contains(p.ranks, m.Rank) {
		return
	}
	a.emitOf(p, events.Event{Kind: events.RankArrived, Rank: new(m.Rank), Arrived: &events.Arrived{Bytes: m.Bytes, Stood: m.Stood}})
	a.detail("rank %d goes on in process %d: %d bytes of state, it stood still for %v", m.Rank, p.index, m.Bytes, time.Duration(m.Stood))
	if mv != nil {
		a.endMove(mv, nil)
	}
}

// stayed is told that a rank has not left.
func (a *Agent) stayed(p *process, m control.Stayed) {
	if mv := a.survival.moving[m.Rank]; mv != nil && mv.from == p && mv.epoch == m.Epoch {
		a.emitOf(p, events.Event{Kind: events.RankStayed, Rank: new(m.Rank), Text: m.Reason})
		// The epoch is not used: an empty map, so that none is missing.
		for _, q := range a.members() {
			q.send(control.Message{Place: &control.Place{Epoch: m.Epoch}})
		}
		a.endMove(mv, errors.New(m.Reason))
	}
}

func (a *Agent) endMove(m *move, err error) {
	delete(a.survival.moving, m.rank)
	m.told(err)
}

// spawn starts p on this host.
func (c *crew) spawn(p *process) error {
	a := c.owner.(local).a // a deputy's crew is not asked this way
	m := &child{index: p.index, prog: p.prog}
	err := m.resolve()
	if err != nil {
		return err
	}
	if m.credentials, err = a.credentialsOf(p); err != nil {
		return err
	}
	if err := a.crew.add(m, nil, p.streams, [2]*os.File{}); err != nil {
		return err
	}
	a.crew.more(m)
	return nil
}
