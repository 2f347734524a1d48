package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/socket"
)

// patientWaits in a row are a silence.
const patientWaits = 10

// A patient is a connection whose reads end when nothing has come for a while. What
// counts is ten waits in a row in which nothing came, not a time of day: who was itself
// stopped, or starved, for so long finds what has come meanwhile.
type patient struct {
	*tls.Conn
	silence time.Duration // zero: for ever. Set by who reads
	at      moment        // when something came last
	crawl   crawl

	// answered is when the other end was last seen to be there by another connection: what a short
	// cut has held up TCP tries again after waits that it doubles, up to a second, and another short
	// cut may be just then; who connects anew waits for nothing.
	answered moment

	// elsewhere is when something of the other end's host came to processes on others, last: its link
	// may be full. Nil: that is not known.
	elsewhere *moment

	// missed is called after each wait in which nothing came; nil: nothing is. Set by who reads.
	missed func()

	// excuse tells, after a silence, whether to wait on, up to control.AlivePatient in all:
	// it is asked again after each wait. Nil: never. Set by who reads.
	excuse func() bool
}

// wait sets for how long nothing may come.
func (c *patient) wait(silence time.Duration) {
	c.silence = silence
	c.at.set(time.Now())
	socket.Outwait(c.NetConn(), max(silence, control.AlivePatient))
}

// heard is how long ago something came.
func (c *patient) heard() time.Duration { return c.at.since() }

// wasElsewhere is how long ago something of the other end's host came to processes on others.
func (c *patient) wasElsewhere() time.Duration {
	if c.elsewhere == nil {
		return math.MaxInt64
	}
	return c.elsewhere.since()
}

// sign tells whether there was a sign of life after a time, or of what may hold it up.
func (c *patient) sign(since time.Time) bool {
	return c.at.after(since) || c.heard() < control.AlivePatient &&
		(c.answered.after(since) || c.crawl.sign(since) || c.wasElsewhere() < time.Since(since))
}

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
		answered := c.answered.since() < c.silence
		excused := answered || c.crawl.goesOn(time.Now()) || c.wasElsewhere() < c.silence-c.silence/patientWaits || c.excuse != nil && c.excuse()
		if quiet >= control.AlivePatient || !excused {
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
			c.at.set(time.Now())
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if info := socket.Info(c.NetConn()); info != nil {
			c.crawl.see(info, c.at.time(), time.Now(), c.silence)
		}
		if c.missed != nil {
			c.missed()
		}
	}
	return n, err
}

// A crawl is what the kernel knows of a connection whose reader gets nothing: where a link is full,
// what comes of the other end may not be what is next, as that was lost in a queue, and all takes
// long. A kernel sends nothing for a process that is stopped but what was on its way.
type crawl struct {
	segments uint32      // with data, that have come
	seen     moment      // when there were more, or the reader got something
	until    moment      // how long it goes on
	queued   atomic.Bool // by how long round trips take
}

// see takes how a connection is now, whose reader got something last at heard.
func (c *crawl) see(info *unix.TCPInfo, heard, now time.Time, silence time.Duration) {
	seen := c.seen.time()
	switch {
	case heard.After(seen):
		seen = heard
	case info.Data_segs_in != c.segments:
		seen = now
	}
	c.segments = info.Data_segs_in
	patience := silence - silence/patientWaits
	rtt := time.Duration(info.Rtt) * time.Microsecond
	queued := rtt >= silence/queueShows+ackDelayed
	if queued {
		patience += rtt + 4*time.Duration(info.Rttvar)*time.Microsecond // as TCP waits itself
	}
	c.seen.set(seen)
	c.until.set(seen.Add(patience))
	c.queued.Store(queued)
}

// ackDelayed is how long a kernel may wait with what it acknowledges for something to send with it: an agent that
// gets no processor time says nothing.
const ackDelayed = 200 * time.Millisecond

// goesOn tells whether something of the other end came lately, or may take as long.
func (c *crawl) goesOn(now time.Time) bool { return c.until.after(now) }

// sign tells whether something came after a time, or may stand in a queue.
func (c *crawl) sign(since time.Time) bool {
	return c.seen.after(since) || c.queued.Load() && c.goesOn(time.Now())
}

