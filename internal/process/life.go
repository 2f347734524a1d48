package process

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/internal/trace"
	"github.com/mpiv/mpiv/migrate"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// A Life is what a rank does in this process, from when it begins or comes until it
// ends or leaves.
type Life struct {
	p     *Process
	Rank  topology.Rank
	Box   *engine.Box
	From  *Past // what it goes on from; nil: it begins
	epoch topology.Epoch
	told  chan struct{} // closed when the agent knows that the rank is here; nil if it did before

	due    atomic.Bool // SafePoint has something to do
	depart atomic.Pointer[control.Depart]
	save   atomic.Bool

	area    *checkpoint.Area // nil before the first snapshot; owned by the rank
	number  uint64           // of the rank's last snapshot, in this life or before; owned by the rank
	choices *checkpoint.Determinants
	saved   *control.Saved // the last snapshot; nil: none, or not known here; owned by the rank

	recorder *atomic.Pointer[trace.Rank] // guarded by p.mu; nil before Record

	mu      sync.Mutex // guards what follows
	pending *pending   // the last snapshot, while its host would take it along; nil if there is none
}

// A pending snapshot is not covered.
type pending struct {
	saved  control.Saved
	covers engine.Covers
	said   time.Time
}

// A Past is the state that a rank had in another process.
type Past struct {
	Extra    []byte // what the library noted beside the program's state
	Manifest []byte
	fill     func(ctx context.Context, segments [][]byte) error
	left     time.Time // its safe point; zero: it was lost
	came     time.Time // the first that was known of it here
}

// Fill puts the bytes of the state into segments, as many and as long as
// migrate.Filling wants them.
func (p *Past) Fill(ctx context.Context, segments [][]byte) error { return p.fill(ctx, segments) }

// ErrLeft is what SafePoint returns to a rank that goes on elsewhere.
var ErrLeft = errors.New("the rank goes on in another process")

// Survives is l, or nil if its rank lives and dies with its process.
func (l *Life) Survives() *Life {
	if l.p == nil || l.p.options.Survive == "none" || l.p.options.Survive == "report" {
		return nil
	}
	return l
}

// Lives is the ranks that begin in this process, or come to it.
// It is closed when the job has ended.
func (p *Process) Lives() <-chan *Life { return p.lives }

// begin readies the lives of the ranks that start here.
func (p *Process) begin() {
	p.lives = make(chan *Life, 1+p.engine.Size()) // a rank comes here at most once at a time
	p.moves = newMoves(p)
	for _, r := range p.engine.Local() {
		l := &Life{p: p, Rank: r, Box: p.engine.Box(r), epoch: p.engine.Epoch()}
		if err := l.recordChoices(nil, 0, 0); err != nil {
			p.engine.Fail(err)
		}
		p.live(l)
	}
	if p.options.Survive == "crashes" {
		p.finished.Go(p.saveEvery)
	}
	p.finished.Go(p.moves.receive)
}

func (p *Process) live(l *Life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.living[l.Rank] = l
	p.lives <- l
}

// noMoreLives is told that the job has ended.
func (p *Process) noMoreLives() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	close(p.lives)
}

// life is that of r here; nil if it is not here.
func (p *Process) life(r topology.Rank) *Life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.living[r]
}

// endLives frees what the lives hold. The ranks have ended.
func (p *Process) endLives() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.living {
		l.close()
	}
}

// close frees what the life holds. Its files stay.
func (l *Life) close() {
	if l.area != nil {
		l.area.Close()
	}
	if l.choices != nil {
		l.choices.Close()
	}
}

// snapshotEvery is how often a rank's state is saved unless the job says otherwise.
const snapshotEvery = 2 * time.Second

// saveEvery asks the ranks for a snapshot, again and again.
func (p *Process) saveEvery() {
	every := p.options.Snapshot
	if every <= 0 {
		every = snapshotEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			var again []control.Saved
			p.mu.Lock()
			for r, l := range p.living {
				if !p.ends[r] {
					l.wantSave()
				}
				if s := l.overdue(every); s != nil {
					again = append(again, *s)
				}
			}
			p.mu.Unlock()
			for _, s := range again {
				p.agent.Send(control.Message{Saved: &s})
			}
		case <-p.stopped:
			return
		}
	}
}

