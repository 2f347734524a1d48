package agent

import (
	"errors"
	"fmt"
	"os"
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
	epoch     uint32
	snapshots map[int]control.Saved // the last of each rank
	lives     map[int]int           // by rank: how often it was recovered since its last snapshot
	moving    map[int]*move         // by rank
	past      map[int][]uint32      // by rank: the epochs in which its lives began, but for the first
	waiting   []*process            // that have died, and whose ranks wait for a spare process
	lost      []int                 // processes that are being killed, as the next map says
	void      []uint32              // epochs of moves that came to nothing, of which the processes are still to be told
	changed   time.Time             // when a rank moved, or was recovered, last
}

// A move is one that goes on.
type move struct {
	rank     int
	from, to *process
	epoch    uint32
	began    time.Time
	came     bool        // the rank is in to, though perhaps not all of its state
	told     func(error) // who asked for it
}

func newSurvival() survival {
	return survival{epoch: 1, snapshots: map[int]control.Saved{}, lives: map[int]int{}, moving: map[int]*move{}, past: map[int][]uint32{}}
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
	return control.Start{Job: a.job.Name, Processes: all, Room: a.roomFor() - (len(all) - a.first), Epoch: a.survival.settled()}
}

// settled is the newest map such that all to it have been told.
func (s *survival) settled() uint32 {
	n := s.epoch
	for _, m := range s.moving {
		if !m.came {
			n = min(n, m.epoch-1)
		}
	}
	for _, epoch := range s.void {
		n = min(n, epoch-1)
	}
	return n
}

// open tells whether the map of an epoch is still to be told.
func (s *survival) open(epoch uint32) bool {
	for _, m := range s.moving {
		if !m.came && m.epoch == epoch {
			return true
		}
	}
	return slices.Contains(s.void, epoch)
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
	why := a.obituary(p)
	a.breakMoves(p, why)
	targets := make(map[int]*process)
	for _, r := range p.ranks {
		delete(p.finished, r)
		if targets[r] = a.spareFor(p, targets); targets[r] == nil {
			if len(p.ranks) > a.job.Spares || len(a.processes) >= a.first+a.roomFor() {
				a.mourn(verdict{code: exitCode(p.status), by: p, died: true, text: why + "; there is no spare process left for it (--spares)"})
				return
			}
			a.detail("%s; no spare process is ready yet", why)
			a.survival.waiting = append(a.survival.waiting, p)
			a.refill()
			return
		}
	}
	s := &a.survival
	s.epoch++
	s.changed = time.Now()
	place := control.Place{Epoch: s.epoch, Lost: append(s.lost, p.index)}
	s.lost = nil
	ranks := p.ranks
	p.ranks = nil
	for _, r := range ranks {
		if s.lives[r]++; s.lives[r] > livesMost {
			a.mourn(verdict{code: exitCode(p.status), by: p, died: true, text: fmt.Sprintf("%s: %d times now since rank %d was last saved, so another life will not help", why, s.lives[r], r)})
			return
		}
		to := targets[r]
		to.ranks = []int{r}
		place.Ranks = append(place.Ranks, control.Placement{Rank: r, Process: to.index})
		a.emitOf(to, events.Event{Kind: events.RankMoved, Rank: new(r), Text: why, Moved: &events.Moved{From: p.index, Epoch: s.epoch, Lost: true}})
		s.past[r] = append(s.past[r], s.epoch)
		from := "from the beginning"
		if snap, ok := s.snapshots[r]; ok {
			from = fmt.Sprintf("from snapshot %d", snap.Number)
		}
		a.warn("%s: rank %d goes on %s in process %d%s", why, r, from, to.index, a.onHost(to))
	}
	for _, q := range a.members() {
		own := place
		adopts := len(q.ranks) == 1 && targets[q.ranks[0]] == q
		if !adopts {
			q.send(control.Message{Place: &own})
			continue
		}
		r := q.ranks[0]
		q.send(control.Message{Adopt: &control.Adopt{Rank: r, Epoch: s.epoch, Snapshot: s.snapshots[r].File, Lives: a.livesOf(r), Place: place}})
	}
	a.voidMaps()
	a.refill()
}

// livesOf is the epochs in which the lives of rank r began, the newest first.
func (a *Agent) livesOf(r int) []uint32 {
	lives := append([]uint32{1}, a.survival.past[r]...)
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
		a.endMove(m, fmt.Errorf("a process that takes part has died: %s", why))
		if !m.came {
			a.survival.void = append(a.survival.void, m.epoch)
		}
		if other.exited {
			continue
		}
		a.detail("process %d is ended too: a move between the two was not finished", other.index)
		other.condemned = true
		other.kill(syscall.SIGKILL)
		if len(other.ranks) == 0 {
			a.survival.lost = append(a.survival.lost, other.index)
		}
	}
}

