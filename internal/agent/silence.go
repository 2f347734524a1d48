package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
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
	var answered atomic.Int64 // Unix time in ns: when it last did
	r.ear.missed = func() {
		h.lookWhetherCutOff()
		if len(door.Addrs) > 0 && r.ear.heard() > silence/3 {
			asking.Go(func() {
				if h.asks(ctx, door) {
					answered.Store(time.Now().UnixNano())
				}
			})
		}
	}
	r.ear.excuse = func() bool {
		return h.wasCutOff() || time.Since(time.Unix(0, answered.Load())) < silence || time.Since(time.Unix(0, r.host.alive.Load())) < silence-silence/patientWaits
	}
	r.ear.wait(silence)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ears[r.ear] = true
	return func() {
		stop()
		asking.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.ears, r.ear)
	}
}

// asks asks an agent, over a connection of its own, whether it is there. What a short cut has
// held up TCP tries again after waits that it doubles, up to a second, and another short cut
// may be just then; who connects anew waits for nothing. Nothing is said: that it answers as
// nobody else could is all.
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
	for _, i := range m.Heard {
		a.heardOf(p.host, i, at)
	}
	for _, l := range m.Links {
		if l.Bytes > 0 && l.RTT >= a.job.Silence/queueShows {
			a.heardOf(p.host, l.Peer, at)
		}
	}
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
	if ns := at.UnixNano(); ns > g.alive.Load() {
		g.alive.Store(ns)
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
// them once a second, as often as TCP tries again (see persist).
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
