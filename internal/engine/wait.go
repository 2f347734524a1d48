package engine

// How a call waits: it polls, and sleeps only after a measured while.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
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
	shares  bool // it is not known whether what it waits for comes from this core: ask before sleep
}

func newSpinPolicy(c Config, local int) spinPolicy {
	several := len(c.Processes) > 1
	p := spinPolicy{yieldOS: c.Crowded && several, yieldGo: local > 1, shares: !c.Crowded && several}
	switch {
	case !several:
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
				if s.gave && moved && e.neighbour.sends() {
					e.crowd(time.Now())
				}
				if g.reached() {
					e.quit()
					e.rest()
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
	gave  bool      // others took the core for a moment, in that row
}

// moved notes a poll that was for something.
func (s *spin) moved() outcome {
	s.polls, s.since, s.last, s.gave = 0, time.Time{}, time.Time{}, false
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
	others := e.spin.yieldGo || e.tasks.Load() > 0 // goroutines that wait, or have something to send
	if !crowded && s.polls > quickPolls {
		release.Pause()
	}
	switch {
	case crowded:
		if others {
			runtime.Gosched()
		}
		give()
		if polling && !e.spin.yieldOS && e.company.gone() {
			e.crowded.Store(false)
		}
		if s.polls&3 != 0 {
			return goesOn
		}
	case others:
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
		e.crowd(now)
	}
	s.last = now
	switch {
	case e.assisted.Load():
		return idle
	case now.Sub(s.since) < e.spin.budget || crowded && s.polls < crowdedPolls:
		return s.look(now)
	case polling && !crowded && e.spin.shares && !s.gave && e.neighbour.asked(now):
		taken := gave()
		s.last = time.Now()
		if s.gave = e.neighbour.answers(taken, now, s.last); taken { // what we wait for may be there now: look once more
			return goesOn
		}
	}
	return idle
}

// crowd notes that others need the core of who polls.
func (e *Engine) crowd(now time.Time) {
	e.crowdedAt, e.company = now, company{}
	e.crowded.Store(true)
}

// quickPolls is how many polls for nothing have no pause between them: it takes as long as several
// instructions, and an answer that comes at once is found so much later, on average half of it.
const quickPolls = 64

// crowdedPolls is how often a caller looks at least where it gives the core away each time.
// The budget alone would run out while others, who have the core, do what it waits for.
const crowdedPolls = 256

// How a polling caller finds out that others need its core: 64 polls took
// longer than lostCore; or it has a neighbour. For crowdedFor it then gives the core away at each
// poll, or until its company is gone.
const (
	lostCore   = 500 * time.Microsecond
	crowdedFor = 50 * time.Millisecond
)

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
	if o := g.one; o != nil && len(b.abandoned.runs) > 0 {
		w.told.Store(b.abandoned.why(callID{o.context, o.tag}))
	}
	var inVain <-chan time.Time
	if g.one != nil && g.one.isCancelled() {
		t := time.NewTimer(againPatience)
		defer t.Stop()
		inVain = t.C
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
	b.startDeferred()
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
			e.count()
			e.giveBack(false) // this one does not come again soon
			if g.reached() {
				return nil
			}
		}
		select {
		case <-sleeper.ch:
		case <-ctx.Done():
		case <-inVain:
			b.skipCancelled(g.one)
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