// listen has it noticed when nothing comes of the agent of r, which takes copies at door,
// until the function that it returns is called.
func (h *head) listen(r *remote, door control.Voter) (end func()) {
	silence := h.a.job.Silence
	if h.a.deputy != nil && r.host.index == h.a.own() {
		r.ear.wait(silence) // it is on this host
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	r.ear.missed = func() {
		h.lookWhetherCutOff()
		if len(door.Addrs) > 0 && r.ear.heard() > silence/3 {
			asking.Go(func() {
				if h.asks(ctx, door) {
					r.ear.answered.set(time.Now())
				}
			})
		}
	}
	r.ear.excuse = h.wasCutOff
	r.ear.wait(silence)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ears[r.ear] = r.host.index + 1
	return func() {
		stop()
		asking.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.ears, r.ear)
	}
}

// ear is the connection of another host's agent; nil: there is none.
func (h *head) ear(agent int) *patient {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ear, of := range h.ears {
		if of == agent {
			return ear
		}
	}
	return nil
}

// slowest is the longest of the round trips to agents of other hosts.
func (h *head) slowest() (rtt time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ear := range h.ears {
		if info := socket.Info(ear.NetConn()); info != nil {
			rtt = max(rtt, time.Duration(info.Rtt)*time.Microsecond)
		}
	}
	return rtt
}

// asks asks an agent, over a connection of its own, whether it is there. Nothing is said: that
// it answers as nobody else could is all.
func (h *head) asks(ctx context.Context, door control.Voter) bool {
	ctx, stop := context.WithTimeout(ctx, h.a.job.Silence)
	defer stop()
	c, err := dialAgent(ctx, h.identity, control.ProtocolAlive, door)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// heard is told by p of what has come to it from other hosts. Where a host's link is full, the signs
// of life of its agent may stand in the queue for longer than the silence, or wait for answers
// that do. But something of what its processes send comes out at the other end all the time, and
// of what is sent to them something is acknowledged.
//
// The time that counts is the earliest at which it can have come. What is acknowledged says
// little of a host whose processes are stopped, as its kernel goes on with it until it has no more room; so it
// counts only where round trips take so long that there must be a queue.
func (a *Agent) heard(p *process, m control.Paths, now time.Time) {
	if p.host.Distrusted {
		return
	}
	at := now.Add(-max(m.Over, 0))
	for _, i := range heardIn(m, a.job.Silence) {
		a.heardOf(p.host, i, at)
	}
}

// heardIn is the processes of which something has come by what another process says.
func heardIn(m control.Paths, silence time.Duration) []int {
	heard := slices.Clone(m.Heard)
	for _, l := range m.Links {
		if l.Bytes > 0 && l.RTT >= silence/queueShows {
			heard = append(heard, l.Peer)
		}
	}
	return heard
}

// queueShows is the part of the silence from which on a round trip shows a queue that may hold up
// signs of life.
const queueShows = 8

// heardOf notes that a process on another host than h was heard of there.
func (a *Agent) heardOf(h *host, process int, at time.Time) {
	if process < 0 || process >= len(a.processes) || a.processes[process].host == h {
		return
	}
	g := a.processes[process].host
	if at.After(g.alive.time()) {
		g.alive.set(at)
	}
	if pair := pairOf(g, h); at.After(a.met[pair]) {
		if a.met == nil {
			a.met = map[[2]*host]time.Time{}
		}
		a.met[pair] = at
	}
}

// reachedAgain is how much later than the first of several hosts the last may be heard when
// this host's network is there again: where they had to be found anew, the kernel asks for
// them once a second, as often as TCP tries again (see socket.Persist).
const reachedAgain = time.Second

// cutOffLong is after how long its user is told that this host seems to be cut off.
const cutOffLong = 2 * time.Second

// lookWhetherCutOff notes it when nothing is heard of any of several agents.
func (h *head) lookWhetherCutOff() {
	h.mu.Lock()
	least := time.Duration(math.MaxInt64)
	for e := range h.ears {
		least = min(least, e.heard())
	}
	alone := len(h.ears) > 1 && least >= h.a.job.Silence/2
	if alone {
		h.cutOff = time.Now()
	}
	tell := alone && least > cutOffLong && !h.cutOffTold
	h.cutOffTold = alone && (h.cutOffTold || tell)
	h.mu.Unlock()
	if tell {
		h.a.post(func() {
			h.a.warn("nothing is heard of any other host for %v: host %s seems to be cut off. Its network is waited for, up to %v", cutOffLong, h.a.hereName(), control.AlivePatient)
		})
	}
}

// wasCutOff tells whether nothing was heard of any of several agents lately. Then it is this
// host that was cut off, and no reason to give up one of which nothing is heard yet.
func (h *head) wasCutOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.cutOff) < h.a.job.Silence+reachedAgain
}
