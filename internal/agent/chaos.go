package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
)

// A Breaker does faults to hosts. Its methods are not called at the same time.
type Breaker interface {
	// Prepare is f with what was left open chosen, or why f cannot be done. busy is
	// the hosts that the job has processes on.
	Prepare(f chaos.Fault, busy []string) (chaos.Fault, error)
	Begin(f chaos.Fault) error
	End(f chaos.Fault) (text string, err error) // of one that has begun; the text is what there is to tell
}

// codeUsage is the exit code for a command line that makes no sense.
const codeUsage = 2

// dutyTime is the time of one turn of a duty.
const dutyTime = 100 * time.Millisecond

// A turmoil is the faults that are done to the job. Owned by loop.
type turmoil struct {
	faults  []chaos.Fault // by when they begin
	steps   []chaos.Step  // the last of each; empty: it is still to come
	history *os.File      // nil: none
	began   time.Time     // when ranks started
	over    bool          // no more begins
	lasting map[int]*lasting
	held    map[*process]int // how many faults have it stand still
	killed  map[*process]bool

	tasks    chan task    // for the breaker; room for all that there can be
	outcomes chan outcome // the same
	worker   sync.WaitGroup
}

// A lasting is a fault of a process that goes on.
type lasting struct {
	p     *process
	holds bool // the process stands still for it
}

// A task is the beginning or the end of a fault of hosts.
type task struct {
	n   int // of the fault
	end bool
}

type outcome struct {
	task
	text string
	err  error
}

// prepareChaos looks whether the job's schedule can be done.
func (a *Agent) prepareChaos() error {
	if len(a.job.Chaos) == 0 {
		return nil
	}
	t, ranks := &a.turmoil, 0
	var busy []string
	for _, p := range a.processes {
		ranks += len(p.ranks)
		if !slices.Contains(busy, p.host.name) {
			busy = append(busy, p.host.name)
		}
	}
	var err error
	if t.faults, err = a.job.Chaos.Faults(ranks); err != nil {
		return &exit.Error{Code: codeUsage, Err: fmt.Errorf("--chaos: %w", err)}
	}
	for i, f := range t.faults {
		switch {
		case f.OfRank():
			if f.Kind == chaos.KindMove {
				err = a.canMove(f, busy)
			}
		case a.job.Breaker == nil:
			err = errors.New("it needs a lab")
		default:
			t.faults[i], err = a.job.Breaker.Prepare(f, busy)
		}
		if err != nil {
			return &exit.Error{Code: codeUsage, Err: fmt.Errorf("--chaos: %v: %w", f, err)}
		}
	}
	if a.job.ChaosHistory != "" {
		if t.history, err = os.Create(a.job.ChaosHistory); err != nil {
			return fmt.Errorf("--chaos-history: %w", err)
		}
	}
	t.steps = make([]chaos.Step, len(t.faults))
	t.lasting, t.held, t.killed = map[int]*lasting{}, map[*process]int{}, map[*process]bool{}
	t.tasks, t.outcomes = make(chan task, 2*len(t.faults)), make(chan outcome, 2*len(t.faults))
	return nil
}

func (a *Agent) canMove(f chaos.Fault, busy []string) error {
	switch {
	case a.job.Options.Survive == "none":
		return errors.New("the job runs with --survive none: its ranks cannot be moved")
	case a.job.Options.Survive == "report":
		return errors.New("the job runs with --survive report: its ranks cannot be moved")
	case a.job.Spares == 0:
		return errors.New("there is no spare process to move to: say --spares 1")
	case f.Host != "" && !slices.Contains(busy, a.called(f.Host)):
		return fmt.Errorf("the job has no process on host %s", f.Host)
	}
	return nil
}

// beginChaos is told that ranks start.
func (a *Agent) beginChaos() {
	t := &a.turmoil
	if len(t.faults) == 0 || t.over {
		return
	}
	t.began = time.Now()
	if a.job.Breaker != nil {
		t.worker.Go(a.breakHosts)
	}
	a.strikeFrom(0)
}

