package alarm

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Ticker goes off again and again, as a [time.Ticker] does. All those of a host with the same period, in whatever processes,
// do so at the same times, and those of a process share an alarm. So who polls loses its core once for all of them.
type Ticker struct {
	C    <-chan time.Time
	off  chan<- time.Time
	beat *beat        // nil: it is
	tick *time.Ticker //   this
}

// A beat is all tickers of one period.
type beat struct {
	alarm *Alarm
	all   map[*Ticker]struct{} // guarded by beats.mu
}

var beats = struct {
	mu sync.Mutex
	of map[time.Duration]*beat // those with tickers
}{of: map[time.Duration]*beat{}}

// NewTicker makes a Ticker; Stop ends it.
func NewTicker(period time.Duration) *Ticker {
	off := make(chan time.Time, 1)
	t := &Ticker{C: off, off: off}
	if t.join(period); t.beat == nil {
		t.tick = time.NewTicker(period)
		t.C = t.tick.C
	}
	return t
}

// Reset has t go on with another period.
func (t *Ticker) Reset(period time.Duration) {
	if t.tick != nil {
		t.tick.Reset(period)
		return
	}
	before := t.beat
	if t.join(period); t.beat != before {
		before.leave(t)
	}
}

// Stop ends t.
func (t *Ticker) Stop() {
	if t.tick != nil {
		t.tick.Stop()
		return
	}
	t.beat.leave(t)
}

// join has t go off with others of that period, if there can be alarms.
func (t *Ticker) join(period time.Duration) {
	if virtual() { // though others of the process may not be so
		return
	}
	beats.mu.Lock()
	defer beats.mu.Unlock()
	b := beats.of[period]
	if b == nil {
		b = &beat{all: map[*Ticker]struct{}{}}
		if b.alarm = newAlarm(true, b.tell); b.alarm == nil {
			return
		}
		b.alarm.every(period)
		beats.of[period] = b
	}
	b.all[t] = struct{}{}
	t.beat = b
}

func (b *beat) tell(now time.Time) {
	beats.mu.Lock()
	defer beats.mu.Unlock()
	for t := range b.all {
		tell(t.off, now)
	}
}

// leave ends b if nobody is left.
func (b *beat) leave(t *Ticker) {
	beats.mu.Lock()
	delete(b.all, t)
	last := len(b.all) == 0
	for period, of := range beats.of {
		if last && of == b {
			delete(beats.of, period)
		}
	}
	beats.mu.Unlock()
	if last {
		b.alarm.Close()
	}
}

// Until is how long it is until Tickers of a period go off: for what need not wake its process at another time.
func Until(period time.Duration) time.Duration {
	if virtual() {
		return period
	}
	now, next := clock(period)
	return time.Duration(next - now)
}

// clock is the host's clock and the next multiple of a period, in ns.
func clock(period time.Duration) (now, next int64) {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano(), (t.Nano()/int64(period) + 1) * int64(period)
}

// every has a go off at all multiples of a period of the host's clock.
func (a *Alarm) every(period time.Duration) {
	_, next := clock(period)
	a.set(unix.TFD_TIMER_ABSTIME, unix.ItimerSpec{Value: unix.NsecToTimespec(next), Interval: unix.NsecToTimespec(int64(period))})
}
