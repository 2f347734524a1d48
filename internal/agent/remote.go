package agent

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/patient"
)

// remoteQueue is how many messages may wait for an agent that does not read. An
// agent for which there are more is taken for lost.
const remoteQueue = 4096

// A remote is a place behind an agent on another host.
type remote struct {
	a       *Agent
	host    *host
	conn    *control.Conn[control.FromAgent]
	ear     *patient.Conn // what conn reads from
	to      *control.Conn[control.ToAgent]
	out     chan control.ToAgent
	over    chan struct{} // closed when the connection has ended
	parting chan struct{} // closed when nothing more is to be told than what is in out
	silent  chan struct{} // closed when the agent is told nothing more
	once    sync.Once
	why     error // of the end
	clock   clock // of its host, when it came
	printer printer

	gave  chan struct{} // one element: there is something in taken
	mu    sync.Mutex    // guards what follows
	later []control.Tell
	taken map[stdio]control.Taken // of output, since the agent was told of it

	asking atomic.Int32 // questions that are not answered

	// What follows is for the goroutine that reads, and left, once that has ended, for the loop.
	left    string       // why the agent leaves, in its own words
	drained map[int]bool // of which nothing more may come
	refused int          // connections of which it has told
}

// serve is the connection of an agent, the index-th.
func (h *head) serve(c *tls.Conn, index int) {
	host := (*h.a.roster.Load())[index-1]
	heard := &patient.Conn{Conn: c, Elsewhere: &host.alive}
	r := &remote{
		a: h.a, host: host, ear: heard,
		conn: control.NewConn[control.FromAgent](heard), to: control.NewConn[control.ToAgent](c),
		out: make(chan control.ToAgent, remoteQueue), over: make(chan struct{}), parting: make(chan struct{}), silent: make(chan struct{}), drained: map[int]bool{},
		gave: make(chan struct{}, 1), taken: map[stdio]control.Taken{},
	}
	r.conn.Limit(control.FromAgentBytes)
	r.printer.init(r)
	asked := time.Now()
	if r.to.Send(control.ToAgent{Alive: &control.Alive{Term: h.term}}) != nil { // it is let in
		return
	}
	c.SetReadDeadline(time.Now().Add(door.ShakeTime))
	first, err := r.conn.Receive()
	again := first.Rejoined != nil && h.a.deputy != nil
	if err != nil || first.Joined == nil && !again {
		return
	}
	joined := first.Joined
	if again {
		joined = &first.Rejoined.Joined
	}
	r.clock = compareClocks(asked, time.Now(), joined.Time)
	here := ""
	if at, ok := c.LocalAddr().(*net.TCPAddr); ok {
		here = at.IP.String()
	}
	there := ""
	if at, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		there = at.IP.String()
	}
	if host.translated(*joined, there) {
		joined.Copies = 0 // nobody reaches it there
	}
	accepted := make(chan bool, 1)
	if again {
		h.speak(r)
		defer r.end(errors.New("it was not taken in again"))
		h.a.post(func() { h.a.rejoined(r, *first.Rejoined, there, accepted) })
	} else {
		h.a.post(func() { accepted <- h.a.joined(r, *joined, here, there) })
	}
	select {
	case ok := <-accepted:
		if !ok {
			return
		}
	case <-h.a.done:
		return
	}
	if !again {
		h.speak(r)
	}
	h.wg.Go(r.printer.run)
	door := control.Voter{Agent: index}
	if joined.Copies > 0 {
		door.Addrs = []string{net.JoinHostPort(there, strconv.Itoa(joined.Copies))}
	}
	defer h.listen(r, door)()
	for {
		m, err := r.conn.Receive()
		if err != nil {
			r.end(err)
			break
		}
		r.heard(m)
		if r.left != "" {
			r.end(errors.New(r.left))
			break
		}
	}
	h.a.post(func() { h.a.agentEnded(r) })
}

// srunLate is by how much the end of srun may be noticed after that of the agents which it had
// started: Slurm ends them with it, and their ends alone do not say why.
const srunLate = 300 * time.Millisecond

// agentEnded is told that r's connection has ended.
func (a *Agent) agentEnded(r *remote) {
	bySrun := a.job.Launch.Slurm && r.left == "" && !a.ending && !a.mourning
	if bySrun && !a.reports() && !a.outlives() { // the job will end, so there is time to hear why
		a.after(srunLate, func() { a.hostLost(r.host, r.why) })
		return
	}
	a.hostLost(r.host, r.why)
}

