package agent

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/waits"
	"github.com/mpiv/mpiv/leader"
)

// A verdict is why a job ends.
type verdict struct {
	code  int
	text  string
	by    *process // whose output comes before the text; nil: nobody's
	died  bool     // its last words belong to the text
	told  bool     // another rank's failure made it
	lost  *process // so did the loss of this one; nil: of none
	scene string   // what others waited for from it, a line each
}

const (
	mournTime  = time.Second // at most, for those who are left to say what they waited for
	mournLines = 4
)

// mourn ends the job for a process that died. First it asks the others what
// they wait for from it: that shows where in the program they all were.
func (a *Agent) mourn(v verdict) {
	if a.ending || a.mourning { // only the first counts
		a.detail("and then: %s", v.text)
		return
	}
	a.mourning = true
	a.askFor(mournTime, func(reports []control.Report, _ []*process) {
		lines := waits.On(time.Now(), a.waited(reports), v.by.ranks)
		if more := len(lines) - mournLines; more > 0 {
			lines = append(lines[:mournLines], fmt.Sprintf("and %d more", more))
		}
		for _, l := range lines {
			v.scene += "\n  " + l
		}
		a.fail(v)
	})
}

// waited is reports, with what processes waited for before the connection to who died
// ended that.
func (a *Agent) waited(reports []control.Report) []control.Report {
	for _, p := range a.processes {
		if p.bereaved != nil {
			reports = slices.DeleteFunc(reports, func(r control.Report) bool { return r.Process == p.index })
			reports = append(reports, control.Report{Process: p.index, Ranks: p.bereaved})
		}
	}
	slices.SortFunc(reports, func(a, b control.Report) int { return a.Process - b.Process })
	return reports
}

// fail ends the job. Only the first failure counts.
func (a *Agent) fail(v verdict) {
	if a.ending {
		a.detail("and then: %s", v.text)
		return
	}
	a.tellPolicy(leader.Ending{})
	a.ending, a.code = true, v.code
	a.record(ledger.Entry{Verdict: &ledger.Verdict{Code: v.code, Text: v.text}})
	a.emit(events.Event{Kind: events.JobVerdict, Text: v.text + v.scene, Verdict: &events.Verdict{Code: v.code}})
	if a.doubt != nil && v.by != a.doubt.by {
		a.detail("and before that: %s", a.doubt.text)
	}
	a.final = &v
	if v.by == nil || v.by.drained {
		a.pronounce()
	}
	a.calm()
	a.forgetApart()
	for _, p := range a.everyone() {
		if !p.send(control.Message{Stop: &control.Stop{Reason: v.text}}) {
			p.kill(syscall.SIGTERM)
		}
	}
	a.after(grace, a.killAll)
	if !a.toldRun {
		a.forgetAll()
	}
}

func (a *Agent) killAll() {
	for _, p := range a.everyone() {
		a.detail("%s: killed", p.who())
		p.kill(syscall.SIGKILL)
	}
	a.after(lateEnd, a.giveUpHosts)
}

// drained is told that all that p wrote has been passed on.
func (a *Agent) drained(p *process) {
	if p.drained || !p.started { // its host was lost, or lies
		return
	}
	p.drained = true
	a.draining--
	if a.final != nil && a.final.by == p {
		a.pronounce()
	}
}

// pronounce says why the job ends, if that has not been said.
func (a *Agent) pronounce() {
	v := a.final
	if a.final = nil; v == nil || v.text == "" {
		return
	}
	if v.died {
		v.text += lastWords(v.by)
	}
	v.text += v.scene
	a.say(v.text)
}

// rankFailed is told by a process that one of its ranks failed. A rank whose
// peer died or gave up a collective fails too, and may be heard first; so
// nothing is done for a moment in which the dead one may be found, or the other
// be heard: for longer where it says that there is one.
func (a *Agent) rankFailed(p *process, f control.Failed) {
	p.failed = true
	if f.Ended != nil {
		p.bereaved = f.Ended
	}
	a.emitFailed(p, f)
	v := verdict{code: f.Code, text: fmt.Sprintf("rank %d: %s", f.Rank, strings.TrimRight(f.Error, "\n")), by: p, told: f.Told}
	if f.Lost != nil && *f.Lost >= 0 && *f.Lost < len(a.processes) {
		v.lost = a.processes[*f.Lost]
	}
	if v.code == 0 {
		v.code = 1
	}
	if a.doubt != nil && a.doubt.told && !v.told && !a.ending && !a.mourning && a.interrupts == 0 {
		a.detail("and before that: %s", a.doubt.text)
		a.doubt = &v
		return
	}
	if a.ending || a.mourning || a.doubt != nil || a.interrupts > 0 {
		a.detail("and then: %s", v.text)
		if a.interrupts > 0 {
			p.send(control.Message{Stop: &control.Stop{Reason: "it was interrupted"}})
		}
		return
	}
	a.doubt = &v
	a.settle(time.Now().Add(settleMost))
}