// strikeFrom does fault n and all after it when they are due, in their order, however late that is.
func (a *Agent) strikeFrom(n int) {
	t := &a.turmoil
	for ; n < len(t.faults); n++ {
		if wait := t.faults[n].Start - time.Since(t.began); wait > 0 {
			a.after(wait, func() { a.strikeFrom(n) })
			return
		}
		a.strike(n)
	}
}

// breakHosts does the faults of hosts, in order, until tasks is closed.
func (a *Agent) breakHosts() {
	t := &a.turmoil
	done := map[int]bool{}
	for k := range t.tasks {
		o := outcome{task: k}
		switch f := t.faults[k.n]; {
		case !k.end:
			o.err = a.job.Breaker.Begin(f)
			done[k.n] = o.err == nil
		case done[k.n]:
			o.text, o.err = a.job.Breaker.End(f)
		default: // it has not begun, which was told
			continue
		}
		t.outcomes <- o
		a.post(a.broken)
	}
}

// broken looks at what the breaker has done.
func (a *Agent) broken() {
	t := &a.turmoil
	for {
		select {
		case o := <-t.outcomes:
			switch {
			case o.err != nil:
				a.note(o.n, chaos.Refused, nil, o.err.Error())
			case o.end:
				a.note(o.n, chaos.Ended, nil, o.text)
			case t.steps[o.n] == chaos.Ended: // that is on its way, too
				a.note(o.n, chaos.Begun, nil, "")
				t.steps[o.n] = chaos.Ended
			default:
				a.note(o.n, chaos.Begun, nil, "")
				if long := t.faults[o.n].Length; long > 0 && !t.over {
					a.after(long, func() { a.undo(o.n) })
				}
			}
		default:
			return
		}
	}
}

// strike does fault n. To whom is known only now.
func (a *Agent) strike(n int) {
	t := &a.turmoil
	if t.over {
		return
	}
	f := t.faults[n]
	if !f.OfRank() {
		for m, before := range t.faults[:n] { // it began late, if by little: its end would undo f
			if before.Kind == f.Kind && before.Host == f.Host && before.Length > 0 && before.Start+before.Length <= f.Start {
				a.undo(m)
			}
		}
		t.steps[n] = chaos.Begun // or is about to
		t.tasks <- task{n: n}
		return
	}
	p := a.processOf(f.Rank)
	if p == nil || !p.started || p.exited || t.killed[p] {
		a.note(n, chaos.Refused, p, "the process that had it has just ended")
		return
	}
	switch f.Kind {
	case chaos.KindKill:
		a.note(n, chaos.Begun, p, "")
		t.killed[p] = true
		p.kill(syscall.SIGKILL)
	case chaos.KindMove:
		a.note(n, chaos.Begun, p, "")
		a.move(f.Rank, f.Host, func(err error) {
			if t.steps[n] != chaos.Begun {
				return // the job has ended meanwhile
			}
			if err != nil {
				a.note(n, chaos.Refused, p, err.Error())
				return
			}
			a.note(n, chaos.Ended, a.processOf(f.Rank), "the rank goes on there")
		})
	default:
		a.note(n, chaos.Begun, p, "")
		l := &lasting{p: p}
		t.lasting[n] = l
		if a.hold(l, true); f.Kind == chaos.KindDuty {
			a.turn(n, l)
		}
		if f.Length > 0 {
			a.after(f.Length, func() { a.undo(n) })
		}
	}
}

// turn has a process on duty go on or stand still, in turn. It stands still now.
func (a *Agent) turn(n int, l *lasting) {
	run := dutyTime * time.Duration(a.turmoil.faults[n].Percent) / 100
	a.after(dutyTime-run, func() {
		if a.turmoil.lasting[n] != l {
			return
		}
		a.hold(l, false)
		a.after(run, func() {
			if a.turmoil.lasting[n] == l && !l.p.exited {
				a.hold(l, true)
				a.turn(n, l)
			}
		})
	})
}

