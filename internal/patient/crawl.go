package patient

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A crawl is what the kernel knows of a connection whose reader gets nothing: where a link is full,
// what comes of the other end may not be what is next, as that was lost in a queue, and all takes
// long. A kernel sends nothing for a process that is stopped but what was on its way; over a cut in the
// other direction it sends that again and again, so what is here already does not count.
type crawl struct {
	come   uint64       // the bytes that were next, and the segments that were not
	seen   Moment       // when there were more, or the reader got something
	until  Moment       // how long it goes on
	queued atomic.Bool  // by how long round trips take
	prompt atomic.Int32 // looks in a row, since something came, at which what is sent there is acknowledged at once
}

// see takes how a connection is now, whose reader got something last at heard.
func (c *crawl) see(info *unix.TCPInfo, heard, now time.Time, silence time.Duration) {
	seen, come := c.seen.Time(), info.Bytes_received+uint64(info.Rcv_ooopack)
	switch {
	case heard.After(seen):
		seen = heard
		c.prompt.Store(0)
	case come != c.come:
		seen = now
	}
	c.come = come
	patience := silence - silence/Waits
	rtt := time.Duration(info.Rtt) * time.Microsecond
	queued := rtt >= silence/QueueShows+ackDelayed
	if queued {
		patience += rtt + 4*time.Duration(info.Rttvar)*time.Microsecond // as TCP waits itself
	}
	if acked := time.Duration(info.Last_ack_recv) * time.Millisecond; queued || acked > silence/3 {
		c.prompt.Store(0)
	} else {
		c.prompt.Add(1)
	}
	c.seen.Set(seen)
	c.until.Set(seen.Add(patience))
	c.queued.Store(queued)
}

// ackDelayed is how long a kernel may wait with what it acknowledges for something to send with it: an agent that
// gets no processor time says nothing.
const ackDelayed = 200 * time.Millisecond

// goesOn tells whether something of the other end came lately, or may take as long.
func (c *crawl) goesOn(now time.Time) bool { return c.until.After(now) }

// hangs tells whether the other end's process does, by its kernel: that takes in, and acknowledges at once over
// the same link, all that it is sent, for so many waits.
func (c *crawl) hangs(waits int32) bool { return c.prompt.Load() >= waits }

// sign tells whether something came after a time, or may stand in a queue.
func (c *crawl) sign(since time.Time) bool {
	return c.seen.After(since) || c.queued.Load() && c.goesOn(time.Now())
}

// QueueShows is the part of the silence from which on a round trip shows a queue that may hold up
// signs of life.
const QueueShows = 8
