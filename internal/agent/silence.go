package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// A patient is a connection whose reads end when nothing has come for a while. What
// counts is ten waits in a row in which nothing came, not a time of day: who was itself
// stopped, or starved, for so long finds what has come meanwhile.
type patient struct {
	*tls.Conn
	silence time.Duration // zero: for ever. Set by who reads
	at      atomic.Int64  // Unix time in ns: when something came last
}

// wait sets for how long nothing may come.
func (c *patient) wait(silence time.Duration) {
	c.silence = silence
	outwait(c.NetConn(), silence)
}

// errSilence: nothing was heard.
var errSilence = errors.New("nothing was heard")

func (c *patient) Read(b []byte) (int, error) {
	if c.silence == 0 {
		return c.Conn.Read(b)
	}
	for range 10 {
		c.SetReadDeadline(time.Now().Add(c.silence / 10))
		n, err := c.Conn.Read(b)
		if n > 0 {
			c.at.Store(time.Now().UnixNano())
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	return 0, fmt.Errorf("%w for %v", errSilence, c.silence)
}
