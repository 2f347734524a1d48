package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/migrate"
	"github.com/mpiv/mpiv/topology"
)

// Snapshots of the ranks in this process. A rank takes one at its safe point. Where copies
// travel to other hosts its log is put in later, when there is less of it, by the
// goroutine that asks for snapshots: see pace.

// A pending snapshot is not covered.
type pending struct {
	saved  control.Saved
	covers engine.Covers
	said   time.Time
}

// A draft is a snapshot without its log.
type draft struct {
	*engine.Draft
	saved  control.Saved
	covers engine.Covers
	state  int64 // its bytes
	since  time.Time
	waits  []engine.LoggedTo // for this part of the log

	passed uint64        // safe points, by the last look at them
	moved  time.Time     // when these had grown
	looked time.Time     // the last look
	stood  time.Duration // in which the rank did not come to another
}

// stands is how long a rank comes to no safe point until it is said to stand still: longer than most
// take to the next. What it sends to may be behind a link that is flooded.
const stands = 50 * time.Millisecond

// look is told how many safe points the rank has passed.
func (d *draft) look(passed uint64, now time.Time) {
	switch {
	case passed != d.passed || d.moved.IsZero():
		d.passed, d.moved = passed, now
	case now.Sub(d.moved) > stands:
		d.stood += now.Sub(d.looked)
	}
	d.looked = now
}

// heardOf is told that the ranks are elsewhere: what is waited for begins anew.
func (d *draft) heardOf(moved []control.Placement) {
	for _, m := range moved {
		if slices.ContainsFunc(d.waits, func(to engine.LoggedTo) bool { return int(to.Rank) == m.Rank }) {
			d.stood = time.Since(d.since)
			return
		}
	}
}

// asks is who wants snapshots of ranks here.
type asks struct {
	came chan struct{} // one element: there are some, or a draft is new

	mu  sync.Mutex // guards what follows; taken with locks of the engine held
	all []ask
}

type ask struct {
	of, from topology.Rank
	bytes    int
}

// asksMost is how many asks wait to be looked at. More are dropped: that costs only bytes.
const asksMost = 4096

func (a *asks) add(of, from topology.Rank, bytes int) {
	a.mu.Lock()
	if len(a.all) < asksMost {
		a.all = append(a.all, ask{of, from, bytes})
	}
	a.mu.Unlock()
	a.rouse()
}

func (a *asks) rouse() {
	select {
	case a.came <- struct{}{}:
	default:
	}
}

func (a *asks) take() []ask {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

// snapshotEvery is how often a rank's state is saved unless the job says otherwise, and
// lookAtDraft how often a draft's log is looked at.
const (
	snapshotEvery = 2 * time.Second
	lookAtDraft   = 5 * time.Millisecond
)

// How much of a log is worth a snapshot of its receiver, if that has less state: one that
// stays on its host, or is copied to another. What is not covered has to be sent again to a
// rank that goes on elsewhere: 4 MiB take a third of a second at 100 Mbit/s.
const (
	saveBytesHere = 1 << 20
	saveBytes     = 4 << 20
)

func (p *Process) saveTime() time.Duration {
	if every := p.options.Snapshot; every > 0 {
		return every
	}
	return snapshotEvery
}

// saveEvery asks the ranks for snapshots, and ends those that wait for their logs.
func (p *Process) saveEvery() {
	timer := time.NewTimer(p.saveTime())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.asks.came:
		case <-p.stopped:
			return
		}
		timer.Reset(p.look())
	}
}

// look does what is due of the snapshots of all ranks, and tells how long there is nothing.
func (p *Process) look() time.Duration {
	all, now := p.asks.take(), time.Now()
	pause := p.saveTime()
	for _, l := range p.livesNow() {
		again, next, err := l.look(all, now)
		if err != nil {
			p.engine.Fail(err)
		}
		if again != nil {
			p.agent.Send(control.Message{Saved: again})
		}
		pause = min(pause, next)
	}
	return pause
}

// look does what is due of the rank, and tells for how long there is nothing. again is a
// snapshot to be said again.
func (l *Life) look(all []ask, now time.Time) (again *control.Saved, pause time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range all {
		if a.of == l.Rank {
			l.pace.asked(a.from, a.bytes, now)
		}
	}
	if !now.Before(l.pace.next) {
		l.wantSave()
		l.pace.next = l.pace.turn(now) // unless one is taken before
	}
	pause = l.pace.next.Sub(now)
	if d := l.draft; d != nil {
		pause = lookAtDraft
		d.look(l.passed.Get(), now)
		if l.pace.over(d.waits, d.Logged(nil), d.since, d.stood, now) {
			err = l.endLocked(d)
		}
	}
	return l.overdueLocked(now), pause, err
}

