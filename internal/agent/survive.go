package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
)

// Ranks come and go: here is what the first agent does about it. The map is who has
// which of process.ranks; each change is a new epoch, which all processes are told.

// survival is what the agent knows of it. Owned by loop.
type survival struct {
	epoch   uint32
	lives   map[int]int            // by rank: how often it was recovered since its last snapshot
	moving  map[int]*move          // by rank
	sizes   map[int]int64          // by rank: bytes of its state
	past    map[int][]uint32       // by rank: the epochs in which its lives began, but for the first, back to that which is covered
	homes   map[control.Life]*host // where each of them began
	lost    []int                  // processes that are being killed, as the next map says
	void    []uint32               // epochs of moves that came to nothing, of which the processes are still to be told
	changed time.Time              // when a rank moved, was recovered, or was declared failed, last
	loss    *verdict               // how the first process was lost that was declared failed; nil: none was

	stored      map[int][]stored // by rank: where snapshots of it are
	covered     map[int]version  // by rank: what others have forgotten what it had before
	failures    failures
	copied      bool // processes were told to wait until their snapshots are covered
	stranded    []stranded
	settling    map[int]uint32 // by rank: the epoch in which it was recovered, until it goes on
	wanted      map[int]wish   // by rank: where it is to go on, as the policy has decided
	fetching    map[int]*host  // by rank: where a copy is being sent for it to go on
	fetchedFrom map[int]*host
	since       map[int]since     // by rank, if it was recovered
	apart       map[[2]*host]bool // the first could not send copies to the second
	alone       map[*host]bool    // its agent was told that it has no buddy
	warned      map[*host]bool    // it was said that nobody has copies of what is saved there
	witnesses   map[*host][]*host // its buddies, ever: who knows choices that were made there
	informed    map[*host]*host   // that of them which has said last that it knows all; none: nothing was chosen there, or another head was told
	bringing    map[bring]bool    // choices that are sent to where a rank will go on; true: they are there
}

// A move is one that goes on.
type move struct {
	rank     int
	from, to *process
	epoch    uint32
	came     bool        // the rank is in to, though perhaps not all of its state
	told     func(error) // who asked for it
	stood    time.Duration
	planned  bool           // by the policy, which knows then where the rank is
	asking   map[*host]bool // they wait for a map, perhaps for this one; nil: none do
}

func newSurvival() survival {
	return survival{epoch: 1, lives: map[int]int{}, moving: map[int]*move{}, sizes: map[int]int64{}, past: map[int][]uint32{}, homes: map[control.Life]*host{},
		stored: map[int][]stored{}, covered: map[int]version{}, wanted: map[int]wish{}, fetching: map[int]*host{}, fetchedFrom: map[int]*host{},
		since: map[int]since{}, settling: map[int]uint32{}, apart: map[[2]*host]bool{}, alone: map[*host]bool{}, warned: map[*host]bool{}, witnesses: map[*host][]*host{}, informed: map[*host]*host{}, bringing: map[bring]bool{}}
}

// How often a rank may be recovered without reaching a snapshot, and how long a move
// may take until its rank has left.
const (
	livesMost    = 16
	movePatience = 10 * time.Second
	moveTime     = movePatience + 20*time.Second // for its state to arrive, too
)

// roomFor is how many processes more than it began with a job may come to have.
func (a *Agent) roomFor() int {
	if a.job.Options.Survive == "none" || a.job.Options.Survive == "report" {
		return 0
	}
	return 4096
}

