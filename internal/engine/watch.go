package engine

import (
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
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
		told := !e.pollAll() && !e.arm()
		e.polling.Unlock()
		if told {
			return
		}
		barrier.Light() // one that was armed may have called wake already, and watch not have got polling
	}
}

// arm has every connection call wake. False if watch was told to go on instead. Polling is held.
func (e *Engine) arm() bool {
	if e.pulling > 0 { // they go on by being polled
		e.wake()
		return false
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
	return true
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

// pollNext takes polling, or who has it sees on leaving that wake was called.
func (e *Engine) pollNext() bool {
	if e.tryPolling() {
		return true
	}
	barrier.Heavy() // who has left, and has not seen it, has given polling back
	return e.tryPolling()
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
		few   = 16 // polls in pace, of a program that does not talk
		quiet = 20 // looks at which there was nothing to do, before it dozes
	)
	beat := newBeat(e)
	defer beat.end()
	idle := 0
	rise := func() {
		idle = 0
		if e.dozing.Load() {
			e.dozing.Store(false)
			beat.tick.Reset(pace)
		}
	}
	wakes := burst
	for last := uint32(0); ; {
		select {
		case <-e.roused:
			rise()
			continue
		case <-e.woken:
			rise()
			if len(*e.active.Load()) > 0 && e.pollNext() {
				e.pollWhile()
				e.quit()
			}
			if atomic.LoadUint32(&e.polls)-last < few && e.patient.Load() != 0 && e.tryPolling() {
				e.pollWhile()
				wakes.armAgain(e)
			}
			continue
		case <-e.flushTimer.C:
			e.flushAll()
			continue
		case <-beat.tick.C:
		case <-beat.off:
		case <-e.stop:
			return
		}
		polls := atomic.LoadUint32(&e.polls)
		if polls != last { // somebody else polls
			last, idle = polls, 0
			beat.slower()
			continue
		}
		beat.fast()
		if e.atRest() {
			wakes.earn()
			if idle++; idle >= quiet {
				e.doze(beat.tick)
			}
			continue
		}
		idle = 0
		if !e.tryPolling() {
			continue
		}
		if e.pollAll() {
			e.pollWhile()
		} else {
			wakes.earn()
		}
		wakes.armAgain(e)
	}
}

// How often watch looks whether anybody has polled.
const (
	pace  = 5 * time.Millisecond
	slow  = 2 * pace // once the program has polled by itself
	after = 4        // times in a row
)

// A beat says when watch looks. While the program polls by itself that is when it has not done so for a while: it
// puts off an alarm, and no thread wakes only to see that.
type beat struct {
	e      *Engine
	tick   *time.Ticker
	polled int              // looks in a row that found that somebody else polls
	lull   *alarm.Alarm     // goes off when nobody does; nil before it is used
	off    <-chan time.Time // of lull
}

func newBeat(e *Engine) *beat { return &beat{e: e, tick: time.NewTicker(pace)} }

func (b *beat) end() {
	b.tick.Stop()
	if b.lull != nil {
		b.e.lull.Store(nil)
		b.lull.Close()
	}
}

// slower is told that somebody else has polled since the last look.
func (b *beat) slower() {
	if b.polled++; b.polled == after {
		if b.lull == nil {
			b.lull = alarm.New()
			b.off = b.lull.C
		}
		b.tick.Stop()
		b.e.lull.Store(b.lull)
	}
	if b.polled >= after {
		b.lull.Set(pace) // it has not polled often enough to put it off, or not any more
	}
}

// fast is told that nobody has.
func (b *beat) fast() {
	if b.polled >= after {
		b.e.lull.Store(nil)
		b.lull.Unset()
		b.tick.Reset(pace)
	}
	b.polled = 0
}

// wakes is how often connections may wake watch while the program computes, which has to give a core
// away each time. Who has used them up looks for messages at each tick, until one finds none: as in Mogul and
// Ramakrishnan, "Eliminating Receive Livelock in an Interrupt-Driven Kernel" (1997).
type wakes int

const burst wakes = 16

func (w *wakes) earn() { *w = min(*w+1, burst) }

// armAgain has the connections call wake if that may be, and gives up polling.
func (w *wakes) armAgain(e *Engine) {
	computes := len(*e.boxes.Load()) > 0 && e.pulling == 0
	if computes && *w == 0 {
		e.quit()
		return
	}
	if computes {
		*w--
	}
	e.arm()
	e.polling.Unlock()
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
