package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/barrier"
	"github.com/mpiv/mpiv/internal/release"
)

// A Call names what the program called, for who asks why it waits. It must not
// change.
type Call struct {
	Op string // "Recv"
	// Begun is the stack of the call that began the operation; nil if it is not
	// known, or is this call.
	Begun *[16]uintptr
	// Patient calls may learn some milliseconds late of what has come while others
	// poll. In return those need not have a connection wake anybody each time that
	// they have done: a call that waits as long as the job lasts must be patient.
	Patient bool
}

// A goal is what a goroutine waits for: one op, or any of several.
type goal struct {
	one *op
	any []Request
}

func (g *goal) reached() bool {
	if g.one != nil {
		return g.one.done()
	}
	for i := range g.any {
		if r := &g.any[i]; r.op != nil && r.finished() {
			return true
		}
	}
	return false
}

// spinPolicy is how a waiting caller polls before it sleeps.
type spinPolicy struct {
	budget  time.Duration
	yieldOS bool // the host has more ranks than cores: let them run
	yieldGo bool // the process has other ranks: let them run
}

func newSpinPolicy(c Config, local int) spinPolicy {
	p := spinPolicy{budget: c.Spin, yieldOS: c.Crowded && len(c.Processes) > 1, yieldGo: local > 1}
	switch {
	case c.Spin < 0:
		p.budget = 0
	case c.Spin > 0:
	case len(c.Processes) == 1:
		p.budget = 2 * time.Microsecond
	case c.Crowded:
		p.budget = 500 * time.Microsecond
	default:
		p.budget = 200 * time.Microsecond
	}
	return p
}

// await returns nil when g is reached. Otherwise the context has ended, the
// message was abandoned or the engine has failed; g's requests are still under
// way.
func (e *Engine) await(ctx context.Context, c *Call, b *Box, g goal) error {
	if g.reached() {
		return nil
	}
	var s spin
	o := idle
	if !c.Patient {
		if o = e.spinFor(&g, &s); o == reached {
			return nil
		}
	}
	return e.sleepFor(ctx, c, b, &g, &s, o)
}

// An outcome is what comes of a poll.
type outcome uint8

const (
	goesOn  outcome = iota
	reached         // the goal
	idle            // there was nothing for long enough: time to sleep
	lasts           // time to look up, and then to go on
)

// lookUp is how long a caller polls until it looks whether its context has ended and whether
// it waits in vain: what moves may be others' messages, and where cores are shared a few
// polls can take that long.
const lookUp = 10 * time.Millisecond

// spinFor polls until g is reached, s is idle or lookUp has gone by. It goes on with s.
func (e *Engine) spinFor(g *goal, s *spin) outcome {
	s.until = time.Time{}
	for {
		if len(*e.active.Load()) > 0 && e.tryPolling() {
			e.count()
			for {
				moved := e.pollAll()
				if g.reached() {
					e.quit()
					return reached
				}
				var o outcome
				if moved {
					o = s.moved()
				} else {
					o = e.pause(s, true)
				}
				if o != goesOn {
					e.quit()
					return o
				}
				if e.guests.Load() > 0 {
					e.quit()
					break
				}
			}
		}
		if g.reached() {
			return reached
		}
		if o := e.pause(s, false); o != goesOn {
			if g.reached() {
				return reached
			}
			return o
		}
	}
}

// A spin is how a caller polls.
type spin struct {
	polls uint32    // for nothing, in a row
	since time.Time // the first look at the clock in that row
	last  time.Time // the last
	moves uint32    // polls that were for something
	until time.Time // when to look up; zero: not known yet
}

// moved notes a poll that was for something.
func (s *spin) moved() outcome {
	s.polls, s.since, s.last = 0, time.Time{}, time.Time{}
	if s.moves++; s.moves&63 != 0 {
		return goesOn
	}
	return s.look(time.Now())
}

func (s *spin) look(now time.Time) outcome {
	switch {
	case s.until.IsZero():
		s.until = now.Add(lookUp)
	case now.After(s.until):
		return lasts
	}
	return goesOn
}