// voidMaps has all told that the maps of moves which have come to nothing are those
// before them: so that none is missing.
func (a *Agent) voidMaps() {
	for _, n := range a.survival.void {
		for _, q := range a.members() {
			q.send(control.Message{Place: &control.Place{Epoch: n}})
		}
	}
	a.survival.void = nil
}

// spareFor is a process without a rank that can take one of p; nil if there is none.
func (a *Agent) spareFor(p *process, taken map[int]*process) *process {
	var best *process
	for _, q := range a.processes {
		free := len(q.ranks) == 0 && q.joined && !q.exited && !q.judged && !q.linkEnded && !q.condemned && q != p && q.prog == p.prog
		for _, t := range taken {
			free = free && t != q
		}
		for _, m := range a.survival.moving {
			free = free && m.to != q
		}
		if free && (best == nil || best.host != p.host && q.host == p.host) {
			best = q
		}
	}
	return best
}

// refill starts processes until there are as many spares as the job wants.
func (a *Agent) refill() {
	spares := 0
	for _, q := range a.processes {
		if len(q.ranks) == 0 && !q.exited && !q.judged && !q.linkEnded && !q.condemned {
			spares++
		}
	}
	for ; spares < a.job.Spares && len(a.processes) < a.first+a.roomFor() && !a.ending; spares++ {
		h := a.hosts[0]
		for _, other := range a.hosts {
			if !other.lost && other.place != nil && len(other.processes) > 0 && a.sparesOn(other) < a.sparesOn(h) {
				h = other
			}
		}
		p := &process{index: len(a.processes), prog: a.processes[0].prog, host: h, slot: len(h.processes), path: a.processes[0].path, finished: map[int]control.RankReport{}}
		if err := a.outputOf(p, a.screens); err != nil {
			a.warn("start a spare process: %v", err)
			return
		}
		a.processes = append(a.processes, p)
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
	for n := start.Epoch + 1; n <= a.survival.epoch; n++ {
		if !a.survival.open(n) { // where the ranks are by it is in Start
			p.send(control.Message{Place: &control.Place{Epoch: n}})
		}
	}
	if a.reader.reading {
		a.tellToRead(p)
	}
	dead := a.survival.waiting
	a.survival.waiting = nil
	for _, q := range dead {
		a.recover(q)
	}
}

// saved is told that there is a snapshot.
func (a *Agent) saved(p *process, s control.Saved) {
	if !slices.Contains(p.ranks, s.Rank) {
		return // it has left, and who took it has told
	}
	a.survival.snapshots[s.Rank] = s
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
	case from.exited || from.condemned:
		told(fmt.Errorf("rank %d is being recovered: its process has died", rank))
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
		mv.came, a.survival.changed = true, time.Now()
		if m.Saved != nil {
			a.survival.snapshots[m.Rank] = *m.Saved
		}
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
	a.survival.changed = time.Now()
	a.emitOf(p, events.Event{Kind: events.RankArrived, Rank: new(m.Rank), Arrived: &events.Arrived{Bytes: m.Bytes, Stood: m.Stood}})
	stood := ""
	if m.Stood > 0 { // it was moved, not recovered
		stood = fmt.Sprintf(", it stood still for %v", time.Duration(m.Stood))
	}
	a.detail("rank %d goes on in process %d: %d bytes of state%s", m.Rank, p.index, m.Bytes, stood)
	if mv != nil {
		a.endMove(mv, nil)
	}
}

// stayed is told that a rank has not left.
func (a *Agent) stayed(p *process, m control.Stayed) {
	if mv := a.survival.moving[m.Rank]; mv != nil && mv.from == p && mv.epoch == m.Epoch {
		a.emitOf(p, events.Event{Kind: events.RankStayed, Rank: new(m.Rank), Text: m.Reason})
		a.survival.void = append(a.survival.void, mv.epoch)
		a.endMove(mv, errors.New(m.Reason))
		a.voidMaps()
	}
}

func (a *Agent) endMove(m *move, err error) {
	delete(a.survival.moving, m.rank)
	a.survival.changed = time.Now()
	m.told(err)
}

// spawn starts p on this host.
func (c *crew) spawn(p *process) error {
	a := c.owner.(local).a // a deputy's crew is not asked this way
	m := &child{index: p.index, prog: p.prog, path: p.path}
	var err error
	if m.credentials, err = a.credentialsOf(p); err != nil {
		return err
	}
	if err := a.crew.add(m, nil, p.streams, [2]*os.File{}); err != nil {
		return err
	}
	a.crew.more(m)
	return nil
}