// settle ends the job for what is in doubt, in a while: when nobody is dying
// who may have been the cause, or at the latest.
func (a *Agent) settle(latest time.Time) {
	a.after(settle, func() {
		dying := slices.ContainsFunc(a.everyone(), func(p *process) bool { return p.linkEnded && !p.allFinished() && !p.failed })
		if lost := a.doubt.lost; a.doubt.told || lost != nil && !lost.judged {
			dying = true // the cause is another's, and still to be heard
		}
		if dying && time.Now().Before(latest) {
			a.settle(latest)
			return
		}
		if !a.mourning {
			a.fail(*a.doubt)
		}
	})
}

// exited is told that p has ended.
func (a *Agent) exited(p *process, status syscall.WaitStatus) {
	if p.judged || !p.started { // its host was lost, or lies
		a.lateExit(p, status)
		return
	}
	p.exited, p.status = true, status
	a.emitExited(p)
	a.detail("%s: %s", p.who(), ending(status))
	a.answered()
	if p.hello == nil || p.linkEnded {
		a.judge(p)
		return
	}
	// What it said last has not been read yet.
	a.after(p.late(), func() { a.judge(p) })
}

// late is how long the end of p and that of its connection may be apart. They
// are the same event unless another process than the one that was started has
// spoken.
func (p *process) late() time.Duration {
	if p.hello.PID == p.pid {
		return lateEnd
	}
	return lateWrapper
}

// linkEnd is told that p has ended its connection, in dying or before.
func (a *Agent) linkEnd(p *process) {
	p.linkEnded = true
	a.answered()
	if p.exited {
		a.judge(p)
		return
	}
	if !p.allFinished() {
		a.after(p.late(), func() {
			if !p.exited && !p.failed && a.interrupts == 0 {
				a.fail(verdict{code: 1, by: p, text: fmt.Sprintf("%s on host %s ended the connection to mpivrun without finishing, though its process %d still runs: did a script start the program, and the program die?",
					p.who(), p.host.name, p.pid)})
			}
		})
	}
}

// judge looks, once, at how p has ended.
func (a *Agent) judge(p *process) {
	if p.judged {
		return
	}
	p.judged = true
	a.running--
	defer a.runApart(false)
	switch st := p.status; {
	case a.ending:
	case p.host.adding != nil:
		a.notAdded(p.host, fmt.Errorf("a spare process on host %s %s before it had joined the job%s", p.host.name, ending(st), lastWords(p)))
	case a.survives(p) && a.allFinished():
		a.detail("%s; all others had, too, so nothing is lost", a.obituary(p)) // mpiv.Main exits by itself
	case a.survives(p):
		a.recover(p)
	case p.hello == nil && p.index >= a.first && a.toldStart && a.interrupts == 0:
		a.detail("%s ended before it had joined the job: %s", p.who(), ending(st)) // its program is linked with mpiv: others of it have joined
		a.spareFailed(p, fmt.Sprintf("%s%s %s before it had joined the job%s", p.who(), a.onHost(p), ending(st), lastWords(p)))
	case a.reports() && a.diedBefore(p):
		a.declare(verdict{code: max(exitCode(p.status), 1), by: p, died: true, text: a.obituary(p)}, p)
	case a.interrupts > 0:
		if a.code == 0 {
			a.code = exitCode(st)
		}
		if st.Signaled() && st.Signal() == syscall.SIGKILL {
			a.code = exit.Signal + int(a.interrupt) // that is why we killed it
		}
		if exitCode(st) != 0 && a.roomFor() > 0 { // others would wait until its ranks go on elsewhere, which they will not
			a.tellMembers(control.Message{Dead: &control.Dead{Processes: []int{p.index}}}, nil)
		}
	case st.Signaled() && st.Signal() == syscall.SIGPIPE && p.unread():
		a.fail(verdict{code: exitCode(st)}) // as in any pipeline, without a word
	case p.failed: // has been told, and is why: it was before p ended
	case st.Signaled(), st.ExitStatus() != 0:
		v := verdict{code: exitCode(st), by: p, died: true, text: a.obituary(p)}
		if a.job.Launch.Slurm && !p.host.here && st.Signaled() && st.Signal() == syscall.SIGKILL {
			if a.doubt == nil {
				a.doubt = &v // should all have ended by then
			}
			a.after(srunTime, func() { // unless that is why
				if a.interrupts == 0 {
					a.mourn(v)
				}
			})
			return
		}
		a.mourn(v)
	case p.hello == nil:
		a.mixed()
	case !p.allFinished():
		a.mourn(verdict{code: 1, by: p, text: fmt.Sprintf("%s exited without finishing: was os.Exit called in the program, or did main return before mpiv.Main?", p.who())})
	}
}

// srunTime is how long before it is known that srun has ended the processes that it started
// on other hosts may be known to be killed.
const srunTime = 500 * time.Millisecond