// pause lets others run between two polls for nothing, or between two looks
// while somebody else polls.
func (e *Engine) pause(s *spin, polling bool) outcome {
	s.polls++
	crowded := e.spin.yieldOS || e.crowded.Load()
	if !crowded && s.polls > quickPolls {
		release.Pause()
	}
	switch {
	case crowded:
		if e.spin.yieldGo {
			runtime.Gosched()
		}
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if s.polls&3 != 0 {
			return goesOn
		}
	case e.spin.yieldGo:
		runtime.Gosched()
		if s.polls&3 != 0 {
			return goesOn
		}
	case s.polls&63 != 0:
		return goesOn
	case s.polls&1023 == 0:
		runtime.Gosched()
	}
	now := time.Now()
	switch {
	case s.since.IsZero():
		s.since = now
	case now.Equal(s.last):
		// A clock that stands still is that of a bubble of testing/synctest. It
		// goes on when everybody in the bubble sleeps.
		return idle
	case polling && !crowded && now.Sub(s.last) > lostCore:
		// We did not have the core all the time: somebody else needs it.
		e.crowdedAt = now
		e.crowded.Store(true)
	}
	s.last = now
	if now.Sub(s.since) >= e.spin.budget && (!crowded || s.polls >= crowdedPolls) || e.assisted.Load() {
		return idle
	}
	return s.look(now)
}

// quickPolls is how many polls for nothing have no pause between them: it takes as long as several
// instructions, and an answer that comes at once is found so much later, on average half of it.
const quickPolls = 64

// crowdedPolls is how often a caller looks at least where it gives the core away each time.
// The budget alone would run out while others, who have the core, do what it waits for.
const crowdedPolls = 256

// How a polling caller finds out that others need its core: 64 polls took
// longer than lostCore. For crowdedFor it then gives the core away at each.
const (
	lostCore   = 500 * time.Microsecond
	crowdedFor = 50 * time.Millisecond
)

// pollAll polls every connection once and does what is due. Polling is held.
func (e *Engine) pollAll() (moved bool) {
	for _, l := range *e.active.Load() {
		if l.overEarly() {
			continue
		}
		m, err := l.conn.Poll(l)
		e.shut()
		if m {
			moved = true
		}
		if err != nil || l.bad != nil {
			l.lost(err)
			return true // the list has changed
		}
		if l.attention.Get() && l.service() {
			moved = true
		}
		if l.owedBytes > e.ackEvery || l.ackSoon && !m {
			l.mu.Lock()
			l.sendAcks()
			l.mu.Unlock()
		}
	}
	if moved && e.armed.Load() {
		e.disarm()
	}
	return moved
}

// tryPolling takes polling if nobody has it, nor waits in enter.
func (e *Engine) tryPolling() bool { return e.guests.Load() == 0 && e.polling.TryLock() }

// pollWhile polls until nothing moves, or somebody waits in enter. Polling is
// held.
func (e *Engine) pollWhile() {
	for e.pollAll() && e.guests.Load() == 0 {
	}
}

// pollSome is pollWhile for who has something else to do: it ends also while others'
// messages move all the time. Then moves is true.
func (e *Engine) pollSome() (moves bool) {
	for n := 0; ; n++ {
		switch {
		case n == somePolls:
			return true
		case !e.pollAll() || e.guests.Load() > 0:
			return false
		}
	}
}

const somePolls = 256

// service does what is due on a link besides polling its connection: true if
// that was something to poll on for. Polling is held.
func (l *link) service() bool {
	l.mu.Lock()
	if l.broken != nil {
		l.mu.Unlock()
		l.lost(nil)
		return true
	}
	if l.pressDue.Load() {
		l.tellPress()
	}
	pulls := len(l.pulling) > 0
	goesOn := l.pump()
	l.mu.Unlock()
	if pulls {
		l.startPulls()
	}
	if len(l.departs) > 0 {
		l.departLater()
	}
	return pulls || goesOn
}

// Progress polls until nothing moves, for a while at most, unless somebody else does.
func (e *Engine) Progress() {
	if len(*e.active.Load()) == 0 || !e.tryPolling() {
		return
	}
	e.pollSome()
	e.leave()
}

// leave gives up polling. If goroutines sleep, the connections are armed, so
// that somebody goes on when something comes, unless others come to poll all the time.
func (e *Engine) leave() {
	e.count()
	e.quit()
}

// count counts a caller who polls. Polling is held.
func (e *Engine) count() {
	release.Store32(&e.polls, e.polls+1)
	if e.polls&255 == 0 && e.crowded.Load() && time.Since(e.crowdedAt) > crowdedFor {
		e.crowded.Store(false) // look again
	}
}

// quit is leave of who was counted.
func (e *Engine) quit() {
	if e.ackSoon {
		e.sendAcksSoon()
	}
	often := e.parked.Load() != 0 && e.often()
	e.polling.Unlock()
	barrier.Light()
	if !often && e.parked.Load() != 0 {
		e.seeToParked()
	}
}

