package process

import (
	"runtime/metrics"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/waits"
	"github.com/mpiv/mpiv/transport"
)

// reportWhenWatched sends readings while the agent wants them.
func (p *Process) reportWhenWatched() {
	tick := time.NewTicker(time.Hour)
	tick.Stop()
	defer tick.Stop()
	var periodic control.Watch
	for {
		var id uint64
		select {
		case w := <-p.watches:
			switch id = w.ID; {
			case w.Every > 0:
				periodic = w
				tick.Reset(w.Every)
			case w.ID == periodic.ID:
				tick.Stop()
			}
		case <-tick.C:
			id = periodic.ID
		case <-p.stopped:
			return
		}
		r := control.Report{ID: id, Process: p.index, Reading: p.reading()}
		p.agent.Send(control.Message{Report: &r}) // if that fails, Receive will
	}
}

// reading is what this process counts.
func (p *Process) reading() *events.Reading {
	now := time.Now()
	var ranks []events.RankReading
	for _, r := range p.Report().Ranks {
		ranks = append(ranks, rankReading(now, r))
	}
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/sched/goroutines:goroutines"}}
	metrics.Read(heap) // unlike runtime.ReadMemStats it stops nothing
	return &events.Reading{
		Up: int64(now.Sub(p.began)), Heap: heap[0].Value.Uint64(), Goroutines: int(heap[1].Value.Uint64()),
		Parked: p.engine.Parked(), Strangers: p.strangers(), Ranks: ranks, Links: p.links(),
	}
}

// rankReading is r in short.
func rankReading(now time.Time, r control.RankReport) events.RankReading {
	short := events.RankReading{Rank: r.Rank, State: r.State}
	for _, c := range r.Sent {
		short.Sent += c.N
	}
	for _, c := range r.Received {
		short.Received += c.N
	}
	if len(r.Waits) > 0 {
		w := r.Waits[0]
		short.Op, short.Where, short.For = w.Op, w.Where, waits.For(w)
		if w.Since > 0 {
			short.Waits = max(now.UnixNano()-w.Since, 0)
		}
	}
	return short
}

// strangers is how many connections the networks refused.
func (p *Process) strangers() (n uint64) {
	for _, net := range p.networks {
		if e, ok := net.Endpoint.(interface{ Strangers() uint64 }); ok {
			n += e.Strangers()
		}
	}
	return n
}

// links is how this process talks to each that it has talked to.
func (p *Process) links() (all []events.LinkReading) {
	for _, f := range p.fabric.Links() {
		h := p.engine.Held(f.Process)
		l := events.LinkReading{
			Path:         events.Path{Peer: f.Process, Why: f.Why, Switches: f.Switches},
			SentMessages: f.Sent.Messages, SentBytes: f.Sent.Bytes, ReceivedMessages: f.Received.Messages, ReceivedBytes: f.Received.Bytes,
			Resent: h.Resent, Queued: h.Queued, Log: h.Logged, Unexpected: h.Unexpected,
		}
		for i, c := range f.Candidates {
			k := events.Candidate{Class: c.Class.String(), Network: c.Network, Local: string(c.Local), Remote: string(c.Remote), State: c.State, RTT: int64(c.RTT), Rate: c.Rate}
			l.Candidates = append(l.Candidates, k)
			if i == f.InUse {
				l.Class, l.Network, l.Local, l.Remote, l.Since = k.Class, k.Network, k.Local, k.Remote, f.Since.UTC().Round(0)
				l.RTT, l.Rate = k.RTT, k.Rate
			}
		}
		if m, ok := p.engine.Link(f.Process).Conn.(transport.Measured); ok {
			path := m.Path()
			l.Retransmits = path.Retransmits
			if l.RTT == 0 {
				l.RTT = int64(path.RTT)
			}
		}
		all = append(all, l)
	}
	return all
}
