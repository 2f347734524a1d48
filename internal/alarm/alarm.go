// Package alarm is timers that wake a thread when it is time, once, and no sooner: those of the system. Go's poller
// sleeps for whole milliseconds, so a timer of Go's mostly wakes two times, and one that is put off wakes at the time that it had before. Each
// takes a core from who polls or computes on it, for as long as many messages take.
package alarm

import (
	"context"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An Alarm goes off once each time that it is set. Any goroutine may set it; Close ends it.
type Alarm struct {
	C     <-chan time.Time // has the time of each time that it has gone off, unless one is there; nil after NewFunc
	timer *time.Timer      // where time is virtual, or the process has no descriptors left; nil otherwise
	file  *os.File
	reads sync.WaitGroup

	mu sync.Mutex // guards what follows
	fd int        // -1 after Close
}

// New makes an Alarm, which is not set.
func New() *Alarm {
	off := make(chan time.Time, 1)
	if a := newAlarm(false, func(now time.Time) { tell(off, now) }); a != nil {
		a.C = off
		return a
	}
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Alarm{C: t.C, timer: t}
}

// NewFunc makes an Alarm, which is not set, that calls f, by one goroutine.
func NewFunc(f func()) *Alarm {
	if a := newAlarm(false, func(time.Time) { f() }); a != nil {
		return a
	}
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return &Alarm{timer: t}
}

// newAlarm makes one of the system's, which calls off; nil if there can be none. A shared one is for others than who makes it, too.
func newAlarm(shared bool, off func(now time.Time)) *Alarm {
	if virtual() {
		return nil
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil
	}
	a := &Alarm{fd: fd, file: os.NewFile(uintptr(fd), "timer")}
	a.reads.Go(func() {
		if shared {
			pprof.SetGoroutineLabels(context.Background())
		}
		for times := make([]byte, 8); ; {
			if _, err := a.file.Read(times); err != nil {
				return
			}
			off(time.Now())
		}
	})
	return a
}

func tell(c chan<- time.Time, now time.Time) {
	select {
	case c <- now:
	default:
	}
}

// Set has a go off after d, and at no other time that was set before.
func (a *Alarm) Set(d time.Duration) {
	if a.timer != nil {
		a.timer.Reset(d)
		return
	}
	a.set(0, unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}) // 0 would be never
}

// Unset has it not go off.
func (a *Alarm) Unset() {
	if a.timer != nil {
		a.timer.Stop()
		return
	}
	a.set(0, unix.ItimerSpec{})
}

func (a *Alarm) set(flags int, spec unix.ItimerSpec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd >= 0 {
		unix.TimerfdSettime(a.fd, flags, &spec, nil)
	}
}

// Close ends a: to set it is of no effect any more.
func (a *Alarm) Close() {
	if a.timer != nil {
		a.timer.Stop()
		return
	}
	a.mu.Lock()
	a.fd = -1
	a.mu.Unlock()
	a.file.Close()
	a.reads.Wait()
}

// virtual tells whether the time of this goroutine is none of the system's.
func virtual() bool {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &now) != nil {
		return true
	}
	return time.Since(time.Unix(now.Unix())).Abs() > time.Minute
}