// wantSave is told that a snapshot of r is wanted.
func (p *Process) wantSave(r topology.Rank) {
	// The engine calls with locks held, and the ticker is near: another goroutine
	// must not be waited for.
	if p.mu.TryLock() {
		if l := p.living[r]; l != nil {
			l.wantSave()
		}
		p.mu.Unlock()
	}
}

func (l *Life) wantSave() {
	l.save.Store(true)
	l.due.Store(true)
}

// Due tells whether SafePoint has something to do.
func (l *Life) Due() bool { return l.due.Load() }

// SafePoint does what is due of l's rank, which is at a safe point: it saves image and
// extra, or takes them elsewhere and returns ErrLeft. The image may be used until it
// returns.
func (l *Life) SafePoint(ctx context.Context, image migrate.Image, extra []byte) error {
	l.due.Store(false)
	if d := l.depart.Swap(nil); d != nil {
		err := l.leave(ctx, *d, image, extra)
		if errors.Is(err, ErrLeft) {
			return err
		}
		l.p.agent.Send(control.Message{Stayed: &control.Stayed{Rank: int(l.Rank), Epoch: d.Epoch, Reason: err.Error()}})
	}
	// One snapshot at a time is on its way to another host, or they would overtake
	// each other for ever.
	if l.save.Load() && l.p.options.Survive == "crashes" && l.covers() && !l.Box.Replaying() {
		l.save.Store(false)
		return l.snapshot(image, extra)
	}
	return nil
}

// covers tells whether no snapshot is pending.
func (l *Life) covers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending == nil
}

// overdue is a snapshot of which the agent should have said long ago that it is covered:
// it may not have heard of it, or not have been heard.
func (l *Life) overdue(after time.Duration) *control.Saved {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == nil || time.Since(l.pending.said) < max(after, time.Second) {
		return nil
	}
	l.pending.said = time.Now()
	return &l.pending.saved
}

// forget is told that nobody will ask for the pending snapshot.
func (l *Life) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = nil
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
		l.pending = nil
	}
	l.mu.Unlock()
	if l.save.Load() {
		l.due.Store(true)
	}
}

// snapshot saves the rank as it is now.
func (l *Life) snapshot(image migrate.Image, extra []byte) (err error) {
	capsule, covers, err := l.Box.Capture()
	if err != nil {
		return err
	}
	if l.area == nil {
		if l.area, err = checkpoint.Create(l.file()); err != nil {
			return fmt.Errorf("make room for the snapshots of rank %d: %w", l.Rank, err)
		}
	}
	l.number++
	parts := append([][]byte{capsule, extra, image.Manifest}, image.Segments...)
	if err := l.area.Save(l.number, parts...); err != nil {
		return fmt.Errorf("save rank %d: %w", l.Rank, err)
	}
	l.savedChoices()
	l.saved = &control.Saved{Rank: int(l.Rank), Epoch: uint32(l.epoch), Number: l.number, Bytes: image.Bytes(), File: l.file()}
	if l.p.copied {
		l.mu.Lock()
		l.pending = &pending{saved: *l.saved, covers: covers, said: time.Now()}
		l.mu.Unlock()
	}
	l.p.agent.Send(control.Message{Saved: l.saved})
	if !l.p.copied {
		l.Box.Covered(covers) // after that: if this process dies here, the agent knows of the snapshot
	}
	return nil
}

func (l *Life) file() string {
	return filepath.Join(l.p.dir, fmt.Sprintf("rank-%d.%d", l.Rank, l.epoch))
}

// Arrived tells the agent that the rank has its state and goes on.
func (l *Life) Arrived(bytes int64) {
	m := control.Arrived{Rank: int(l.Rank), Epoch: uint32(l.epoch), Whole: true, Bytes: bytes}
	if !l.From.left.IsZero() {
		m.Stood = int64(time.Since(l.From.left))
	}
	l.traced(trace.Came, "Restore", l.From.came, uint32(l.epoch))
	l.From = nil
	if l.told != nil {
		<-l.told
	}
	l.p.agent.Send(control.Message{Arrived: &m})
}

// place is told a map.
func (p *Process) place(m control.Place) {
	p.engine.Place(topology.Epoch(m.Epoch), p.placements(m)...)
}

// placements is what m changes, after it has fenced whom it says is lost.
func (p *Process) placements(m control.Place) []engine.Placement {
	for _, lost := range m.Lost {
		p.fabric.Fence(lost)
	}
	moved := make([]engine.Placement, len(m.Ranks))
	for i, r := range m.Ranks {
		moved[i] = engine.Placement{Rank: topology.Rank(r.Rank), Process: r.Process, Lost: len(m.Lost) > 0}
	}
	return moved
}

