package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/trace"
)

const (
	traceQueue    = 4096                  // chunks and events that may wait to be written
	traceHeld     = 64 << 20              // bytes of them
	tracePatience = 2 * time.Second       // for processes to tell the last, when they are asked to
	traceLook     = 20 * time.Millisecond // how often it is seen whether they have
	traceMost     = 1000 * 24 * time.Hour // for which one may ask
	traceParting  = 5 * time.Second       // for who asked to take what is left when the trace has ended: the job does not wait longer
)

// A tracing is a trace that is being written. Owned by loop, but for what its goroutine
// does.
type tracing struct {
	id     uint64
	out    traceOutput
	queue  chan func(*trace.Writer) // closed by the loop, after the last
	held   atomic.Int64             // bytes in it
	lost   uint64                   // what had no room in it
	awaits map[*process]bool        // nil: it has not been ended. Who has not told the last
	clocks map[string]string
}

// A traceOutput is a connection or a file.
type traceOutput interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

// offer queues f, which holds n bytes. Nobody waits: what has no room is lost, and
// counted.
func (t *tracing) offer(n int, f func(*trace.Writer)) {
	if t.held.Add(int64(n)) > traceHeld {
		t.held.Add(-int64(n))
		t.lost++
		return
	}
	select {
	case t.queue <- func(w *trace.Writer) { t.held.Add(-int64(n)); f(w) }:
	default:
		t.held.Add(-int64(n))
		t.lost++
	}
}

// openTrace opens the file that the trace of the whole job goes to.
func openTrace(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("open the file for the trace: %w", err)
	}
	return f, nil
}

// traceJob has the whole job traced to the file that was opened.
func (a *Agent) traceJob() {
	f := a.traceFile
	a.beginTrace(f, nil, func(s trace.Summary, err error) {
		if closed := f.Close(); err == nil {
			err = closed
		}
		switch {
		case err != nil:
			a.remark("the trace could not be written, and ends somewhere: %v", err)
		case s.String() != "":
			a.remark("trace in %s: %v", a.job.Trace, s)
		}
	})
}

// beginTrace has what happens from now on written to out, after before, which may be nil,
// was called. When it has ended, done is told, not by the loop.
func (a *Agent) beginTrace(out traceOutput, before func(), done func(trace.Summary, error)) {
	a.lastTrace++
	t := &tracing{id: a.lastTrace, out: out, queue: make(chan func(*trace.Writer), traceQueue), clocks: map[string]string{}}
	a.tracing = t
	now := time.Now()
	a.writers.Go(func() {
		if before != nil {
			before()
		}
		w := trace.NewWriter(out, now)
		for f := range t.queue {
			f(w)
		}
		done(w.Close(t.lost, t.clocks))
	})
	for _, e := range a.standing() {
		t.offer(0, func(w *trace.Writer) { w.Event(e) })
	}
	for _, p := range a.members() {
		p.send(control.Message{Trace: &control.Trace{ID: t.id}})
	}
}

// traceOf is what a process that starts is told.
func (a *Agent) traceOf() *control.Trace {
	if a.tracing == nil || a.tracing.awaits != nil {
		return nil
	}
	return &control.Trace{ID: a.tracing.id}
}

// traceEvent is told what happens.
func (a *Agent) traceEvent(e events.Event) {
	if a.tracing != nil && e.Kind != events.ProcessReading {
		a.tracing.offer(0, func(w *trace.Writer) { w.Event(e) })
	}
}

// traced is told what p has recorded.
func (a *Agent) traced(p *process, m control.Traced) {
	t := a.tracing
	if t == nil || t.id != m.ID {
		return
	}
	if len(m.Chunk) > 0 {
		skew := p.host.clock.differs()
		if p.host.place != (local{a}) {
			within := p.host.clock.within.Round(time.Microsecond)
			t.clocks[p.host.name] = fmt.Sprintf("%v behind, within %v, and corrected by that", skew.Round(time.Microsecond), within)
			if skew == 0 {
				t.clocks[p.host.name] = fmt.Sprintf("not known to differ, within %v", within)
			}
		}
		t.offer(len(m.Chunk), func(w *trace.Writer) {
			if err := w.Chunk(p.index, skew, m.Chunk); err != nil {
				a.remark("a part of the trace is left out: %v", err)
			}
		})
	}
	if m.Last {
		delete(t.awaits, p)
	}
}

