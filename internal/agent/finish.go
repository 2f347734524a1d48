package agent

import (
	"github.com/mpiv/mpiv/internal/orphans"
)

// finish ends what is left when no process is.
func (a *Agent) finish() {
	for t := range a.timers {
		t.Stop()
	}
	a.endChaos()
	a.emitEnd()
	a.closeTrace()
	a.writers.Wait()
	a.storeContracts()
	if a.feeding != nil {
		a.feeding.give(0, true)
	}
	if a.deputy != nil {
		a.pronounce()
		a.speaker.close()
		a.partFromFronts()
		a.sayOver()
		a.spool.close()
	}
	if a.head != nil {
		a.head.close()
	}
	if a.typing != nil {
		a.typing.close()
	}
	if a.buddies != nil {
		a.buddies.Close()
	}
	a.endMetrics()
	if a.crew != nil {
		a.asked.Close()
		a.crew.Close()
		a.job.Guard.Close()
		a.dir.Remove()
	}
	if a.job.Reaper {
		orphans.End()
	}
	a.wg.Wait()
	if a.typing != nil {
		a.job.Stdin.Close() // nobody reads it any more
	}
	a.release()
}

// release gives back what prepare made.
func (a *Agent) release() {
	if a.head != nil {
		a.head.close()
	}
	if a.buddies != nil {
		a.buddies.Close() // again, unless the job did not begin
	}
	if a.asked != nil {
		a.asked.Close()
	}
	if a.crew != nil {
		a.crew.Close()
	}
	a.job.Guard.Close()
	if a.dir != nil {
		a.dir.Remove()
	}
	if a.typed != nil {
		a.typed.Close()
	}
	if a.metrics != nil {
		a.metrics.Close()
	}
	if a.speaker != nil {
		a.pronounce()
		a.speaker.close()
	}
	for _, f := range a.outputs {
		f.Close()
	}
	if a.eventsFile != nil {
		a.eventsFile.Close() // again, unless the job did not begin
	}
	if a.traceFile != nil {
		a.traceFile.Close() // again, unless the job did not begin
	}
}
