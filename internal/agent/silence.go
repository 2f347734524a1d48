package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// patientWaits in a row are a silence.
const patientWaits = 10

// A patient is a connection whose reads end when nothing has come for a while. What
// counts is ten waits in a row in which nothing came, not a time of day: who was itself
// stopped, or starved, for so long finds what has come meanwhile.
type patient struct {
	*tls.Conn
	silence time.Duration // zero: for ever. Set by who reads
	at      atomic.Int64  // Unix time in ns: when something came last

	// missed is called after each wait in which nothing came; nil: nothing is. Set by who reads.
	missed func()

	// excuse tells, after a silence, whether to wait on, up to control.AlivePatient in all:
	// it is asked again after each wait. Nil: never. Set by who reads.
	excuse func() bool
}

// wait sets for how long nothing may come.
func (c *patient) wait(silence time.Duration) {
	c.silence = silence
	c.at.Store(time.Now().UnixNano())
	if c.excuse != nil {
		silence = max(silence, control.AlivePatient)
	}
	outwait(c.NetConn(), silence)
}

// heard is how long ago something came.
func (c *patient) heard() time.Duration { return time.Since(time.Unix(0, c.at.Load())) }

// A silent is for how long nothing was heard.
type silent time.Duration

func (s silent) Error() string {
	return fmt.Sprintf("nothing was heard for %v", time.Duration(s).Round(100*time.Millisecond))
}

func (c *patient) Read(b []byte) (int, error) {
	if c.silence == 0 {
		return c.Conn.Read(b)
	}
	quiet := c.silence
	for waits := patientWaits; ; waits = 1 {
		n, err := c.hear(b, waits)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if c.excuse == nil || quiet >= control.AlivePatient || !c.excuse() {
			return 0, silent(quiet)
		}
		quiet = max(quiet, c.heard())
	}
}

// hear reads until nothing has come in so many waits, which is os.ErrDeadlineExceeded.
func (c *patient) hear(b []byte, waits int) (n int, err error) {
	for range waits {
		c.SetReadDeadline(time.Now().Add(c.silence / patientWaits))
		n, err = c.Conn.Read(b)
		if n > 0 {
			c.at.Store(time.Now().UnixNano())
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if c.missed != nil {
			c.missed()
		}
	}
	return n, err
}