// end closes the connection because of err.
func (r *remote) end(err error) {
	r.once.Do(func() {
		r.why = err
		close(r.over)
		r.to.Close()
	})
}

// write sends what is due, and that we are alive. At the end it sends what is left, such as the answer to
// who has ended the job: a head that was deposed leaves that to the next.
func (r *remote) write() {
	tick := alarm.NewTicker(control.Beat(r.a.job.Silence))
	defer tick.Stop()
	for {
		var all []control.ToAgent
		select {
		case m := <-r.out:
			all = append(all, m)
		case <-r.gave:
			for _, t := range r.takeTaken() {
				all = append(all, control.ToAgent{Taken: &t})
			}
		case <-tick.C:
			all = append(all, control.ToAgent{Alive: &control.Alive{Later: r.takeLater()}})
		case <-r.over:
			return
		case <-r.parting:
			for left := r.a.deposed == nil; left; {
				select {
				case m := <-r.out:
					left = r.to.Send(m) == nil
				default:
					return
				}
			}
			return
		}
		for _, m := range all {
			if err := r.to.Send(m); err != nil {
				r.end(err)
				return
			}
		}
	}
}

// took has the agent told that n bytes of an output are taken, or that nobody takes more of it. That
// may be many times between two messages to it, as when a screen that was held up goes on.
func (r *remote) took(of stdio, n int, broken bool) {
	r.mu.Lock()
	t := r.taken[of]
	r.taken[of] = control.Taken{Process: of.process, Stderr: of.stderr, Bytes: t.Bytes + n, Broken: t.Broken || broken}
	r.mu.Unlock()
	select {
	case r.gave <- struct{}{}:
	default:
	}
}

func (r *remote) takeTaken() (all map[stdio]control.Taken) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, r.taken = r.taken, make(map[stdio]control.Taken, len(r.taken))
	return all
}

// tell queues m.
func (r *remote) tell(m control.ToAgent) bool {
	select {
	case r.out <- m:
		return true
	default:
		r.end(errors.New("it does not read what it is told"))
		return false
	}
}

// order tells m when all that was decided before is agreed on, and after what was to be told
// later. It is for the loop.
func (r *remote) order(m control.ToAgent) (told bool) {
	told = true // or is to be
	r.a.agreed(func() {
		r.tellLater()
		told = r.tell(m)
	})
	return told
}

// laterMost is how much is told later at most.
const laterMost = 256

// sendLater has m told with the next sign of life, or the next order before that.
func (r *remote) sendLater(m control.Message, to ...int) {
	r.a.agreed(func() {
		r.mu.Lock()
		r.later = append(r.later, control.Tell{Processes: to, Message: &m})
		many := len(r.later) > laterMost
		r.mu.Unlock()
		if many {
			r.tellLater()
		}
	})
}

func (r *remote) hurry() { r.a.agreed(r.tellLater) }

// tellLater tells what was to be told later.
func (r *remote) tellLater() {
	if all := r.takeLater(); len(all) > 0 {
		r.tell(control.ToAgent{Alive: &control.Alive{Later: all}})
	}
}

func (r *remote) takeLater() (all []control.Tell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, r.later = r.later, nil
	return all
}

func (r *remote) send(m control.Message, to ...int) bool {
	return r.order(control.ToAgent{Tell: &control.Tell{Processes: to, Message: &m}})
}

func (r *remote) kill(process int, sig syscall.Signal) {
	r.order(control.ToAgent{Kill: &control.Kill{Process: process, Signal: int(sig)}})
}