// meet is told of a process that was started after this one.
func (p *Process) meet(m control.Meet) { p.fabric.Meet(m.Index, p.reach(m.Process)) }

// reach is where q can be reached from here.
func (p *Process) reach(q control.Process) (addrs []fabric.Addr) {
	for _, a := range q.Addrs {
		if a.Class != topology.SameHost || q.Host == p.host {
			addrs = append(addrs, fabric.Addr{Class: a.Class, Addr: transport.Addr(a.Addr)})
		}
	}
	return addrs
}

// adopt takes a rank whose process was lost.
func (p *Process) adopt(m control.Adopt) {
	l, err := p.revive(m)
	if err != nil {
		p.agent.Send(control.Message{Failed: &control.Failed{Rank: m.Rank, Code: 1, Error: fmt.Sprintf("go on from its last snapshot: %v", err)}})
		return
	}
	if p.copied {
		l.wantSave() // what it goes on from is on one host less
	}
	p.live(l)
}

func (p *Process) revive(m control.Adopt) (*Life, error) {
	began := time.Now()
	l := &Life{p: p, Rank: topology.Rank(m.Rank), epoch: topology.Epoch(m.Epoch)}
	c := &engine.Capsule{Rank: l.Rank}
	if m.Snapshot != "" {
		area, err := checkpoint.Open(m.Snapshot)
		if err != nil {
			return nil, err
		}
		defer area.Close()
		s, err := latest(area)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Snapshot, err)
		}
		parts := s.Parts
		if c, err = engine.ParseCapsule(parts[0]); err != nil {
			return nil, err
		}
		l.number = s.Number
		l.From = &Past{Extra: parts[1], Manifest: parts[2], came: began, fill: func(_ context.Context, segments [][]byte) error {
			return fillFrom(segments, parts[3:])
		}}
	}
	again, err := p.chosen(l.Rank, m.Lives, l.number)
	if err != nil {
		return nil, fmt.Errorf("read its choices: %w", err)
	}
	if l.Box, err = p.engine.Adopt(c, l.epoch, p.placements(m.Place)...); err != nil {
		return nil, err
	}
	return l, l.recordChoices(again, 0, 0)
}

// latest is the latest snapshot in area, in memory of its own. The agent that keeps it
// there for another host may still get one from it, and this one is as good.
func latest(area *checkpoint.Area) (checkpoint.Snapshot, error) {
	for {
		s, err := area.Latest()
		if err != nil {
			return s, err
		}
		if len(s.Parts) < 3 {
			return s, checkpoint.ErrCorrupt
		}
		for i, part := range s.Parts {
			s.Parts[i] = append([]byte(nil), part...)
		}
		if area.Has(s.Number) {
			return s, nil
		}
	}
}

func fillFrom(segments, parts [][]byte) error {
	if len(segments) != len(parts) {
		return fmt.Errorf("the state has %d segments, want %d", len(parts), len(segments))
	}
	for i := range segments {
		if len(segments[i]) != len(parts[i]) {
			return fmt.Errorf("segment %d of the state has %d bytes, want %d", i, len(parts[i]), len(segments[i]))
		}
		copy(segments[i], parts[i])
	}
	return nil
}

// depart is told that a rank shall leave at its next safe point.
func (p *Process) depart(m control.Depart) {
	l := p.life(topology.Rank(m.Rank))
	p.mu.Lock()
	ended := p.ends[topology.Rank(m.Rank)]
	p.mu.Unlock()
	if l == nil || ended {
		p.agent.Send(control.Message{Stayed: &control.Stayed{Rank: m.Rank, Epoch: m.Epoch, Reason: "it is not here, or has finished"}})
		return
	}
	l.depart.Store(&m)
	l.due.Store(true)
	p.finished.Go(func() { // a rank that reaches no safe point in time stays
		select {
		case <-time.After(m.Patience):
			if l.depart.CompareAndSwap(&m, nil) {
				p.agent.Send(control.Message{Stayed: &control.Stayed{Rank: m.Rank, Epoch: m.Epoch, Reason: fmt.Sprintf("it reached no safe point within %v", m.Patience)}})
			}
		case <-p.stopped:
		}
	})
}