// sendAcksSoon tells those peers what has arrived who wait to be told. Polling is held.
func (e *Engine) sendAcksSoon() {
	e.ackSoon = false
	for _, l := range *e.active.Load() {
		if l.ackSoon {
			l.mu.Lock()
			l.sendAcks()
			l.mu.Unlock()
		}
	}
}

// often tells whether callers poll in such quick succession that it would cost them more
// to have somebody else woken each time they leave than it helps who sleeps: the next of
// them is there before that. When they end, watch finds that nobody polls. Polling is held.
func (e *Engine) often() bool {
	now := time.Now()
	gap := now.Sub(e.leftAt)
	e.leftAt = now
	if gap > oftenGap {
		e.inARow = 0
	} else if e.inARow < oftenRow {
		e.inARow++
	}
	return e.inARow == oftenRow
}

// How callers come often: so many in a row, each at most so long after the one before.
const (
	oftenGap = 200 * time.Microsecond
	oftenRow = 32
)

// seeToParked has somebody woken for who sleeps, if nobody polls for them.
func (e *Engine) seeToParked() {
	for n := 0; e.parked.Load() != 0 && !e.armed.Load(); n++ {
		if n == somePolls {
			e.wake() // watch goes on with it
			return
		}
		if !e.tryPolling() {
			return
		}
		idle := !e.pollAll()
		if idle {
			e.arm()
		}
		e.polling.Unlock()
		if idle {
			return
		}
		barrier.Light()
	}
}

// arm has every connection call wake. Polling is held.
func (e *Engine) arm() {
	if e.pulling > 0 { // they go on by being polled
		e.wake()
		return
	}
	e.armed.Store(true)
	for _, l := range *e.active.Load() {
		if l.owedBytes > 0 {
			l.mu.Lock()
			l.sendAcks()
			l.mu.Unlock()
		}
		if !l.overEarly() {
			l.conn.Arm(e.wakeMe)
		}
	}
}

// disarm notes that not every connection calls wake any more.
func (e *Engine) disarm() {
	e.armed.Store(false)
	e.rouse()
}

// wake is called by a connection on which something has come.
func (e *Engine) wake() {
	e.armed.Store(false)
	select {
	case e.woken <- struct{}{}:
	default:
	}
}

// rouse has watch look at the connections again now and then. Who calls it has just
// stored what watch is to see.
func (e *Engine) rouse() {
	barrier.Light()
	if e.dozing.Load() {
		select {
		case e.roused <- struct{}{}:
		default:
		}
	}
}

// watch looks after the connections while no caller does. It polls when one of
// them calls wake, and arms them when nobody has polled for a while, so that
// others, and who sleeps here, are not held up by a program that computes. While
// nothing at all happens it dozes: an idle process costs its host nothing.
func (e *Engine) watch() {
	select {
	case <-e.ready:
	case <-e.stop:
		return
	}
	const (
		pace  = 5 * time.Millisecond
		few   = 16 // polls in it, of a program that does not talk
		quiet = 20 // ticks at which there was nothing to do, before it dozes
	)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	idle := 0
	rise := func() {
		idle = 0
		if e.dozing.Load() {
			e.dozing.Store(false)
			tick.Reset(pace)
		}
	}
	for last := uint32(0); ; {
		select {
		case <-e.roused:
			rise()
			continue
		case <-e.woken:
			rise()
			if len(*e.active.Load()) > 0 && e.tryPolling() {
				e.pollWhile()
				e.leave()
			}
			if atomic.LoadUint32(&e.polls)-last < few && e.patient.Load() != 0 && e.tryPolling() {
				e.pollWhile()
				e.arm()
				e.polling.Unlock()
			}
			continue
		case <-e.flushTimer.C:
			e.flushAll()
			continue
		case <-tick.C:
		case <-e.stop:
			return
		}
		polls := atomic.LoadUint32(&e.polls)
		if polls != last { // somebody else polls
			last, idle = polls, 0
			continue
		}
		if e.atRest() {
			if idle++; idle >= quiet {
				e.doze(tick)
			}
			continue
		}
		idle = 0
		if !e.tryPolling() {
			continue
		}
		e.pollWhile()
		e.arm()
		e.polling.Unlock()
	}
}

// atRest tells whether every connection calls wake, and no link has something to do
// besides what comes.
func (e *Engine) atRest() bool {
	if !e.armed.Load() {
		return false
	}
	for _, l := range *e.active.Load() {
		if l.attention.Get() {
			return false
		}
	}
	return true
}

// doze stops the tick until somebody rouses watch.
func (e *Engine) doze(tick *time.Ticker) {
	e.dozing.Store(true)
	barrier.Heavy()
	if e.atRest() {
		tick.Stop()
	} else {
		e.dozing.Store(false)
	}
}