// endTrace has the processes record no more, and then the trace ended. Twice is harmless.
func (a *Agent) endTrace(t *tracing) {
	if a.tracing != t || t.awaits != nil {
		return
	}
	t.awaits = map[*process]bool{}
	for _, p := range a.members() {
		if p.send(control.Message{Trace: &control.Trace{ID: t.id, Off: true}}) {
			t.awaits[p] = true
		}
	}
	a.lookAtTrace(t, time.Now().Add(tracePatience))
}

// lookAtTrace ends t when all have told the last, or it is late.
func (a *Agent) lookAtTrace(t *tracing, late time.Time) {
	if a.tracing != t {
		return
	}
	for p := range t.awaits {
		if p.exited || p.linkEnded {
			delete(t.awaits, p)
		}
	}
	if len(t.awaits) == 0 || time.Now().After(late) {
		a.closeTrace()
		return
	}
	a.after(traceLook, func() { a.lookAtTrace(t, late) })
}

// closeTrace ends the trace with what is known.
func (a *Agent) closeTrace() {
	if a.tracing != nil {
		a.tracing.out.SetWriteDeadline(time.Now().Add(traceParting)) // a file has none
		close(a.tracing.queue)
		a.tracing = nil
	}
}

// traceAsked begins a trace for who asked, and ends it after a while.
func (a *Agent) traceAsked(q Question, out traceOutput, before func(), done func(trace.Summary, error)) (*tracing, error) {
	switch {
	case q.For <= 0 || q.For > traceMost:
		return nil, errors.New("for how long? Say mpivrun trace --for SECONDS")
	case !a.toldStart:
		return nil, errors.New("the job has not started yet")
	case a.ending:
		return nil, errors.New("the job is ending")
	case a.tracing != nil && a.traceFile != nil:
		return nil, fmt.Errorf("the whole job is traced already, to %s (--trace)", a.job.Trace)
	case a.tracing != nil:
		return nil, errors.New("somebody else is having the job traced; ask again when that has ended")
	}
	a.beginTrace(out, before, done)
	t := a.tracing
	a.after(q.For, func() { a.endTrace(t) })
	return t, nil
}

// serveTrace writes a trace to c. It is ended when the other end closes the connection.
func (a *Agent) serveTrace(c *net.UnixConn, q Question) {
	c.SetDeadline(time.Time{})
	type begun struct {
		t   *tracing
		err error
	}
	began, ended := make(chan begun, 1), make(chan struct{})
	a.post(func() {
		t, err := a.traceAsked(q, c, func() { json.NewEncoder(c).Encode(Answer{}) }, func(trace.Summary, error) { close(ended) })
		began <- begun{t, err}
	})
	b := begun{err: errors.New("the job has ended")}
	select {
	case b = <-began:
	case <-a.done:
		select {
		case b = <-began: // the last thing that the loop did
		default:
		}
	}
	if b.err != nil {
		json.NewEncoder(c).Encode(Answer{Error: b.err.Error()})
		return
	}
	var gone sync.WaitGroup
	gone.Go(func() {
		io.Copy(io.Discard, c) // ends when the other end closes it, or we do
		a.post(func() { a.endTrace(b.t) })
	})
	<-ended
	c.CloseRead()
	gone.Wait()
}

// Trace has the job in dir traced for a while, or until ctx ends, and writes the trace to out.
// The error tells if it is not whole.
func Trace(ctx context.Context, dir string, d time.Duration, out io.Writer) (trace.Summary, error) {
	var s trace.Summary
	name := filepath.Base(dir)
	c, err := dialJob(dir)
	if err != nil {
		return s, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.CloseWrite() })() // which ends the trace
	c.SetDeadline(time.Now().Add(questionTime))
	if err := json.NewEncoder(c).Encode(Question{Op: "trace", For: d}); err != nil {
		return s, fmt.Errorf("ask job %s: %w", name, err)
	}
	in := bufio.NewReaderSize(c, 64<<10)
	var ans Answer
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &ans)
	}
	switch {
	case err != nil:
		return s, fmt.Errorf("job %s did not answer: %w", name, err)
	case ans.Error != "":
		return s, errors.New(ans.Error)
	}
	c.SetDeadline(time.Time{})
	var last []byte
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			last = line
			if _, err := out.Write(line); err != nil {
				return s, fmt.Errorf("write the trace: %w", err)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			break
		}
		if err != nil {
			return s, fmt.Errorf("the trace of job %s is not whole: %w", name, err)
		}
	}
	if s, err = trace.ParseSummary(last); err != nil {
		return s, fmt.Errorf("the trace of job %s is not whole: %w", name, err)
	}
	return s, nil
}
