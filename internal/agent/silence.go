package agent

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/socket"
)

// listen has it noticed when nothing comes of the agent of r, which takes copies at port,
// until the function that it returns is called.
func (h *head) listen(r *remote, port control.Voter) (end func()) {
	silence := h.a.job.Silence
	if h.a.deputy != nil && r.host.index == h.a.own() {
		return r.ear.Wait(silence) // it is on this host
	}
	ctx, stop := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	r.ear.Missed = func() {
		h.lookWhetherCutOff()
		if len(port.Addrs) > 0 && r.ear.Heard() > silence/3 {
			asking.Go(func() {
				if h.asks(ctx, port) {
					r.ear.Answered.Set(time.Now())
				}
			})
		}
	}
	r.ear.Excuse = h.wasCutOff
	waited := r.ear.Wait(silence)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ears[r.ear] = r.host.index + 1
	return func() {
		waited()
		stop()
		asking.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.ears, r.ear)
	}
}

// ear is the connection of another host's agent; nil: there is none.
func (h *head) ear(agent int) *patient.Conn {
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
func (h *head) asks(ctx context.Context, port control.Voter) bool {
	ctx, stop := context.WithTimeout(ctx, h.a.job.Silence)
	defer stop()
	c, err := door.Reach(ctx, h.identity, control.ProtocolAlive, port)
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
		if l.Bytes > 0 && l.RTT >= silence/patient.QueueShows {
			heard = append(heard, l.Peer)
		}
	}
	return heard
}

// heardOf notes that a process on another host than h was heard of there.
func (a *Agent) heardOf(h *host, process int, at time.Time) {
	if process < 0 || process >= len(a.processes) || a.processes[process].host == h {
		return
	}
	g := a.processes[process].host
	if at.After(g.alive.Time()) {
		g.alive.Set(at)
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
		least = min(least, e.Heard())
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