// A wait is a call that sleeps, for who asks.
type wait struct {
	id    uint64
	call  *Call
	since time.Time
	until time.Time // when the context ends; zero: never
	goal  goal
	told  atomic.Pointer[AbandonedError] // nobody will reach goal
	pcs   [16]uintptr
	npcs  int
}

var waitPool = sync.Pool{New: func() any { return new(wait) }}

// sleepFor sleeps until g is reached, the context ends, g's message was
// abandoned or the engine fails. While o is that s lasts, it polls.
func (e *Engine) sleepFor(ctx context.Context, c *Call, b *Box, g *goal, s *spin, o outcome) error {
	w := waitPool.Get().(*wait)
	w.id, w.call, w.since, w.goal = e.waitIDs.Add(1), c, time.Now(), *g
	w.until, _ = ctx.Deadline()
	w.npcs = runtime.Callers(3, w.pcs[:])
	b.mu.Lock()
	b.waits = append(b.waits, w)
	if o := g.one; o != nil && len(b.abandoned.why) > 0 {
		w.told.Store(b.abandoned.why[callID{o.context, o.tag}])
	}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		for i := range b.waits {
			if b.waits[i] == w {
				b.waits = append(b.waits[:i], b.waits[i+1:]...)
				break
			}
		}
		b.mu.Unlock()
		w.goal, w.call = goal{}, nil
		if w.told.Load() != nil {
			w.told.Store(nil)
		}
		waitPool.Put(w)
	}()
	_, firm := ctx.(takingBack)
	sleeper := g.sleeper()
	for ; o == lasts; o = e.spinFor(g, s) {
		if err := e.vain(ctx, w, firm); err != nil {
			return err
		}
	}
	if o == reached {
		return nil
	}
	asleep := &e.parked
	if c.Patient {
		asleep = &e.patient
	}
	asleep.Add(1)
	defer asleep.Add(-1)
	barrier.Heavy()
	for !g.reached() {
		if g.copyLent(); g.reached() {
			return nil
		}
		if err := e.vain(ctx, w, firm); err != nil {
			return err
		}
		if len(*e.active.Load()) > 0 && e.tryPolling() {
			moves := e.pollSome()
			if g.reached() {
				e.leave()
				return nil
			}
			e.arm()
			if moves {
				e.wake() // watch goes on with it
			}
			e.leave()
			if g.reached() {
				return nil
			}
		}
		select {
		case <-sleeper.ch:
		case <-ctx.Done():
		case <-e.dead:
			return e.err()
		}
	}
	return nil
}

// vain is why w's goal is waited for no longer; nil: go on. A firm wait ends with its
// goal alone.
func (e *Engine) vain(ctx context.Context, w *wait, firm bool) error {
	if firm {
		return nil
	}
	if why := w.told.Load(); why != nil {
		return why
	}
	if e.failures.Load() != nil && w.goal.raised() {
		return ErrProcFailedPending
	}
	if ctx.Err() != nil {
		return w.given(ctx)
	}
	return nil
}

// given is the error of a call whose context has ended.
func (w *wait) given(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("waited %v: %w", time.Since(w.since).Round(time.Millisecond), err)
}

// sleeper is whom g's ops will wake.
func (g *goal) sleeper() *waiter {
	if o := g.one; o != nil {
		select {
		case <-o.self.ch: // of an earlier use
		default:
		}
		o.wakeBy(&o.self)
		return &o.self
	}
	w := &waiter{ch: make(chan struct{}, 1)}
	for i := range g.any {
		if r := &g.any[i]; r.op != nil {
			r.op.wakeBy(w)
		}
	}
	return w
}

// copyLent has the sends among g's ops done that wait for no more than that their messages
// are stable: while their buffers are lent.
func (g *goal) copyLent() {
	if g.one != nil {
		g.one.copyLent()
		return
	}
	for i := range g.any {
		if r := &g.any[i]; r.op != nil && !r.finished() {
			r.op.copyLent()
		}
	}
}

func (o *op) copyLent() {
	if o.kind != KindSend {
		return
	}
	if l := o.box.e.lockLink(o.peer); l != nil {
		if o.entry != nil && o.entry.lent {
			l.copyLent(o.entry.stream)
		}
		l.mu.Unlock()
	}
}

// wakeBy has w woken when o is done. See finishLocked for the lock.
func (o *op) wakeBy(w *waiter) {
	o.box.mu.Lock()
	o.wake.Store(w)
	o.box.mu.Unlock()
}
