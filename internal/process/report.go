package process

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// missedLong is for how long a process is not reached before that is told.
const missedLong = time.Second

// Report says what each rank of this process is doing.
func (p *Process) Report() control.Report {
	does, strangers := goroutines()
	r := control.Report{Process: p.index}
	if p.fabric != nil {
		for _, m := range p.fabric.Missed(missedLong) {
			r.Missed = append(r.Missed, control.Missed(m))
		}
	}
	for _, rank := range p.engine.Local() {
		if box := p.engine.Box(rank); box != nil { // otherwise it has left meanwhile
			r.Ranks = append(r.Ranks, p.reportRank(box, does[int(rank)], strangers))
		}
	}
	return r
}

func (p *Process) reportRank(box *engine.Box, a *activity, strangers *activity) control.RankReport {
	if a == nil && strangers.calls > 0 {
		a = &activity{} // its goroutines have other labels now
	}
	box.CheckOrder()
	rank, waits := box.Rank(), box.Waits()
	sent, got, offered := box.Counts()
	r := control.RankReport{Rank: int(rank), State: "running", Sent: counts(sent), Received: counts(got)}
	for _, o := range offered {
		r.Offered = append(r.Offered, control.Numbers{Peer: int(o.Peer), First: o.First, Last: o.Last})
	}
	p.mu.Lock()
	ended := p.ends[rank]
	p.mu.Unlock()
	switch {
	case ended:
		r.State = "finished"
	case a == nil || a.busy > 0 || strangers.busy > 0 || len(waits) < a.calls:
	default:
		r.State = "waiting"
	}
	for _, w := range waits {
		switch {
		case len(w.Needs) > 0:
			r.Waits = append(r.Waits, p.wait(w))
		case !w.Task && r.State == "waiting":
			r.State = "running" // it goes on without anybody's help
		}
	}
	if r.State == "waiting" {
		r.Waits = append(r.Waits, p.parked(rank, a, strangers)...)
	}
	return r
}

// parked is the waits of a rank's goroutines outside this library, and of those of no rank.
// Any goroutine of the process may end them.
func (p *Process) parked(rank topology.Rank, a, strangers *activity) []control.Wait {
	var others []int
	for _, r := range p.engine.Local() {
		if r != rank {
			others = append(others, int(r))
		}
	}
	all := slices.Concat(a.parked, strangers.parked)
	for i, w := range all {
		need := w.Needs[0]
		need.Peers = others
		if len(strangers.parked) > 0 {
			need.What = control.NeedEvent
		}
		all[i].Needs = []control.Need{need}
	}
	return all
}

func (p *Process) wait(w engine.WaitInfo) control.Wait {
	c := control.Wait{ID: w.ID, Op: w.Op, Where: cmp.Or(callsite.Of(w.PCs), callsite.Of(w.Begun)), Since: w.Since.UnixNano(), Any: w.Any}
	if !w.Until.IsZero() {
		c.Until = w.Until.UnixNano()
	}
	for _, n := range w.Needs {
		need := control.Need{Peer: int(n.Peer), What: control.NeedMessage, Comm: engine.Quoted(n.Comm), Context: n.Context, Tag: int(n.Tag), Number: n.Number, Where: callsite.Of(w.Begun)}
		switch {
		case n.Turn:
			need.What = control.NeedTurn
		case n.Save:
			need.What = control.NeedSave
		case n.Receive && n.OnItsWay:
			need.What = control.NeedDelivery
		case n.Receive:
			need.What = control.NeedReceive
		case n.OnItsWay:
			need.What = control.NeedArrival
		}
		for _, r := range n.Of {
			need.Peers = append(need.Peers, int(r))
		}
		if n.Peer == engine.AnySource && n.Of == nil {
			for r := range p.engine.Size() {
				need.Peers = append(need.Peers, r)
			}
		}
		if n.Check != 0 {
			op, root, rooted := strings.Cut(p.describe(n.Check), " with root ")
			if need.Collective = fmt.Sprintf("%s number %d", op, n.Tag); rooted {
				need.Collective += ", root " + root
			}
		}
		for _, t := range n.Unexpected {
			need.Unexpected = append(need.Unexpected, int(t))
		}
		for _, near := range n.Near {
			need.Near = append(need.Near, control.Near{Peer: int(near.Peer), Comm: engine.Quoted(near.Comm)})
		}
		c.Needs = append(c.Needs, need)
	}
	return c
}

func counts(cs []engine.Count) []control.Count {
	all := make([]control.Count, len(cs))
	for i, c := range cs {
		all[i] = control.Count{Peer: int(c.Peer), N: c.N, Held: c.Held}
	}
	return all
}

// reportWhenStuck tells the agent when ranks of this process have slept for a
// while in the same calls: perhaps they wait in vain.
func (p *Process) reportWhenStuck() {
	const pace, patience, soon, seldom = 100 * time.Millisecond, 250 * time.Millisecond, 200 * time.Millisecond, time.Second
	every := pace
	again := soon // the agent's first looks may come too early, or be held up
	tick := alarm.NewTicker(pace)
	defer tick.Stop()
	var told []uint64
	var toldAt time.Time
	for {
		select {
		case <-tick.C:
		case <-p.stopped:
			return
		}
		ranks := p.engine.Local()
		before := every
		if every = pace; len(ranks) == 0 {
			every = seldom // there is nobody who could wait
		}
		if every != before {
			tick.Reset(every)
		}
		var stuck []uint64
		for _, r := range ranks {
			box := p.engine.Box(r)
			if box == nil { // it has left meanwhile
				continue
			}
			for _, w := range box.Waits() {
				if time.Since(w.Since) > patience {
					stuck = append(stuck, w.ID)
				}
			}
		}
		same := slices.Equal(stuck, told)
		if len(stuck) == 0 || same && time.Since(toldAt) < again {
			continue
		}
		if again = min(2*again, seldom); !same {
			again = soon
		}
		told, toldAt = stuck, time.Now()
		r := p.Report()
		p.agent.Send(control.Message{Report: &r})
	}
}
