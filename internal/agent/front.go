package agent

import (
	"crypto/tls"
	"encoding/json"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/rundir"
)

// A front is the connection of who shows the job to a user, as the head sees it.
type front struct {
	a      *Agent
	viewer string // see control.Attach
	again  bool   // the same
	conn   *patient.Conn
	from   *control.Conn[control.FromFront]
	to     *control.Conn[control.ToFront]
	over   chan struct{} // closed with the connection
	once   sync.Once
	gone   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	left bool       // end was called: gone takes no more
}

// end closes the connection.
func (f *front) end() {
	f.once.Do(func() {
		f.mu.Lock()
		f.left = true
		f.mu.Unlock()
		close(f.over)
		f.conn.Close()
	})
}

// tell sends m: a front that is stopped does not hold up who tells it.
func (f *front) tell(m control.ToFront) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.left {
		f.gone.Go(func() { f.to.Send(m) })
	}
}

// enterFront serves a front until it goes.
func (h *head) enterFront(c *tls.Conn, _ identity.Name) {
	if !h.take(c) {
		return
	}
	defer h.wg.Done()
	defer h.forget(c)
	conn := &patient.Conn{Conn: c}
	f := &front{a: h.a, conn: conn, from: control.NewConn[control.FromFront](conn), to: control.NewConn[control.ToFront](conn), over: make(chan struct{})}
	defer f.gone.Wait()
	defer f.end()
	f.from.Limit(4 << 20)
	c.SetReadDeadline(time.Now().Add(door.ShakeTime))
	first, err := f.from.Receive()
	if err != nil || first.Attach == nil {
		return
	}
	a, types := h.a, first.Attach.Types
	f.viewer, f.again = first.Attach.Viewer, first.Attach.Again
	attached := make(chan bool, 1)
	a.post(func() { a.attach(f, types, attached) })
	defer a.post(func() { a.parted(f) })
	select {
	case <-attached:
	case <-a.done: // there may be a last word to show
		if f.to.Send(control.ToFront{Attached: &control.Attached{}}) != nil {
			return
		}
	}
	if missed := a.spool.join(f); missed {
		f.to.Send(control.ToFront{Hole: &control.Hole{}})
	}
	defer a.spool.leave(f)
	f.gone.Go(f.show)
	f.gone.Go(f.beat)
	defer conn.Wait(a.job.Silence)()
	for {
		m, err := f.from.Receive()
		switch {
		case err != nil:
			return
		case m.Shown != nil:
			a.spool.shown(f, m.Shown.N)
		case m.Input != nil:
			in := m.Input
			a.post(func() {
				if a.typing != nil && a.typist == f {
					a.typed0 += int64(len(in.Data))
					a.typing.add(in.Data, in.End)
				}
			})
		case m.Signal != nil:
			a.post(func() { a.signalOf(f, *m.Signal) })
		}
	}
}

// signalOf passes on what f says, once.
func (a *Agent) signalOf(f *front, s control.Signal) {
	if s.N > a.signals[f.viewer] {
		a.signals[f.viewer] = s.N
		a.signal(syscall.Signal(s.Signal))
	}
	a.agreed(func() { f.tell(control.ToFront{Heeded: &control.Heeded{N: s.N}}) })
}

// attach tells f how the job stands, and whether the input is to come from there: the first who would bring it does,
// until he goes.
func (a *Agent) attach(f *front, types bool, attached chan<- bool) {
	if a.back != nil { // what has come of the input the deputies will say
		a.back.then = append(a.back.then, func() { a.attach(f, types, attached) })
		return
	}
	other := a.typist != nil && a.typist.viewer != f.viewer
	types = types && a.typing != nil && !other
	told := control.Attached{Reads: types, Other: other, Input: a.typed0}
	if f.to.Send(control.ToFront{Attached: &told}) == nil {
		a.fronts = append(a.fronts, f)
		if types {
			a.typist = f
		}
		a.tellFronts()
	}
	attached <- true
}

// parted is told that f shows the job no more.
func (a *Agent) parted(f *front) {
	a.fronts = slices.DeleteFunc(a.fronts, func(g *front) bool { return g == f })
	if a.typist == f {
		a.typist = nil
	}
}

// tellFronts tells who show the job where to look for the next head.
func (a *Agent) tellFronts() {
	if len(a.voters) == 0 {
		return
	}
	v := &control.Voters{Voters: a.allVoters()}
	for _, f := range a.fronts {
		f.tell(control.ToFront{Voters: v})
	}
}

// show sends what there is to show.
func (f *front) show() {
	for {
		t, dropped, ok := f.a.spool.next(f)
		if !ok {
			break
		}
		if dropped > 0 {
			f.to.Send(control.ToFront{Text: new(lostText(dropped))})
		}
		if f.to.Send(control.ToFront{Text: &t}) != nil {
			f.end()
			return
		}
	}
	select {
	case <-f.a.settled: // the exit code is known
		f.to.Send(control.ToFront{Ended: &control.Ended{Code: f.a.code}})
	case <-f.over:
	}
}

// beat says that the head is alive.
func (f *front) beat() {
	tick := alarm.NewTicker(control.Beat(f.a.job.Silence))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.to.Send(control.ToFront{Alive: &control.Alive{}})
		case <-f.over:
			return
		}
	}
}

// frontTime is how long who shows the job may take to come back, when all is over, and to
// go when it knows.
const frontTime = time.Second

// partFromFronts has who show the job show the rest, and how it ended. What nobody shows is
// left in a directory beside the job's.
func (a *Agent) partFromFronts() {
	close(a.settled)
	for end := time.Now().Add(frontTime); len(a.spool.who()) == 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	fronts := a.spool.who()
	rest := a.spool.finish()
	if len(fronts) > 0 && len(rest) == 0 {
		late := time.After(frontTime)
		for _, f := range fronts {
			select {
			case <-f.over:
			case <-late:
				return
			}
		}
		return
	}
	_ = leaveBehind(a.deputy.dir.Path, rest, a.code) // nobody is there to be told that it could not be kept
}

// An endedJob is how a job ended that nobody looked at.
type endedJob struct {
	Code  int
	Texts []control.Text
}

func leaveBehind(dir string, texts []control.Text, code int) error {
	text, err := json.Marshal(endedJob{code, texts})
	if err != nil {
		return err
	}
	return rundir.Leave(dir, text)
}

// passFor is what lets a front in.
func (a *Agent) passFor() (control.Pass, error) {
	c, err := a.authority.Issue(identity.Front, 0)
	p := control.Pass{Job: a.job.Name, Credentials: c, Silence: int64(a.job.Silence), Voters: a.allVoters()}
	if len(p.Voters) == 0 { // others have not joined yet
		p.Voters = []control.Voter{{Agent: a.own() + 1, Addrs: a.deputy.boot.Head}}
	}
	return p, err
}