// mixed ends a job in which some processes have spoken and others have ended
// without a word: those who have wait for those who never will. Once ranks have started
// all have spoken, though perhaps to the head before.
func (a *Agent) mixed() {
	if a.ready == 0 || a.toldStart {
		return
	}
	for _, p := range a.processes {
		if p.judged && p.started && p.hello == nil && !p.host.lost && p.index < a.first {
			a.fail(verdict{code: 1, by: p, text: fmt.Sprintf("%s exited with code 0 and has not called mpiv.Main, which others have: %q was not linked with mpiv, or does not call mpiv.Main", p.who(), p.prog.Path)})
			return
		}
	}
}

// outputLost ends the job: what p prints cannot be written, as a disk is full, say.
func (a *Agent) outputLost(p *process, err error) {
	a.fail(verdict{code: 1, text: fmt.Sprintf("the output of %s cannot be written: %v", p.who(), err)})
}

// unread is true if who read the job's output has stopped, or may have: p writes to it by itself.
func (p *process) unread() bool {
	return p.streams == [2]*stream{} || slices.ContainsFunc(p.streams[:], func(s *stream) bool { return s != nil && s.broken.Load() })
}

// hasFinished is true if p has said so of a rank.
func (p *process) hasFinished(rank int) bool { _, is := p.finished[rank]; return is }

// allFinished is true if p has said so of all its ranks, or they were declared failed.
func (p *process) allFinished() bool { return len(p.finished) == len(p.ranks) || p.dead }

// allFinished is true if all ranks have: the job has ended, but for its processes.
func (a *Agent) allFinished() bool {
	return !slices.ContainsFunc(a.processes, func(p *process) bool { return !p.allFinished() })
}

// obituary says how p died, and its last words.
func (a *Agent) obituary(p *process) string {
	if p.stop.hung != "" {
		return fmt.Sprintf("%s on host %s %s", p.who(), p.host.name, p.stop.hung)
	}
	text := fmt.Sprintf("%s on host %s %s", p.who(), p.host.name, endingOf(len(p.ranks), p.status))
	if len(p.ranks) > 0 && len(p.finished) == len(p.ranks) {
		text += ", after it had finished"
	}
	if p.status.Signaled() && p.status.Signal() == syscall.SIGKILL && !p.killed {
		text += "; if nobody did that, it may have been the kernel, for want of memory (see dmesg)"
	}
	return text
}

// lastWords is what p wrote last to its standard error.
func lastWords(p *process) string {
	if p.streams[1] == nil {
		return ""
	}
	lines := p.streams[1].last.lines()
	if len(lines) == 0 {
		return ""
	}
	return "; its last lines:\n    " + strings.Join(lines, "\n    ")
}

// ending says how a process ended.
func ending(st syscall.WaitStatus) string { return endingOf(1, st) }

// endingOf says it of so many ranks.
func endingOf(ranks int, st syscall.WaitStatus) string {
	if st.Signaled() {
		text := fmt.Sprintf("%s killed by signal %d (%s)", was(ranks), st.Signal(), st.Signal())
		if st.CoreDump() {
			text += ", core dumped"
		}
		return text
	}
	return fmt.Sprintf("exited with code %d", st.ExitStatus())
}

func exitCode(st syscall.WaitStatus) int {
	if st.Signaled() {
		return exit.Signal + int(st.Signal())
	}
	return st.ExitStatus()
}

// signal passes sig on.
func (a *Agent) signal(sig syscall.Signal) {
	if !a.toldRun && !a.ending && (sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP) {
		a.fail(verdict{code: exit.Signal + int(sig), text: fmt.Sprintf("interrupted by signal %d (%v) before agents had joined from %s", sig, sig, hostNames(a.notJoined()))})
		return
	}
	if sig == syscall.SIGINT || sig == syscall.SIGTERM {
		a.interrupts++
		a.interrupt = sig
		a.calm()
		a.forgetApart()
		if a.interrupts > 1 {
			a.killAll()
			return
		}
		a.record(ledger.Entry{Interrupted: &ledger.Interrupted{Signal: int(sig)}}) // or the next head would recover what sig has killed
		a.after(signalGrace, func() {
			if left := a.everyone(); len(left) > 0 { // otherwise only output is not shown yet
				a.warn("%s did not end within %v of signal %d (%v), and %s killed",
					names(left), signalGrace, sig, sig, was(len(left)))
			}
			a.killAll()
		})
	}
	a.detail("signal %d (%v) is passed on", sig, sig)
	a.emitSignal(sig)
	if slices.ContainsFunc(a.processes, func(p *process) bool { return !p.started && !p.judged }) {
		a.passed = append(a.passed, sig)
	}
	for _, p := range a.everyone() {
		p.kill(sig)
	}
}

// was is the verb for so many; none is said as one.
func was(n int) string {
	if n > 1 {
		return "were"
	}
	return "was"
}
