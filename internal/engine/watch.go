package engine

import (
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/barrier"
)

// The progress of all links while no caller polls: connections wake one goroutine, which
// polls for those that sleep.

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
