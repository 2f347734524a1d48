package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/internal/pages"
	"github.com/mpiv/mpiv/internal/release"
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
	From  *Past     // what it goes on from; nil: it begins
	anew  time.Time // when it was taken over, to begin once more; zero: it was not
	again bool      // it is that of a rank whose process was lost
	epoch topology.Epoch
	told  chan struct{} // closed when the agent has been told that the rank is here; nil if it knew
	whole chan struct{} // closed when it has been told that the rank goes on; nil if it began here; owned by the rank

	due    atomic.Bool    // SafePoint has something to do
	passed release.Uint64 // safe points; set by the rank
	depart atomic.Pointer[control.Depart]
	save   atomic.Bool
	ahead  *vanguard                      // of a departure; nil if nothing goes ahead; owned by the rank
	going  atomic.Pointer[control.Depart] // the order whose state goes ahead

	area     *checkpoint.Area         // nil before the first snapshot; the rank's while no draft waits
	written  written                  // since the last snapshot; owned by the rank
	number   uint64                   // of the rank's last snapshot, in this life or before; owned by the rank, who writes it while no choice is recorded
	choices  *checkpoint.Determinants // used by one at a time, as engine.Box.Record says; nil: none are recorded
	marked   uint64                   // the first of choices that follows its last snapshot; owned by the rank
	outlives atomic.Uint64            // the last snapshot of this life that is covered

	recorder *atomic.Pointer[trace.Rank] // guarded by p.mu; nil before Record
	barred   func() error                // guarded by p.mu; nil before Consult

	mu      sync.Mutex     // guards what follows
	pace    pace           // at level "crashes"
	draft   *draft         // the last snapshot, while its log is not in it; nil if there is none
	pending *pending       // the last snapshot, while its host would take it along; nil if there is none
	saved   *control.Saved // the last snapshot that is whole; nil: none, or not known here
}

// A Past is the state that a rank had in another process.
type Past struct {
	Extra    []byte // what the library noted beside the program's state
	Manifest []byte
	fill     func(ctx context.Context, segments [][]byte) error
	left     time.Time // its safe point; zero: it was lost
	ahead    int64     // bytes that came before it left
	came     time.Time // the first that was known of it here
}

// Fill puts the bytes of the state into segments, as many and as long as
// migrate.Filling wants them.
func (p *Past) Fill(ctx context.Context, segments [][]byte) error { return p.fill(ctx, segments) }

// Recovered tells whether the process of the rank was lost, and it does again here what it did there since.
func (l *Life) Recovered() bool { return l.again }

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
		recording, err := l.recording(nil, engine.Counts{})
		if err != nil {
			p.engine.Fail(err)
		} else if recording != nil {
			l.Box.Record(*recording)
		}
		p.live(l)
	}
	if p.options.Survive == "crashes" {
		p.finished.Go(p.saveEvery)
	}
	p.finished.Go(p.moves.receive)
	p.finished.Go(p.ready)
}

func (p *Process) live(l *Life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	l.written.none = p.devices
	l.pace = newPace(l.Rank, p.saveTime(), !p.copied, time.Now())
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

// livesNow is the lives here.
func (p *Process) livesNow() []*Life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.living))
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
	l.endAhead()
	l.written.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draft = nil
	if l.area != nil {
		l.area.Close()
	}
	if l.choices != nil {
		l.Box.EndRecord()
		l.choices.Close()
	}
}

// Due tells whether SafePoint has something to do. The rank asks at each safe point.
func (l *Life) Due() bool {
	l.passed.Set(l.passed.Get() + 1)
	return l.due.Load()
}

