package process

import (
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/trace"
)

// traceEvery is how often records go to the agent, at least.
const traceEvery = 50 * time.Millisecond

// A recording is what the ranks of this process do, on its way to the agent.
type recording struct {
	id       uint64
	recorder *trace.Recorder
	stop     chan struct{} // closed to end it
	stopped  chan struct{} // closed when the agent was told all
}

// Record has the calls of l's rank recorded through at while the agent wants it.
func (l *Life) Record(at *atomic.Pointer[trace.Rank]) {
	if l.p == nil {
		return
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.recorder = at
	if rec := l.p.recording; rec != nil {
		at.Store(rec.recorder.Rank(int32(l.Rank)))
	}
}

// trace does what the agent wants: records begin to go to it, or end.
func (p *Process) trace(m control.Trace) {
	if m.Off {
		p.endTrace()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recording != nil {
		return
	}
	rec := &recording{id: m.ID, recorder: trace.NewRecorder(), stop: make(chan struct{}), stopped: make(chan struct{})}
	p.recording = rec
	for _, l := range p.living {
		if l.recorder != nil {
			l.recorder.Store(rec.recorder.Rank(int32(l.Rank)))
		}
	}
	p.finished.Go(func() { p.sendTrace(rec) })
}

// endTrace has nothing recorded any more, and returns when the agent was told what was.
func (p *Process) endTrace() {
	p.mu.Lock()
	rec := p.recording
	p.recording = nil
	for _, l := range p.living {
		if l.recorder != nil {
			l.recorder.Store(nil)
		}
	}
	p.mu.Unlock()
	if rec != nil {
		close(rec.stop)
		<-rec.stopped
	}
}

// sendTrace sends what is recorded, until that ends.
func (p *Process) sendTrace(rec *recording) {
	defer close(rec.stopped)
	tick := time.NewTicker(traceEvery)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-rec.recorder.Full():
		case <-rec.stop:
			last = true
		}
		if b := rec.recorder.Take(); b != nil || last {
			p.agent.Send(control.Message{Traced: &control.Traced{ID: rec.id, Chunk: b, Last: last}}) // if that fails, Receive will
		}
	}
}

// traced keeps a part of a move, if such are recorded: it began then, and ends now.
func (l *Life) traced(kind trace.Kind, op string, began time.Time, epoch uint32) {
	l.p.mu.Lock()
	rec := l.p.recording
	l.p.mu.Unlock()
	if rec != nil {
		r := rec.recorder
		r.Add(trace.Record{Kind: kind, Op: op, Rank: int32(l.Rank), Start: r.Time(began), Took: int64(time.Since(began)), Epoch: epoch})
	}
}