// startOf is what a process that begins is told.
func (a *Agent) startOf() control.Start {
	all := make([]control.Process, len(a.processes))
	for i, p := range a.processes {
		all[i] = a.about(p)
	}
	a.survival.copied = a.copied()
	return control.Start{Trace: a.traceOf(), Copied: a.survival.copied, Processes: all, Ranked: a.first - a.job.Spares, Room: a.roomFor() - (len(all) - a.first), Epoch: a.survival.settled()}
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
	q := control.Process{Host: p.host.name, Cores: p.host.cores, Ranks: p.ranks, Addrs: p.addrs, Router: p.host.router}
	if p.exited || p.judged {
		q.Addrs = nil
	}
	return q
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
		free := a.free(q) && q != p && q.prog == p.prog
		for _, t := range taken {
			free = free && t != q
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

// free tells whether q can take a rank.
func (a *Agent) free(q *process) bool {
	return len(q.ranks) == 0 && q.joined && !q.exited && !q.judged && !q.linkEnded && !q.condemned && q.stop.why == "" && !a.reserved(q)
}

// reserved tells whether a rank is on its way to q.
func (a *Agent) reserved(q *process) bool {
	for _, m := range a.survival.moving {
		if m.to == q {
			return true
		}
	}
	return false
}

// awaited tells whether a process may yet become free that can take a rank of p: it
// starts, or is to take a rank that may not come, or stands still.
func (a *Agent) awaited(p *process) bool {
	return slices.ContainsFunc(a.processes, func(q *process) bool {
		return len(q.ranks) == 0 && q != p && q.prog == p.prog && !q.exited && !q.judged && !q.linkEnded && !q.condemned && !a.free(q)
	})
}

// refill starts processes until there are as many spares as the job wants, or ranks that
// need one. While ranks are recovered, for whom there are enough, it does not: to start a process takes
// a core for as long as a recovery.
func (a *Agent) refill() {
	if time.Now().Before(a.survival.failures.until) {
		return
	}
	fewer := func(h, than *host) bool {
		if failed := a.survival.failures.on; h == failed || than == failed {
			return than == failed // another may be able to
		}
		if a.cordoned(h) != a.cordoned(than) {
			return a.cordoned(than) // no rank may go there
		}
		return a.sparesOn(h) < a.sparesOn(than)
	}
	spares, need := map[*Program]int{}, map[*Program]int{}
	total, needed := 0, 0
	for _, x := range a.survival.stranded {
		need[x.p.prog] += len(x.p.ranks)
		needed += len(x.p.ranks)
	}
	if needed == 0 && len(a.survival.settling) > 0 {
		return
	}
	for _, q := range a.processes {
		// One that stands still is of no use to ranks that need one now.
		if len(q.ranks) == 0 && !q.exited && !q.judged && !q.linkEnded && !q.condemned && !a.reserved(q) && (needed == 0 || q.stop.why == "") {
			spares[q.prog]++
			total++
		}
	}
	lacks := func() *process { // of whose program one is to be started
		least := a.processes[0]
		for _, q := range a.processes {
			if a.job.Spares > 0 && spares[q.prog] < need[q.prog] {
				return q
			}
			if spares[q.prog] < spares[least.prog] {
				least = q
			}
		}
		if total < a.job.Spares {
			return least
		}
		return nil
	}
	for like := lacks(); like != nil && len(a.processes) < a.first+a.roomFor() && !a.ending && !a.mourning && a.interrupts == 0; like = lacks() {
		spares[like.prog]++
		total++
		var h *host
		for _, other := range a.hosts {
			if other.able() && (h == nil || fewer(other, h)) {
				h = other
			}
		}
		if h == nil {
			return
		}
		p, err := a.newSpare(h, like)
		if err != nil {
			a.warn("start a spare process: %v", err)
			return
		}
		if err := h.place.spawn(p); err != nil {
			a.forked(p, 0, err)
			return
		}
	}
}

// failures is of spare processes that could not be started, or ended before they had joined.
type failures struct {
	row   int       // so many, one after the other
	until time.Time // then the next is tried
	how   string    // the last one
	on    *host     // where that was
}

// again has the next be tried now, for who needs it, however many have failed.
func (f *failures) again() {
	if f.row >= failuresInARow {
		f.row, f.until = failuresInARow-1, time.Time{}
	}
}

// After a spare process that failed the next is tried, and later after each in a row. Who needs one waits for
// so many; then there is none.
const (
	refillPause    = 200 * time.Millisecond
	refillSeldom   = 30 * time.Second
	failuresInARow = 4
)

// spareFailed is told how the spare process p failed, which the ranks do without.
func (a *Agent) spareFailed(p *process, how string) {
	f := &a.survival.failures
	now := time.Now()
	if now.Before(f.until) { // one that was tried with the last
		return
	}
	if f.row++; f.row == 2 {
		a.warn("no spare process can be started: %s; the job goes on without, and tries again", how)
	}
	pause := min(refillPause<<min(f.row-1, 10), refillSeldom)
	f.how, f.on, f.until = how, p.host, now.Add(pause)
	a.after(pause, func() {
		a.refill()
		a.goOn()
	})
	a.after(0, a.goOn) // which may be what tries
}

// sparesFail is how the last spare process failed; none: so many did one after the other that there will be none.
func (a *Agent) sparesFail() (how string, none bool) {
	f := a.survival.failures
	return f.how, f.row >= failuresInARow
}

// newSpare is one more process on h, of the program of another, which is still to be started.
func (a *Agent) newSpare(h *host, like *process) (*process, error) {
	p := &process{index: len(a.processes), prog: like.prog, host: h, slot: a.slotsUsed(h.name), finished: map[int]control.RankReport{}}
	if err := a.outputOf(p); err != nil {
		return nil, err
	}
	a.record(ledger.Entry{Added: new(a.added(p))})
	a.processes = append(a.processes, p)
	h.processes = append(h.processes, p.index)
	a.publish()
	a.running++
	a.emitOf(p, events.Event{Kind: events.ProcessAdded})
	return p, nil
}

// slotsUsed is how many processes there have been on hosts of a name, of which there may
// be several: one that was lost and added again.
func (a *Agent) slotsUsed(name string) (n int) {
	for _, h := range a.hosts {
		if h.name == name {
			n += len(h.processes)
		}
	}
	return n
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
	a.tellMembers(control.Message{Meet: &control.Meet{Index: p.index, Process: a.about(p)}}, func(q *process) bool { return q == p })
	start := a.startOf()
	p.send(control.Message{Start: &start})
	p.joined = true
	a.survival.failures = failures{}
	for n := start.Epoch + 1; n <= a.survival.epoch; n++ {
		if !a.survival.open(n) { // where the ranks are by it is in Start
			p.send(control.Message{Place: &control.Place{Epoch: n}})
		}
	}
	if a.reader.reading {
		a.tellToRead(p)
	}
	a.memberCame(p)
	a.goOn()
	a.letGo() // all may have finished meanwhile
}

// saved is told that there is a snapshot.
func (a *Agent) saved(p *process, s control.Saved) {
	if !slices.Contains(p.ranks, s.Rank) {
		return // it has left, and who took it has told
	}
	a.savedOn(p, s)
	delete(a.survival.lives, s.Rank)
	a.survival.sizes[s.Rank] = s.Bytes
	a.tellState(s.Rank, time.Now())
}

// move begins to move a rank to a spare process on a host, or on any if that is
// empty; told is called when it has ended. Hosts from which the operator keeps ranks off get none.
func (a *Agent) move(rank int, host string, told func(error)) {
	if err := a.movable(rank); err != nil {
		told(err)
		return
	}
	from, host := a.processOf(rank), a.called(host)
	to := a.spareOn(from, host)
	if to == nil {
		told(a.noSpare(from, host))
		return
	}
	a.moveTo(rank, from, to, told)
}

// noSpare is why a rank of from cannot go to a host, or to any if that is empty.
func (a *Agent) noSpare(from *process, host string) error {
	if host != "" && a.hostNamed(host) == nil {
		return fmt.Errorf("the job has no host %s", host)
	}
	var on, cordoned []string
	for _, p := range a.sparesFor(from, nil) {
		names := &on
		if a.cordoned(p.host) {
			names = &cordoned
		}
		if !slices.Contains(*names, p.host.name) {
			*names = append(*names, p.host.name)
		}
	}
	switch {
	case slices.Contains(cordoned, host) || len(on) == 0 && len(cordoned) > 0:
		if host == "" {
			host = cordoned[0]
		}
		return fmt.Errorf("host %s is to get no rank: it was cordoned, drained or left; mpivrun uncordon %s ends that", host, host)
	case len(on) > 0:
		return fmt.Errorf("there is no spare process on host %s, but on %s", host, strings.Join(on, ", "))
	case a.survival.failures.how != "":
		return fmt.Errorf("there is no spare process, and none can be started: %s", a.survival.failures.how)
	case a.job.Spares > 0:
		return errors.New("no spare process is free now: those that are used up are being started again, or start the job with more --spares")
	}
	return errors.New("there is no spare process: start the job with --spares")
}

// movable is why a rank cannot be moved now; nil: it can.
func (a *Agent) movable(rank int) error {
	from := a.processOf(rank)
	switch {
	case from == nil:
		return fmt.Errorf("there is no rank %d", rank)
	case a.job.Options.Survive == "none":
		return errors.New("the job runs with --survive none: its ranks cannot be moved")
	case a.job.Options.Survive == "report":
		return errors.New("the job runs with --survive report: its ranks cannot be moved")
	case !a.toldStart || a.ending:
		return errors.New("the job has not started yet, or is ending")
	case a.survival.moving[rank] != nil:
		return fmt.Errorf("rank %d is being moved already", rank)
	case from.exited || from.judged || from.condemned:
		return fmt.Errorf("rank %d is being recovered: its process has died", rank)
	case from.hasFinished(rank):
		return fmt.Errorf("rank %d has finished", rank)
	}
	return nil
}

// moveTo begins to move a rank that can be moved to a process that is free.
func (a *Agent) moveTo(rank int, from, to *process, told func(error)) *move {
	s := &a.survival
	s.epoch++
	m := &move{rank: rank, from: from, to: to, epoch: s.epoch, told: told}
	s.moving[rank] = m
	a.record(ledger.Entry{Moving: &ledger.Moving{Rank: rank, From: from.index, To: to.index, Epoch: m.epoch}})
	a.signAs(to, rank) // before it can write
	from.send(control.Message{Depart: &control.Depart{Rank: rank, To: to.index, Epoch: m.epoch, Patience: movePatience}})
	return m
}

// spareOn is a spare process for a rank of p on a host; on any if that is empty, and rather on one that is well.
// None is on a host that is to get no rank.
func (a *Agent) spareOn(p *process, host string) *process {
	all := slices.DeleteFunc(a.sparesFor(p, nil), func(q *process) bool {
		return a.cordoned(q.host) || host != "" && q.host.name != host
	})
	at := slices.IndexFunc(all, func(q *process) bool { return a.healthy(q.host) })
	switch {
	case len(all) == 0:
		return nil
	case at < 0:
		return all[0]
	}
	return all[at]
}

// healthy tells whether ranks may come to h, as far as the policy knows.
func (a *Agent) healthy(h *host) bool { return a.policy == nil || a.policy.machine.Takes(h.name) }

// cordoned tells whether ranks are kept off h until the operator says otherwise.
func (a *Agent) cordoned(h *host) bool { return a.policy != nil && a.policy.machine.Cordoned(h.name) }

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
		a.survival.changed = time.Now()
		if m.Saved != nil {
			a.savedBefore(m.Rank, *m.Saved)
		}
		if !mv.came { // or the head before has written so
			a.came(mv)
		}
		return
	}
	if !m.Whole || !slices.Contains(p.ranks, m.Rank) {
		return
	}
	a.survival.changed = time.Now()
	if _, recovered := a.survival.settling[m.Rank]; recovered {
		delete(a.survival.settling, m.Rank)
		a.refill()
	}
	a.emitOf(p, events.Event{Kind: events.RankArrived, Rank: new(m.Rank), Arrived: &events.Arrived{Bytes: m.Bytes, Stood: m.Stood}})
	a.survival.sizes[m.Rank] = m.Bytes
	a.tellState(m.Rank, time.Time{})
	stood := ""
	if m.Stood > 0 { // it was moved, not recovered
		stood = fmt.Sprintf(", %d of them ahead of it; it stood still for %v", m.Ahead, time.Duration(m.Stood))
	}
	a.detail("rank %d goes on in process %d: %d bytes of state%s", m.Rank, p.index, m.Bytes, stood)
	if mv != nil && mv.to == p && mv.epoch == m.Epoch { // otherwise it is about to leave p, where it was recovered
		mv.stood = time.Duration(m.Stood)
		a.endMove(mv, nil)
		if !mv.planned {
			a.placed(m.Rank, p)
		}
		if w, wanted := a.survival.wanted[m.Rank]; wanted { // by who did not know that it was about to be here
			delete(a.survival.wanted, m.Rank)
			w.ended(fmt.Errorf("it had been moved to process %d%s by then", p.index, a.onHost(p)))
		}
		a.goOn() // a process is free
	}
}