// heard passes on what the agent said. It may speak of processes on its host
// only.
func (r *remote) heard(m control.FromAgent) {
	a := r.a
	of := func(process int, then func(p *process)) {
		if p := r.process(process); p != nil {
			a.post(func() { then(p) })
		}
	}
	switch {
	case m.Output != nil:
		if p := r.process(m.Output.Process); p != nil {
			if r.drained[p.index] || len(m.Output.Data) == 0 || !r.printer.add(printed{p: p, stderr: m.Output.Stderr, data: m.Output.Data, end: m.Output.Ends}) {
				r.end(fmt.Errorf("it sent more of %s than it may", p.who()))
			}
		}
	case m.Drained != nil:
		if p := r.process(m.Drained.Process); p != nil && !r.drained[p.index] {
			r.drained[p.index] = true
			r.printer.add(printed{p: p})
		}
	case m.Taken != nil:
		if p := r.process(m.Taken.Process); p != nil && p.reads {
			a.post(func() {
				if a.feeding != nil {
					a.feeding.give(m.Taken.Bytes, m.Taken.Broken)
				}
			})
		}
	case m.LaunchFailed != nil:
		a.post(func() { a.notLaunched(*m.LaunchFailed, true) })
	case m.Forked != nil:
		of(m.Forked.Process, func(p *process) {
			var err error
			if m.Forked.Error != "" {
				err = &exit.Error{Code: m.Forked.Code, Err: errors.New(m.Forked.Error)}
			}
			a.forked(p, m.Forked.PID, err)
		})
	case m.Said != nil:
		of(m.Said.Process, func(p *process) { a.said(p, m.Said.Message) })
	case m.Exited != nil:
		of(m.Exited.Process, func(p *process) { a.exited(p, syscall.WaitStatus(m.Exited.Status)) })
	case m.Stopped != nil:
		why := printable(m.Stopped.Why)
		of(m.Stopped.Process, func(p *process) { a.stopped(p, why) })
	case m.Host != nil:
		a.post(func() { a.hostRead(r.host, *m.Host) })
	case m.Leaving != nil:
		if r.left = printable(m.Leaving.Reason); r.left == "" {
			r.left = "it did not say why"
		}
	case m.Evicted != nil:
		reason := printable(m.Evicted.Reason)
		a.post(func() { a.evictedAgent(r, reason) })
	case m.Refused != nil:
		r.refused++
		told, reason := r.refused <= door.RefusalsTold, printable(m.Refused.Reason)
		a.post(func() {
			if told {
				a.warn("host %s: a connection was refused: %s", r.host.name, reason)
			}
			a.refusedOne(r.host.name, reason)
		})
	case m.Metrics != nil:
		a.post(func() { a.measuredElsewhere(r.host, *m.Metrics) })
	case m.Holds != nil:
		a.post(func() { a.holds(r.host, *m.Holds) })
	case m.Uncopied != nil:
		a.post(func() { a.uncopied(r.host, *m.Uncopied) })
	case m.Brought != nil:
		a.post(func() { a.brought(r.host, *m.Brought) })
	case m.Votes != nil:
		a.post(a.takesPart)
	case m.Question != nil:
		r.ask(*m.Question)
	}
}

// process is the one of that index; nil, and the end of the connection, if it is
// not on that host.
func (r *remote) process(index int) *process {
	all := *r.a.known.Load()
	if index < 0 || index >= len(all) || all[index].host != r.host {
		r.end(fmt.Errorf("it spoke of process %d, which is not there", index))
		return nil
	}
	return all[index]
}

// questionsMost is how many questions of one agent may wait for an answer.
const questionsMost = 16

// ask answers what mpivrun asked the agent there. What is too much is not
// answered; who asked gives up after a while.
func (r *remote) ask(x control.Exchange) {
	if r.asking.Add(1) > questionsMost {
		r.asking.Add(-1)
		return
	}
	var q Question
	if json.Unmarshal(x.Text, &q) != nil {
		q.Op = ""
	}
	reply := make(chan Answer, 1)
	tell := func(ans Answer) {
		text, _ := json.Marshal(ans)
		r.tell(control.ToAgent{Answer: &control.Exchange{ID: x.ID, Text: text}})
		r.asking.Add(-1)
	}
	answered := tell
	if q.changes() { // which another head would not know of before it is agreed on
		answered = func(ans Answer) { r.a.agreed(func() { tell(ans) }) }
	}
	r.a.post(func() {
		r.a.answer(q, reply)
		select {
		case ans := <-reply: // at once, as what was asked may end the job
			answered(ans)
			return
		default:
		}
		r.a.head.wg.Go(func() {
			select {
			case ans := <-reply:
				r.a.post(func() { answered(ans) })
			case <-r.over:
			case <-r.a.done:
			}
		})
	})
}

func (r *remote) spawn(p *process) error {
	s, err := r.a.spawnOf(p)
	if err != nil {
		return err
	}
	r.order(control.ToAgent{Spawn: &s})
	return nil
}
