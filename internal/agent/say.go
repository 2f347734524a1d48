package agent

import (
	"fmt"
	"time"
)

// detail says what only a curious user wants to know.
func (a *Agent) detail(format string, args ...any) {
	if a.job.Verbose {
		a.say(a.stamped(format, args...))
	}
}

// stamped is a line that says when.
func (a *Agent) stamped(format string, args ...any) string {
	return fmt.Sprintf("%7.1f ms: ", float64(time.Since(a.began))/1e6) + fmt.Sprintf(format, args...)
}

// warn says what the job goes on in spite of.
func (a *Agent) warn(format string, args ...any) {
	if !a.job.Quiet {
		a.say(fmt.Sprintf(format, args...))
	}
}

// remark says what follows from nothing that was decided. Any goroutine may.
func (a *Agent) remark(format string, args ...any) {
	if !a.job.Quiet {
		a.speaker.say(fmt.Sprintf(format, args...))
	}
}

// say tells the user what may follow from something decided, which is to be agreed on first: a
// head that is one no longer has lost nobody.
func (a *Agent) say(text string) { a.agreed(func() { a.speaker.say(text) }) }
