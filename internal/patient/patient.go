// Package patient is connections whose readers notice that nothing comes, and do not take for it
// what only looks so: a reader that was itself stopped, a link that is full, a cut that was short.
package patient

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/socket"
)

// Waits in a row are a silence.
const Waits = 10

// A Conn is a connection whose reads end when nothing has come for a while. What
// counts is ten waits in a row in which nothing came, not a time of day: who was itself
// stopped, or starved, for so long finds what has come meanwhile.
//
// One goroutine calls Wait and Read; any may call the other methods.
type Conn struct {
	*tls.Conn

	// At is when something came last.
	At Moment

	// Answered is when the other end was last seen to be there by another connection: what a short
	// cut has held up TCP tries again after waits that it doubles, up to a second, and another short
	// cut may be just then; who connects anew waits for nothing.
	Answered Moment

	// Elsewhere is when something of the other end's host came to processes on others, last: its link
	// may be full, unless its kernel answers at once. Nil: that is not known.
	Elsewhere *Moment

	// Missed is called after each wait in which nothing came; nil: nothing is. Set by who reads.
	Missed func()

	// Excuse tells, after a silence, whether to wait on, up to control.AlivePatient in all:
	// it is asked again after each wait. Nil: never. Set by who reads.
	Excuse func() bool

	silence time.Duration // zero: for ever
	crawl   crawl
	late    *alarm.Alarm // ends a read that waits
}

// Wait sets for how long nothing may come. Before that Read waits for ever. Who reads calls end once no more is read.
func (c *Conn) Wait(silence time.Duration) (end func()) {
	c.silence = silence
	c.At.Set(time.Now())
	socket.Outwait(c.NetConn(), max(silence, control.AlivePatient))
	c.late = alarm.NewFunc(func() { c.SetReadDeadline(time.Unix(1, 0)) })
	return c.late.Close
}

// Heard is how long ago something came.
func (c *Conn) Heard() time.Duration { return c.At.Since() }

// wasElsewhere is how long ago something of the other end's host came to processes on others.
func (c *Conn) wasElsewhere() time.Duration {
	if c.Elsewhere == nil {
		return math.MaxInt64
	}
	return c.Elsewhere.Since()
}

// Sign tells whether there was a sign of life after a time, or of what may hold it up. Who asks waits for a silence
// without any, so it need not be as sure as Read.
func (c *Conn) Sign(since time.Time) bool {
	return c.At.After(since) || c.Heard() < control.AlivePatient &&
		(c.Answered.After(since) || c.crawl.sign(since) || c.wasElsewhere() < time.Since(since) && !c.crawl.hangs(Waits/3))
}

// A Silent is the error of a Read: for how long nothing was heard.
type Silent time.Duration

func (s Silent) Error() string {
	return fmt.Sprintf("nothing was heard for %v", time.Duration(s).Round(100*time.Millisecond))
}

// Read reads as its tls.Conn does. The error is a Silent if nothing came for too long.
func (c *Conn) Read(b []byte) (int, error) {
	if c.silence == 0 {
		return c.Conn.Read(b)
	}
	quiet := c.silence
	for waits := Waits; ; waits = 1 {
		n, err := c.hear(b, waits)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		answered := c.Answered.Since() < c.silence
		excused := answered || c.crawl.goesOn(time.Now()) || c.wasElsewhere() < c.silence-c.silence/Waits && !c.crawl.hangs(Waits) || c.Excuse != nil && c.Excuse()
		if quiet >= control.AlivePatient || !excused {
			return 0, Silent(quiet)
		}
		quiet = max(quiet, c.Heard())
	}
}

// hear reads until nothing has come in so many waits, which is os.ErrDeadlineExceeded.
func (c *Conn) hear(b []byte, waits int) (n int, err error) {
	for range waits {
		n, err = c.readFor(b, c.silence/Waits)
		if n > 0 {
			c.At.Set(time.Now())
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if info := socket.Info(c.NetConn()); info != nil {
			c.crawl.see(info, c.At.Time(), time.Now(), c.silence)
		}
		if c.Missed != nil {
			c.Missed()
		}
	}
	return n, err
}

// readFor reads until nothing has come for so long. Its deadline is an alarm: of Go's own each wakes threads when it
// would have been over, also where something has come.
func (c *Conn) readFor(b []byte, wait time.Duration) (n int, err error) {
	for over := time.Now().Add(wait); ; {
		c.SetReadDeadline(time.Time{}) // first: the alarm may go off at once
		c.late.Set(time.Until(over))
		n, err = c.Conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(over) {
			return n, err
		} // else it went off for the last read
	}
}
