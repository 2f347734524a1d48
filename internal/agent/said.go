package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/leader"
)

// said is told what p said; nil: it has ended its connection, in dying or
// before.
func (a *Agent) said(p *process, m *control.Message) {
	switch {
	case p.judged && !p.exited, p.host.lost:
	case p.hello == nil && (m == nil || m.Hello == nil): // its agent lies: a process says Hello first
	case m == nil:
		a.linkEnd(p)
	case m.Hello != nil:
		a.greet(p, m.Hello)
	case m.Ready != nil:
		a.readied(p, m.Ready.Addrs)
	case m.Finished != nil:
		a.detail("%s: finished %v", p.who(), m.Finished.Ranks)
		a.noteFinished(p, *m.Finished)
		a.finishedSome()
		a.letGo()
	case m.Failed != nil:
		a.rankFailed(p, *m.Failed)
	case m.Saved != nil:
		a.saved(p, *m.Saved)
	case m.Arrived != nil:
		a.arrived(p, *m.Arrived)
	case m.Stayed != nil:
		a.stayed(p, *m.Stayed)
	case m.Traced != nil:
		a.traced(p, *m.Traced)
	case m.Behind != nil:
		a.behind(*m.Behind)
	case m.Call != nil:
		a.callBack(p, m.Call.Process)
	case m.Cut != nil:
		a.cutSeen(p, *m.Cut)
	case m.Lost != nil:
		a.unreached(p, *m.Lost)
	case m.Paths != nil:
		a.pathsRead(p, *m.Paths)
	case m.Report != nil && m.Report.ID == watchID && m.Report.Reading != nil:
		a.read(p, m.Report.Reading)
	case m.Report != nil && m.Report.ID == 0:
		a.misses(p, m.Report.Missed, time.Now())
		a.stalled()
	case m.Report != nil:
		a.report(p, *m.Report)
	}
}

// noteFinished notes that ranks of p have finished, with what they counted where p has told that.
func (a *Agent) noteFinished(p *process, m control.Finished) {
	for _, r := range m.Ranks {
		if slices.Contains(p.ranks, r) {
			p.finished[r] = control.RankReport{Rank: r}
		}
	}
	for _, r := range m.Reports {
		if slices.Contains(p.ranks, r.Rank) {
			r.State = "finished"
			p.finished[r.Rank] = r
		}
	}
	a.emitFinished(p, m.Ranks)
}

// greet is told that p has said Hello.
func (a *Agent) greet(p *process, h *control.Hello) {
	if h.Version != control.Version {
		text := fmt.Sprintf("%s speaks version %d of the control protocol and mpivrun version %d: build the program and mpivrun from the same mpiv%s", p.who(), h.Version, control.Version, a.onHost(p))
		if p.host.adding != nil {
			a.notAdded(p.host, errors.New(text))
		} else {
			a.fail(verdict{code: 1, text: text})
		}
		return
	}
	p.hello = h
	a.emitOf(p, events.Event{Kind: events.ProcessHello})
	a.detail("%s: Hello from PID %d", p.who(), h.PID)
	if a.ending {
		p.send(control.Message{Stop: &control.Stop{Reason: "the job has ended"}})
		return
	}
	if p.judged && p.exited && h.PID != p.pid && p.host.adding == nil && a.interrupts == 0 && !p.allFinished() {
		a.fail(verdict{code: 1, by: p, text: fmt.Sprintf("process %d of %s ended before the program that it has started had joined the job: %q does not wait for what it starts, and has to", p.pid, p.who(), p.prog.Path)})
	}
}

// readied is told that others can reach p at addrs.
func (a *Agent) readied(p *process, addrs []control.Addr) {
	if p.ready {
		return
	}
	p.ready, p.addrs = true, addrs
	a.emitOf(p, events.Event{Kind: events.ProcessReady})
	a.ready++
	if a.ready == 1 {
		a.after(a.job.helloLate, a.missing)
	}
	if a.ending {
		return
	}
	a.runApart(false)
	if a.toldStart && p.host.adding != nil {
		a.readyToJoin(p.host)
	} else if a.toldStart {
		a.joinLate(p)
	} else if a.ready == len(a.processes) {
		a.startRanks()
	}
	a.mixed()
}

// startRanks tells all processes what they are.
func (a *Agent) startRanks() {
	a.toldStart = true
	for _, p := range a.processes {
		p.joined = true
		for _, r := range p.ranks {
			a.survival.homes[control.Life{Rank: r, Epoch: a.survival.epoch}] = p.host
		}
	}
	start := a.startOf()
	a.record(ledger.Entry{Started: &ledger.Started{Copied: a.survival.copied}})
	for _, h := range a.hosts {
		if len(h.processes) > 0 {
			h.place.send(control.Message{Start: &start}, h.processes...)
		}
	}
	a.pairHosts()
	a.detail("all processes are there; ranks start")
	a.emit(events.Event{Kind: events.AllReady})
	a.beginPolicy()
	a.beginChaos()
	a.lookAt()
}

// missing names the processes that have not spoken while others wait for them.
func (a *Agent) missing() {
	if a.toldStart || a.ending {
		return
	}
	var silent []*process
	for _, p := range a.everyone() {
		if p.hello == nil {
			silent = append(silent, p)
		}
	}
	if len(silent) > 0 {
		a.warn("%s runs and has not called mpiv.Main for %v; the others wait for it (process %d%s)", names(silent), a.job.helloLate, silent[0].pid, a.onHost(silent[0]))
	}
}

// letGo ends the job when all ranks have finished: until then processes stay,
// so that what they have sent arrives. After an interrupt nobody waits for it.
func (a *Agent) letGo() {
	if a.interrupts > 0 {
		for _, p := range a.processes {
			if p.allFinished() {
				p.send(control.Message{Stop: &control.Stop{}})
			}
		}
		return
	}
	if !a.allFinished() {
		return
	}
	if a.allDead() {
		a.fail(*a.survival.loss)
		return
	}
	for _, h := range a.hosts {
		if h.adding != nil {
			a.drop(h, errors.New("the job has ended"))
		}
	}
	a.calm()
	a.tellPolicy(leader.Ending{})
	a.record(ledger.Entry{Verdict: &ledger.Verdict{}})
	for _, p := range a.processes {
		if p.joined { // others are told when they have
			p.send(control.Message{Stop: &control.Stop{}})
		}
	}
}
