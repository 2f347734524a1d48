package process

import (
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// calls is to processes behind address translations, which may not be reached from here: they are
// asked, by way of the agents, to connect to this one.
type calls struct {
	to   []callee      // by process
	came chan struct{} // one element: one is due
}

type callee struct{ apart, due atomic.Bool }

// connect asks for a connection to a process, of both ends if one may not reach the other. It is engine.Config.Connect.
func (p *Process) connect(process int) {
	p.fabric.Connect(process)
	if c := &p.calls.to[process]; c.apart.Load() {
		c.due.Store(true)
		select {
		case p.calls.came <- struct{}{}:
		default:
		}
	}
}

// callAgain is how long after a call another is made, if there is no connection yet: agents may lose one while the
// job changes its head.
const callAgain = time.Second

// call makes the calls that are due, until the job ends.
func (p *Process) call() {
	var again <-chan time.Time // while there was one
	for {
		select {
		case <-p.calls.came:
		case <-again:
			again = nil
			for _, m := range p.fabric.Missed(0) {
				if c := &p.calls.to[m.Process]; c.apart.Load() {
					c.due.Store(true)
				}
			}
		case <-p.stopped:
			return
		}
		for i := range p.calls.to {
			if p.calls.to[i].due.Swap(false) {
				p.agent.Send(control.Message{Call: &control.Call{Process: i}}) // if that fails, Receive will
				again = time.After(callAgain)
			}
		}
	}
}
