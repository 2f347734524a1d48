package agent

import (
	"fmt"
	"syscall"
	"time"
)

// A process that is stopped while others run is hung: its ranks go on elsewhere, at
// level "crashes", and are declared failed at level "report". A job that is stopped as a whole is not hung.
//
// The crew looks at its processes and tells what stands still and what goes on again;
// the first agent, which knows of all, decides. Both count time by their own looks, so
// that what stood still with them does not count.
const (
	hangTime  = 500 * time.Millisecond // for which a process must stand still while others run
	hangJudge = 50 * time.Millisecond  // between two looks of the first agent at those that stand still
	hangEnd   = 100 * time.Millisecond // in which one that is killed is seen to end, or is refused
)

// A stop is what the first agent knows of a process that stands still. Owned by loop.
type stop struct {
	why   string        // empty: it goes on
	alone time.Duration // for how long others ran meanwhile
	said  bool          // that nobody can take its ranks
	hung  string        // it was declared hung: for its obituary
}

// A stops knows when the first agent last looked.
type stops struct {
	waiting bool
	last    time.Time
}

// stopped is told that p stands still, or, with an empty why, goes on.
func (a *Agent) stopped(p *process, why string) {
	p.stop.why, p.stop.alone, p.stop.said = why, 0, false
	if why == "" {
		a.goOn() // it may be a spare process
	}
	if why != "" && !a.stops.waiting {
		a.stops = stops{true, time.Now()}
		a.after(hangJudge, a.judgeStops)
	}
}

// judgeStops looks at those who stand still, as long as there are some.
func (a *Agent) judgeStops() {
	passed := min(time.Since(a.stops.last), 2*hangJudge) // no more, had this process stood still itself
	a.stops = stops{false, time.Now()}
	var still []*process
	others := false
	for _, p := range a.everyone() {
		switch {
		case p.judged || p.stop.hung != "":
		case p.stop.why != "":
			still = append(still, p)
		default:
			others = true
		}
	}
	if len(still) == 0 {
		return
	}
	a.stops.waiting = true
	a.after(hangJudge, a.judgeStops)
	if !others {
		for _, p := range still {
			p.stop.alone = 0
		}
		return
	}
	for _, p := range still {
		if p.stop.alone += passed; p.stop.alone >= hangTime && a.mayReplace(p) {
			a.hung(p)
		}
	}
}

// mayReplace tells whether the ranks of p, which stands still, can go on without it.
func (a *Agent) mayReplace(p *process) bool {
	if a.reports() {
		return a.doubt == nil && !p.failed && p.joined
	}
	if a.job.Options.Survive != "crashes" || !a.toldStart || a.ending || a.mourning || a.interrupts > 0 || a.doubt != nil || p.failed {
		return false
	}
	taken := map[int]*process{}
	for _, r := range p.ranks {
		s := a.spareFor(p, taken)
		if s == nil {
			if !p.stop.said {
				p.stop.said = true
				a.warn("%s on host %s %s, and there is no spare process to go on in: it is waited for", p.who(), p.host.name, p.stop.why)
			}
			return false
		}
		taken[r] = s
	}
	return true
}

// hung ends p, and has its ranks go on elsewhere.
func (a *Agent) hung(p *process) {
	p.stop.hung = fmt.Sprintf("%s, and others were not, for %v: it hangs", p.stop.why, p.stop.alone.Round(10*time.Millisecond))
	a.detail("%s on host %s %s", p.who(), p.host.name, p.stop.hung)
	a.putOut(p)
}

// putOut ends p, which may live.
func (a *Agent) putOut(p *process) {
	p.kill(syscall.SIGKILL)
	a.after(hangEnd, func() {
		if p.judged || a.ending {
			return
		}
		// It cannot even die, or its agent cannot tell. It is refused from now on.
		p.status = syscall.WaitStatus(syscall.SIGKILL)
		a.judge(p)
	})
}

// lateExit is told that p has ended, which was judged before: it was declared hung.
func (a *Agent) lateExit(p *process, status syscall.WaitStatus) {
	if p.stop.hung != "" && !p.exited {
		p.exited, p.status = true, status
		a.emitExited(p)
		a.answered()
		a.refuseNoMore(p)
		a.goOn() // it may be waited for
	}
}