// hold has the process of l stand still, or go on when no other fault holds it.
func (a *Agent) hold(l *lasting, still bool) {
	if l.holds == still {
		return
	}
	l.holds = still
	held := a.turmoil.held
	if still {
		if held[l.p]++; held[l.p] == 1 {
			l.p.kill(syscall.SIGSTOP)
		}
	} else if held[l.p]--; held[l.p] == 0 {
		delete(held, l.p)
		l.p.kill(syscall.SIGCONT)
	}
}

// undo ends fault n, if it lasts.
func (a *Agent) undo(n int) {
	t := &a.turmoil
	if t.steps[n] != chaos.Begun {
		return
	}
	if !t.faults[n].OfRank() {
		t.steps[n] = chaos.Ended // or is about to
		t.tasks <- task{n: n, end: true}
		return
	}
	l := t.lasting[n]
	delete(t.lasting, n)
	a.hold(l, false)
	text := ""
	if l.p.exited {
		text = "its process had ended"
	}
	a.note(n, chaos.Ended, l.p, text)
}

// calm ends all faults that last; no more begin. Twice is harmless.
func (a *Agent) calm() {
	t := &a.turmoil
	if t.over || len(t.faults) == 0 {
		return
	}
	t.over = true
	missed := 0
	for n, f := range t.faults {
		switch {
		case t.steps[n] == "":
			missed++
			a.note(n, chaos.Missed, nil, "the job ends")
		case f.Kind == chaos.KindMove && t.steps[n] == chaos.Begun:
			a.note(n, chaos.Refused, nil, "the job ends before the rank has moved")
		case f.Lasts():
			a.undo(n)
		}
	}
	switch {
	case missed == 0:
	case !t.began.IsZero():
		a.warn("chaos: the job ends before %d of %d faults", missed, len(t.faults))
	case !a.ending: // of one that failed first that is told
		a.warn("chaos: none of %d faults was done, as no rank has started: that takes a program that calls mpiv.Main", len(t.faults))
	}
}

// endChaos waits until the hosts are as they were. The loop has ended.
func (a *Agent) endChaos() {
	t := &a.turmoil
	if len(t.faults) == 0 {
		return
	}
	a.calm()
	close(t.tasks)
	t.worker.Wait()
	a.broken()
	if t.history != nil {
		t.history.Close()
	}
}

// note tells what became of fault n: the history, who watches, and people. p is
// the process that has the rank; nil where that is not known.
func (a *Agent) note(n int, step chaos.Step, p *process, text string) {
	t := &a.turmoil
	f := t.faults[n]
	t.steps[n] = step
	r := chaos.Record{Time: time.Now().UTC().Round(0), Fault: f.String(), Step: step, Host: f.Host, Text: text}
	if !t.began.IsZero() {
		r.After = time.Since(t.began)
	}
	e := events.Event{Kind: events.FaultOrdered, Host: f.Host, Fault: &events.Fault{Fault: r.Fault, Step: string(step)}}
	what := string(step)
	if f.OfRank() {
		r.Rank, r.Host, e.Host = new(f.Rank), "", ""
	}
	if p != nil {
		r.Process, r.PID, r.Host = new(p.index), p.pid, p.host.name
		e.Process, e.Rank, e.Host, e.Fault.PID = r.Process, r.Rank, r.Host, p.pid
		what += fmt.Sprintf(" in process %d (PID %d) on host %s", p.index, p.pid, p.host.name)
	}
	if text != "" {
		what += ": " + text
	}
	e.Text = r.Fault + ": " + what
	a.emit(e)
	if step != chaos.Missed { // they are counted
		a.warn("chaos: %s", e.Text)
	}
	if t.history == nil {
		return
	}
	if _, err := t.history.Write(chaos.Append(nil, r)); err != nil {
		a.warn("--chaos-history: %v; it ends here", err)
		t.history.Close()
		t.history = nil
	}
}
