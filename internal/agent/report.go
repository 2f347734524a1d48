package agent

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// Level "report": the loss of a process is told to the others, and the job goes on with
// those that are left.

// unreachedTime is how long after a process has lost another that must be seen to die by
// itself.
const unreachedTime = time.Second

// reports tells whether the job goes on when processes are lost, and their ranks do not.
func (a *Agent) reports() bool {
	return a.job.Options.Survive == "report" && a.toldStart && !a.ending && !a.mourning && a.interrupts == 0
}

// diedBefore tells whether p, which has ended, did so before it should: others may wait
// for it. A rank that has returned an error ends the job, at every level.
func (a *Agent) diedBefore(p *process) bool {
	st := p.status
	if !p.joined || p.failed || st.Signaled() && st.Signal() == syscall.SIGPIPE && p.unread() {
		return false
	}
	return st.Signaled() || st.ExitStatus() != 0 || !p.allFinished()
}

// declare tells all that the ranks of processes which were lost have failed.
func (a *Agent) declare(v verdict, lost ...*process) {
	if a.survival.loss == nil {
		a.survival.loss = &v
	}
	a.survival.changed = time.Now()
	var dead control.Dead
	for _, p := range lost {
		if p.dead {
			continue
		}
		dead.Processes = append(dead.Processes, p.index)
		for _, r := range p.ranks {
			if !p.hasFinished(r) {
				a.emitFailed(p, control.Failed{Rank: r, Code: v.code, Error: v.text})
			}
		}
		p.dead = true
	}
	if len(dead.Processes) == 0 {
		return
	}
	// One that was declared dead may still run, until it is killed: told of another's death it could
	// take itself for the only one left, and agree on something alone.
	a.tellMembers(control.Message{Dead: &dead}, func(p *process) bool { return p.dead })
	if v.by != nil { // of a host it was said
		a.warn("%s; the other ranks are told", v.text)
	}
	a.letGo()
}

// allDead tells whether no process is left that has ranks.
func (a *Agent) allDead() bool {
	return a.survival.loss != nil && !slices.ContainsFunc(a.processes, func(p *process) bool { return len(p.ranks) > 0 && !p.dead })
}

// unreached is told that p cannot reach another process. If that does not die by itself
// it is ended: of two that do not reach each other only one can stay.
func (a *Agent) unreached(p *process, m control.Lost) {
	if !a.reports() || m.Process < 0 || m.Process >= len(a.processes) || a.processes[m.Process] == p {
		return
	}
	q := a.processes[m.Process]
	a.after(unreachedTime, func() {
		if a.reports() && !q.judged && !q.exited && !p.judged && !p.exited {
			q.stop.hung = fmt.Sprintf("cannot be reached by %s: %s", p.who(), printable(m.Error))
			q.kill(syscall.SIGKILL)
		}
	})
}
