package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
)

// A newsfeed is the job's events, for who wants them. It is owned by the loop.
type newsfeed struct {
	state       events.State
	audit       events.Audit
	subscribers map[*subscriber]bool
	refusals    map[string]*refusals // by host
	cuts        uint64               // subscribers that were too slow
	targets     []string             // where metrics are served
}

// emit tells every subscriber of e, once what was decided is agreed on. One that is too slow is one
// no longer.
func (a *Agent) emit(e events.Event) {
	f := &a.news
	e.Text = strings.ToValidUTF8(e.Text, "\uFFFD") // JSON has nothing else
	e.V, e.Seq, e.Time = events.Version, f.state.Seq+1, time.Now().UTC().Round(0)
	if !f.state.Apply(e) {
		panic("agent: an event that tells nothing: " + string(events.Append(nil, e)))
	}
	f.audit.Apply(e)
	a.agreed(func() {
		a.traceEvent(e)
		for s := range f.subscribers {
			if e.Seq > s.after && !s.offer(e) {
				a.unsubscribe(s, true)
			}
		}
	})
}

// audit is why ranks are where they are, as it is now.
func (a *Agent) audit() *events.Audit {
	now := a.news.audit
	now.Decisions = slices.Clone(now.Decisions)
	now.Passages = make([]*events.Passage, len(now.Passages))
	for i, p := range a.news.audit.Passages {
		now.Passages[i] = new(*p) // the loop may still write to p
	}
	return &now
}

// emitJob tells of the job, as the first of all events.
func (a *Agent) emitJob() {
	j := events.Job{Name: a.job.Name, Began: a.began.UTC().Round(0), Host: a.job.Host, PID: os.Getpid()}
	for _, p := range a.job.Programs {
		j.Programs = append(j.Programs, strings.ToValidUTF8(strings.Join(append([]string{p.Path}, p.Args...), " "), "\uFFFD"))
	}
	for _, h := range a.hosts {
		j.Hosts = append(j.Hosts, h.name)
	}
	for _, p := range a.processes {
		j.Ranks += len(p.ranks)
		j.Processes = append(j.Processes, events.Placed{Host: p.host.name, Ranks: p.ranks})
	}
	a.emit(events.Event{Kind: events.JobStarted, Job: &j})
	for _, h := range a.hosts {
		if h.here {
			a.emit(events.Event{Kind: events.HostJoined, Host: h.name, Agent: &events.Agent{PID: j.PID, Cores: h.cores}})
		}
	}
}

// emitGone tells, where this agent begins to lead, of what ended before.
func (a *Agent) emitGone() {
	for _, h := range a.hosts {
		if h.lost {
			a.emit(events.Event{Kind: events.HostLost, Host: h.name, Text: fmt.Sprintf("host %s had been lost before", h.name)})
		}
	}
	for _, p := range a.processes {
		if p.exited && !p.host.lost {
			a.emitOf(p, events.Event{Kind: events.ProcessExited, Text: "had ended before", Exited: &events.Exited{Code: exitUnknown}})
		}
	}
}

// exitUnknown is the exit code of a process that ended under another head.
const exitUnknown = -1

// emitOf is emit of an event of p.
func (a *Agent) emitOf(p *process, e events.Event) {
	e.Host, e.Process = p.host.name, new(p.index)
	a.emit(e)
}

// emitFinished tells of ranks of p that have finished. What p says twice, or of ranks
// that it has not, is no event.
func (a *Agent) emitFinished(p *process, ranks []int) {
	known := a.news.state.Processes[p.index].Finished
	for _, r := range ranks {
		if slices.Contains(p.ranks, r) && !known[r] {
			a.emitOf(p, events.Event{Kind: events.RankFinished, Rank: new(r)})
		}
	}
}

// emitFailed is the same of a rank that has failed.
func (a *Agent) emitFailed(p *process, f control.Failed) {
	if _, known := a.news.state.Processes[p.index].Failed[f.Rank]; !known && slices.Contains(p.ranks, f.Rank) {
		a.emitOf(p, events.Event{Kind: events.RankFailed, Rank: new(f.Rank), Text: f.Error, Failed: &events.Failed{Code: f.Code}})
	}
}

func (a *Agent) emitExited(p *process) {
	x := &events.Exited{Code: exitCode(p.status)}
	if p.status.Signaled() {
		x.Signal = int(p.status.Signal())
	}
	a.emitOf(p, events.Event{Kind: events.ProcessExited, Text: ending(p.status), Exited: x})
}

func (a *Agent) emitSignal(sig syscall.Signal) {
	a.emit(events.Event{Kind: events.SignalPassed, Text: sig.String(), Signal: &events.Signal{Number: int(sig)}})
}

// emitEnd tells that the job has ended, and ends what is subscribed.
func (a *Agent) emitEnd() {
	if a.news.state.Job == nil {
		return // it did not begin
	}
	if a.news.state.Verdict == nil {
		text := ""
		if a.interrupts > 0 {
			text = "signal " + a.interrupt.String() + " was passed on"
		}
		a.emit(events.Event{Kind: events.JobVerdict, Text: text, Verdict: &events.Verdict{Code: a.code}})
	}
	a.emit(events.Event{Kind: events.JobEnded, Ended: &events.Ended{Code: a.code, Lived: int64(time.Since(a.began))}})
	for s := range a.news.subscribers {
		a.unsubscribe(s, false)
	}
}

// hereName is what the job calls this host, which may have no part in it.
func (a *Agent) hereName() string {
	if a.deputy != nil {
		return a.hosts[a.own()].name
	}
	for _, h := range a.hosts {
		if h.here {
			return h.name
		}
	}
	return a.job.Host
}

// A refusals is the connections that an agent has refused. Who floods it with them
// gets an event each second, not one for each.
type refusals struct {
	total  uint64
	told   time.Time
	due    bool // the next event is
	reason string
}

const refusalsEvery = time.Second

// refusedOne is told that the agent of a host has refused a connection.
func (a *Agent) refusedOne(host, reason string) {
	r := a.news.refusals[host]
	if r == nil {
		r = &refusals{}
		a.news.refusals[host] = r
	}
	r.total++
	r.reason = reason
	if r.due {
		return
	}
	tell := func() {
		r.due, r.told = false, time.Now()
		a.emit(events.Event{Kind: events.StrangerRefused, Host: host, Text: r.reason, Refused: &events.Refused{Total: r.total}})
	}
	if wait := refusalsEvery - time.Since(r.told); wait > 0 {
		r.due = true
		a.after(wait, tell)
		return
	}
	tell()
}