// came makes the process that m goes to the one that has the rank.
func (a *Agent) came(m *move) {
	m.came = true
	a.record(ledger.Entry{Came: &ledger.Came{Epoch: m.epoch}})
	m.from.ranks = slices.DeleteFunc(slices.Clone(m.from.ranks), func(r int) bool { return r == m.rank })
	m.to.ranks = []int{m.rank}
	a.signAs(m.to, m.rank) // again, under another head than the move began
	a.survival.homes[control.Life{Rank: m.rank, Epoch: m.epoch}] = m.to.host
	a.survival.past[m.rank] = append(a.survival.past[m.rank], m.epoch)
	a.emitOf(m.to, events.Event{Kind: events.RankMoved, Rank: new(m.rank), Text: "it was moved", Moved: &events.Moved{From: m.from.index, Epoch: m.epoch}})
	a.tellMap(m)
}

// stayed is told that a rank has not left.
func (a *Agent) stayed(p *process, m control.Stayed) {
	if mv := a.survival.moving[m.Rank]; mv != nil && mv.from == p && mv.epoch == m.Epoch {
		a.emitOf(p, events.Event{Kind: events.RankStayed, Rank: new(m.Rank), Text: m.Reason})
		a.survival.void = append(a.survival.void, mv.epoch)
		a.record(ledger.Entry{Void: &ledger.Void{Epoch: mv.epoch}})
		a.endMove(mv, a.whyStayed(mv, m))
		a.voidMaps()
		a.goOn() // a process is free
	}
}

// whyStayed is why the rank of m has not left.
func (a *Agent) whyStayed(m *move, told control.Stayed) error {
	hint := ""
	if _, saved := a.survival.sizes[m.rank]; !saved && told.Unsafe {
		hint = ": does the program call State.Restore and SafePoint?"
	}
	return fmt.Errorf("rank %d stays where it is: %s%s", m.rank, told.Reason, hint)
}

func (a *Agent) endMove(m *move, err error) {
	delete(a.survival.moving, m.rank)
	if m.came {
		a.record(ledger.Entry{MoveEnded: &ledger.MoveEnded{Epoch: m.epoch}})
	}
	a.survival.changed = time.Now()
	m.told(err)
}
