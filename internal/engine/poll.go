package engine

import (
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/barrier"
	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/internal/yield"
)

// The progress of all links: by whoever polls, one at a time.

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
		} else if l.owesSum {
			l.settleSum()
		}
		if err != nil || l.bad != nil {
			l.lost(err)
			moved = true
			break // the list has changed
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
	if len(l.departs)+len(l.retracts) > 0 {
		l.catchUp()
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
	e.rest()
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
	if e.polls%restPolls == 0 {
		if now := time.Now(); now.Sub(e.restedAt) > restEvery {
			e.restedAt = now
			e.restDue.Store(true)
		}
	}
}

// Who polls again and again rests before the Go scheduler would make it, which wakes threads.
const (
	restEvery = 5 * time.Millisecond
	restPolls = 32 // so often it looks at the clock
)

// rest is called by who has polled, and holds nothing.
func (e *Engine) rest() {
	if e.restDue.Load() && e.restDue.CompareAndSwap(true, false) {
		e.restNow()
	}
}

//go:noinline
func (e *Engine) restNow() {
	yield.Yield()
	if a := e.lull.Load(); a != nil {
		a.Set(slow)
	}
	now := time.Now()
	for _, look := range *e.looks.Load() {
		look(now)
	}
}

// LookWhilePolling has look called every few milliseconds by who polls, which so needs no thread that wakes for it:
// as long as callers poll, and nobody can say how long that is. It must not wait. More calls of it may run at once.
func (e *Engine) LookWhilePolling(look func(now time.Time)) {
	e.failMu.Lock()
	defer e.failMu.Unlock()
	looks := append(slices.Clone(*e.looks.Load()), look)
	e.looks.Store(&looks)
}

// quit is leave of who was counted.
func (e *Engine) quit() { e.giveBack(e.parked.Load() != 0 && e.often()) }

// giveBack gives up polling. soon: another comes so soon that nobody need be woken for who sleeps.
func (e *Engine) giveBack(soon bool) {
	if e.ackSoon {
		e.sendAcksSoon()
	}
	e.polling.Unlock()
	barrier.Light()
	if !soon && e.parked.Load() != 0 {
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
