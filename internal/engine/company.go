package engine

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// company is whom a caller gives its core to. The zero company is not known yet.
type company struct {
	given    uint32    // how often
	switches int64     // of the caller's thread, when they were last looked at
	since    time.Time // when it had as many
}

const (
	givenPerLook = 64                   // so often the core is given away between two looks
	aloneFor     = 2 * time.Millisecond // as long as the system may prefer this thread to another
)

// gone notes that the core was given away. It tells whether nobody takes it any more.
func (c *company) gone() bool {
	if c.given++; c.given%givenPerLook != 0 {
		return false
	}
	n, ok := switches()
	return ok && c.goneBy(n, time.Now())
}

// goneBy is gone at a look, when the caller's thread had lost its core to others so often. A
// goroutine that has changed its thread looks like one that was not alone.
func (c *company) goneBy(switches int64, now time.Time) bool {
	if c.since.IsZero() || switches != c.switches {
		c.switches, c.since = switches, now
		return false
	}
	return now.Sub(c.since) > aloneFor
}

// switches is how often the system has switched from this thread to another.
func switches() (n int64, ok bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0, false
	}
	return int64(u.Nvcsw) + int64(u.Nivcsw), true
}

// give gives the core away, if another thread wants it.
func give() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// gave gives the core away, and tells whether another thread took it.
func gave() bool {
	before, _ := switches()
	give()
	after, ok := switches()
	return ok && after != before
}

// A neighbour is who sends from the core of the caller who waits for it, if anybody does: both poll in
// vain, as neither gets the core before the other sleeps. So who is about to sleep gives it
// away first. A neighbour has it for no longer than it polls, and has sent something then: after
// neighbourly times in a row it is one. Who has it for longer only computes; to give the core to that
// one helps nobody, and is tried seldom.
type neighbour struct {
	next time.Time // when to give it away again, if it was in vain
	row  int       // times in a row that it was not
}

const (
	neighbourly = 3
	askAgain    = 10 * time.Millisecond // where nobody took it
	askLater    = time.Second           // where it was taken for longer
)

// asked tells whether to give the core away before a sleep.
func (n *neighbour) asked(now time.Time) bool { return n.row > 0 || now.After(n.next) }

// answers notes that the core was given away, and whether it was taken. It tells whether a neighbour
// may have had it.
func (n *neighbour) answers(taken bool, from, to time.Time) bool {
	switch {
	case !taken:
		n.row, n.next = 0, to.Add(askAgain)
	case to.Sub(from) > lostCore:
		n.row, n.next = 0, to.Add(askLater)
	default:
		n.next = to.Add(askAgain)
		return true
	}
	return false
}

// sends notes that something has come after a neighbour may have had the core. It tells whether there is one.
func (n *neighbour) sends() bool {
	if n.row++; n.row < neighbourly {
		return false
	}
	n.row = 0
	return true
}