// Pass is a safe point where nothing is due. A rank that passes again and again waits for
// something. Now and then it lets others have its core: a kernel that looks for no other one
// would have what it waits for wait behind it, for milliseconds.
func (l *Life) Pass() {
	if l.passed.Get()%passes == 0 {
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

const passes = 64

// SafePoint does what is due of l's rank, which is at a safe point: it saves image and
// extra, or takes them elsewhere and returns ErrLeft. The image may be used until it
// returns.
func (l *Life) SafePoint(ctx context.Context, image migrate.Image, extra []byte) error {
	l.due.Store(false)
	l.announced()
	if d := l.departs(image); d != nil {
		err := l.leave(ctx, *d, image, extra)
		l.endAhead()
		if errors.Is(err, ErrLeft) {
			return err
		}
		l.p.agent.Send(control.Message{Stayed: &control.Stayed{Rank: int(l.Rank), Epoch: d.Epoch, Reason: err.Error()}})
	}
	// One snapshot at a time waits for its log, or is on its way to another host, or they would overtake
	// each other for ever.
	if l.save.Load() && l.p.options.Survive == "crashes" && l.covers() && !l.Box.Replaying() {
		l.save.Store(false)
		return l.snapshot(image, extra)
	}
	return nil
}

// Arrived tells the agent that the rank has its state and goes on.
func (l *Life) Arrived(bytes int64) {
	m := control.Arrived{Rank: int(l.Rank), Epoch: uint32(l.epoch), Whole: true, Bytes: bytes, Ahead: l.From.ahead}
	if !l.From.left.IsZero() {
		m.Stood = int64(time.Since(l.From.left))
	}
	l.traced(trace.Came, "Restore", l.From.came, uint32(l.epoch))
	l.p.reserve.Empty()
	copied := l.From.left.IsZero() && bytes >= muchCopied
	l.From = nil
	l.whole = make(chan struct{})
	l.p.finished.Go(func() { // the rank does not wait for it
		if l.told != nil {
			<-l.told
		}
		l.p.agent.Send(control.Message{Arrived: &m})
		close(l.whole)
		if copied {
			debug.FreeOSMemory()
		}
	})
}

// Begins tells the agent that the rank begins. If it was lost before and nothing of it was saved,
// that is how it goes on.
func (l *Life) Begins() {
	if l.anew.IsZero() {
		return
	}
	l.traced(trace.Came, "Restore", l.anew, uint32(l.epoch))
	l.p.agent.Send(control.Message{Arrived: &control.Arrived{Rank: int(l.Rank), Epoch: uint32(l.epoch), Whole: true}})
}

// muchCopied is from how many bytes of state on the copy of a snapshot is given back to the system at once: a program
// that makes little garbage might hold it for as long as it runs.
const muchCopied = 1 << 20

// announced waits until the agent has been told that the rank goes on, before it is told
// anything else of it.
func (l *Life) announced() {
	if l.whole != nil {
		<-l.whole
	}
}

// place is told a map.
func (p *Process) place(m control.Place) {
	p.moves.dropBy(m.Epoch)
	p.engine.Place(topology.Epoch(m.Epoch), p.placements(m)...)
	for _, l := range p.livesNow() {
		l.mu.Lock()
		if l.draft != nil {
			l.draft.heardOf(m.Ranks)
		}
		l.mu.Unlock()
	}
}

// lags notes that a process has to hear of a map. The agent tells it anyway, a little later.
func (p *Process) lags(process int) {
	select {
	case p.behind <- process:
	default:
	}
}

// reportBehind tells the agent who has to hear of a map, until the job ends.
func (p *Process) reportBehind() {
	for {
		select {
		case process := <-p.behind:
			p.agent.Send(control.Message{Behind: &control.Behind{Process: process}}) // if that fails, Receive will
		case <-p.stopped:
			return
		}
	}
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
func (p *Process) meet(m control.Meet) {
	if m.Process.Host != p.host {
		p.engine.SetFar(m.Index)
	}
	p.calls.to[m.Index].apart.Store(m.Process.Router != "" && m.Process.Host != p.host)
	p.fabric.Meet(m.Index, p.reach(m.Process))
}

// reach is where q can be reached from here. If both are behind address translations, and not the same, that is through others:
// to try the direct addresses, too, takes seconds.
func (p *Process) reach(q control.Process) (addrs []fabric.Addr) {
	through := false
	for _, a := range q.Addrs {
		if a.Class != topology.SameHost || q.Host == p.host {
			addrs = append(addrs, fabric.Addr{Class: a.Class, Addr: transport.Addr(a.Addr)})
			through = through || slices.Contains(p.relayed, addrs[len(addrs)-1].Addr.Network())
		}
	}
	if through && q.Router != "" && p.router != "" && q.Router != p.router {
		addrs = slices.DeleteFunc(addrs, func(a fabric.Addr) bool { return !slices.Contains(p.relayed, a.Addr.Network()) })
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
	l := &Life{p: p, Rank: topology.Rank(m.Rank), again: true, epoch: topology.Epoch(m.Epoch)}
	c := &engine.Capsule{Rank: l.Rank}
	if m.Snapshot != "" {
		area, err := checkpoint.Open(m.Snapshot)
		if err != nil {
			return nil, err
		}
		defer area.Close()
		s, err := latest(area, m.Number)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Snapshot, err)
		}
		parts := s.Parts
		if c, err = engine.ParseCapsule(parts[len(parts)-1]); err != nil {
			return nil, err
		}
		l.number = s.Number
		l.From = &Past{Extra: parts[0], Manifest: parts[1], came: began, fill: func(_ context.Context, segments [][]byte) error {
			return p.fillFrom(segments, parts[2:len(parts)-1])
		}}
	} else {
		l.anew = began
	}
	all, err := p.chosen(l.Rank, m.Lives)
	if err != nil {
		return nil, fmt.Errorf("read its choices: %w", err)
	}
	r, err := l.recording(goingOn(all, l.number), engine.Counts{})
	if err != nil {
		return nil, err
	}
	covers := c.Covers()
	if l.Box, err = p.engine.Adopt(c, l.epoch, r, p.placements(m.Place)...); err != nil {
		return nil, err
	}
	if m.Covered || !p.copied { // who keeps it may not have been told, and wait for that
		l.Box.Covered(covers)
	}
	return l, nil
}

// latest is the latest snapshot in area, in memory of its own. The agent that keeps it
// there for another host may still get one from it, and this one is as good. If it is before
// that of number least the file was damaged, and others have forgotten what the rank would need.
func latest(area *checkpoint.Area, least uint64) (checkpoint.Snapshot, error) {
	for {
		s, err := area.Latest()
		if err != nil {
			return s, err
		}
		if s.Number < least {
			return s, fmt.Errorf("it has snapshot %d, and no longer %d: %w", s.Number, least, checkpoint.ErrCorrupt)
		}
		if len(s.Parts) < 3 {
			return s, checkpoint.ErrCorrupt
		}
		for i, part := range s.Parts {
			s.Parts[i] = pages.Copy(part)
		}
		if area.Has(s.Number) {
			return s, s.Verify()
		}
	}
}

func (p *Process) fillFrom(segments, parts [][]byte) error {
	if len(segments) != len(parts) {
		return fmt.Errorf("the state has %d segments, want %d", len(parts), len(segments))
	}
	for i := range segments {
		if len(segments[i]) != len(parts[i]) {
			return fmt.Errorf("segment %d of the state has %d bytes, want %d", i, len(parts[i]), len(segments[i]))
		}
		p.reserve.Under(segments[i])
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
	p.moves.herald(m.To)
	p.finished.Go(func() { p.awaitLeave(l, &m) })
}

// awaitLeave has l's rank stay if it reaches no safe point in time, or can reach none.
func (p *Process) awaitLeave(l *Life, m *control.Depart) {
	late, look := time.After(m.Patience), time.NewTicker(barredLook)
	defer look.Stop()
	reason, ahead, unsafe := "", false, false
	for reason == "" && l.depart.Load() == m {
		if err := l.whyBarred(); err != nil {
			reason = err.Error()
			continue
		}
		select {
		case <-look.C:
		case <-late:
			switch {
			case ahead:
				reason = fmt.Sprintf("its state goes ahead of it, and was not there within %v", 2*m.Patience)
			case l.going.Load() == m: // it has reached one, and its state takes so long
				ahead, late = true, time.After(m.Patience)
			default:
				reason, unsafe = fmt.Sprintf("it reached no safe point within %v", m.Patience), true
			}
		case <-p.stopped:
			return
		}
	}
	if reason != "" && l.depart.CompareAndSwap(m, nil) {
		l.due.Store(true) // to end what goes ahead
		p.agent.Send(control.Message{Stayed: &control.Stayed{Rank: m.Rank, Epoch: m.Epoch, Reason: reason, Unsafe: unsafe}})
	}
}

// barredLook is how often it is looked whether a rank that shall leave can reach a safe point.
const barredLook = 200 * time.Millisecond

// Consult has barred asked, from any goroutine, why l's rank can reach no safe point; nil: it may.
func (l *Life) Consult(barred func() error) {
	if l.p == nil {
		return
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.barred = barred
}

// whyBarred is what who was given to Consult says.
func (l *Life) whyBarred() error {
	l.p.mu.Lock()
	barred := l.barred
	l.p.mu.Unlock()
	if barred == nil {
		return nil
	}
	return barred()
}