// overdueLocked is a snapshot of which the agent should have said long ago that it is
// covered: it may not have heard of it, or not have been heard.
func (l *Life) overdueLocked(now time.Time) *control.Saved {
	if l.pending == nil || now.Sub(l.pending.said) < max(l.pace.every, time.Second) {
		return nil
	}
	l.pending.said = now
	return &l.pending.saved
}

func (l *Life) wantSave() {
	l.save.Store(true)
	l.due.Store(true)
}

// covers tells whether no snapshot waits for anything.
func (l *Life) covers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending == nil && l.draft == nil
}

// forget is told that nobody will ask for the pending snapshot. A draft comes to nothing.
func (l *Life) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending, l.draft = nil, nil
}

// covered is told by the agent that a snapshot would outlive this host.
func (p *Process) covered(m control.Covered) {
	l := p.life(topology.Rank(m.Rank))
	if l == nil || uint32(l.epoch) != m.Epoch {
		return
	}
	l.mu.Lock()
	if l.pending != nil && l.pending.saved.Number <= m.Number {
		l.Box.Covered(l.pending.covers)
		l.outlives.Store(l.pending.saved.Number)
		l.pending = nil
	}
	l.mu.Unlock()
	if l.save.Load() {
		l.due.Store(true)
	}
}

// snapshot saves the rank as it is now.
func (l *Life) snapshot(image migrate.Image, extra []byte) error {
	var err error
	if l.area == nil {
		if l.area, err = checkpoint.Create(l.file()); err != nil {
			return fmt.Errorf("make room for the snapshots of rank %d: %w", l.Rank, err)
		}
	}
	done := l.Box.Chosen()
	var marked error
	capsule, covers, err := l.Box.Draft(func() { marked = l.markChoices(done) })
	if err = errors.Join(err, marked); err != nil {
		return err
	}
	parts := append([]checkpoint.Part{{Bytes: extra}, {Bytes: image.Manifest}}, l.written.parts(image)...)
	if err := l.area.Begin(l.number, parts...); err != nil {
		return fmt.Errorf("save rank %d: %w", l.Rank, err)
	}
	if l.ahead == nil { // which watches, too
		l.written.learn(image, func(i int) int64 { return l.area.Changed(2 + i) })
	}
	d := &draft{Draft: capsule, covers: covers, state: image.Bytes(), since: time.Now()}
	d.saved = control.Saved{Rank: int(l.Rank), Epoch: uint32(l.epoch), Number: l.number, Bytes: image.Bytes(), File: l.file()}
	l.mu.Lock()
	defer l.mu.Unlock()
	var log []engine.LoggedTo
	if l.p.copied { // otherwise it is copied in memory, and waiting would spare nothing
		log = d.Logged(nil)
	}
	if d.waits = l.pace.take(d.state, log, d.since); len(d.waits) > 0 {
		l.savedChoices()
		l.draft = d
		for _, to := range d.waits {
			d.Ask(to)
		}
		l.p.asks.rouse()
		return nil
	}
	if err := l.endLocked(d); err != nil {
		return err
	}
	l.savedChoices()
	return nil
}

// endLocked puts the log into a snapshot, which is whole then, and says so.
func (l *Life) endLocked(d *draft) error {
	l.draft = nil
	capsule, err := d.Finish(l.area.Room)
	if err == nil {
		err = l.area.End(capsule)
	}
	if err != nil {
		return fmt.Errorf("save rank %d: %w", l.Rank, err)
	}
	l.saved = &d.saved
	l.pace.saved(int(d.state) + len(capsule))
	if l.p.copied {
		l.pending = &pending{saved: d.saved, covers: d.covers, said: time.Now()}
	}
	l.p.agent.Send(control.Message{Saved: l.saved})
	if !l.p.copied {
		l.Box.Covered(d.covers) // after that: if this process dies here, the agent knows of the snapshot
	}
	return nil
}

func (l *Life) file() string {
	return filepath.Join(l.p.dir, fmt.Sprintf("rank-%d.%d", l.Rank, l.epoch))
}
