package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/metrics"
	"github.com/mpiv/mpiv/internal/orphans"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/rundir"
)

// A deputy is the agent of a host that is not the job's first: it has a crew,
// and does with it what the first agent says.
type deputy struct {
	boot     control.Boot
	orders   Orders
	identity *identity.Identity
	line     *line         // to the head; owned by serve
	copies   *buddy.Keeper // nil where the job does not outlive hosts
	books    books
	office   office // where the job outlives its head
	launches launcher
	crew     *crew.Crew  // nil before there are orders to run; set by serve
	dir      *rundir.Dir // where that is; nil as long
	running  bool        // there were
	input    *feeder     // of the process that reads; nil if it is not here
	asked    *net.UnixListener
	wg       sync.WaitGroup
	orphaned chan struct{} // closed when who started this agent has ended
	over     chan struct{} // closed when the job has ended for this agent
	emptied  chan struct{} // one element: it may leave, as it was told to

	metrics   *metrics.Server // nil: none
	strangers atomic.Uint64   // connections of processes that were refused
	questions atomic.Uint64
	buried    atomic.Pointer[crew.Crew] // crew, for who buries its dead

	mu      sync.Mutex // guards what follows
	windows map[stdio]*window
	answers map[uint64]chan<- []byte // to questions put here
}

// stdio is one output of a process.
type stdio struct {
	process int
	stderr  bool
}

// Orders are what an agent is started with.
type Orders struct {
	In    io.Reader   // has what to do, as a line. Its end is that of the launch
	Out   io.Writer   // of a job that outlives its head: the first agent tells how it began, as a Begun
	Errs  io.Writer   // takes what cannot be told the job's first agent
	Guard *crew.Guard // as in Job
	Log   bool        // this operating-system process does nothing else: the first agent's own standard error becomes a file
	// Breaker is as in Job, for a schedule. Nil: there is none.
	Breaker func(chaos.Schedule) (Breaker, error)
}

// Deputy is the agent that another started on this host. It returns its exit code. Of a
// job that outlives its head it may be the first agent, or become the head.
func Deputy(o Orders) int {
	d := &deputy{orders: o, books: newBooks(), orphaned: make(chan struct{}), over: make(chan struct{}), emptied: make(chan struct{}, 1), windows: map[stdio]*window{}, answers: map[uint64]chan<- []byte{}}
	if err := d.join(); errors.Is(err, errBegun) {
		return codeAgent
	} else if err != nil {
		fmt.Fprintln(o.Errs, agentMark+oneLine(err))
		return codeAgent
	}
	d.serve()
	return 0
}

// join reads the orders, passes on those for others, and connects to the job's
// first agent.
func (d *deputy) join() error {
	lines := bufio.NewReader(io.LimitReader(d.orders.In, 64<<20))
	orders, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("\"mpivrun agent\" is for mpivrun to start, which then tells it what to do: %w", err)
	}
	if d.boot, err = mine(orders); err != nil {
		return err
	}
	if d.boot.Version != control.AgentVersion {
		return fmt.Errorf("its mpivrun speaks version %d of the protocol of agents, the job's %d: install the same on all hosts", control.AgentVersion, d.boot.Version)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go func() { // reads until this operating-system process ends, or who started it
		io.Copy(io.Discard, lines)
		close(d.orphaned)
		if len(d.boot.First) == 0 {
			stop(errOrphaned)
		}
	}()
	if len(d.boot.First) > 0 {
		if err := d.begin(); err != nil {
			return err
		}
	} else {
		if d.identity, err = d.boot.Credentials.Open(); err != nil {
			return err
		}
		d.office.init(d)
	}
	d.books.outlive = d.boot.Outlive
	if d.boot.Crashes && d.copies == nil {
		if d.copies, err = buddy.Listen(d.identity, d.say); err != nil {
			return err
		}
	}
	if d.boot.Outlive {
		d.copies.Handle(control.ProtocolAwait, d.office.await)
	}
	l, err := d.dial(ctx)
	if err == nil {
		d.line = l
		err = l.from.Send(control.FromAgent{Joined: new(d.joined(l))})
	}
	if err != nil {
		d.office.close()
		if d.copies != nil {
			d.copies.Close()
		}
		return err
	}
	d.books.up.Store(l)
	for _, b := range tree(d.boot.Children) {
		d.launches.start(b, func(f control.LaunchFailed) { d.say(control.FromAgent{LaunchFailed: &f}) })
	}
	return nil
}

// joined is who this agent is, at the end of l.
func (d *deputy) joined(l *line) control.Joined {
	j := control.Joined{
		Version: control.AgentVersion, PID: os.Getpid(), Cores: runtime.NumCPU(), Time: time.Now(),
	}
	if d.copies != nil {
		j.Copies = d.copies.Port()
	}
	if at, ok := l.conn.LocalAddr().(*net.TCPAddr); ok {
		j.Address = at.IP.String()
	}
	return j
}

var errOrphaned = errors.New("what started it there has ended")

// oneLine is err's text as one sentence.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// mine finds this host's orders in a line that has those of one or of all.
func mine(line []byte) (control.Boot, error) {
	var all []control.Boot
	if err := json.Unmarshal(line, &all); err != nil {
		return control.Boot{}, fmt.Errorf("the orders from mpivrun cannot be read: is it of another version? %w", err)
	}
	if len(all) == 1 || len(all) > 0 && all[0].Version != control.AgentVersion {
		return all[0], nil
	}
	node := os.Getenv("SLURMD_NODENAME")
	for _, b := range all {
		if b.Host == node {
			return b, nil
		}
	}
	return control.Boot{}, fmt.Errorf("there are orders for %d hosts, and none for this one (SLURMD_NODENAME is %q)", len(all), node)
}

// serve does what the first agent says until the connection ends.
func (d *deputy) serve() {
	// Whoever wants this host's part of the job to end by a signal ends it for
	// all: the first agent sees the connection end.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	d.wg.Go(d.beat)
	d.wg.Go(func() {
		orphaned := d.orphaned
		var evicted <-chan time.Time // the end of the grace; nil: nobody wants this agent to end
		for {
			select {
			case s := <-signals:
				reason := fmt.Sprintf("it got signal %d (%v)", s, s)
				if s != syscall.SIGTERM || d.boot.Grace <= 0 || evicted != nil {
					d.quit(reason)
					break
				}
				evicted = time.After(d.boot.Grace)
				d.say(control.FromAgent{Evicted: &control.Evicted{Reason: reason}})
			case <-evicted:
				d.quit(fmt.Sprintf("it got signal %d (%v), and %v have passed since", syscall.SIGTERM, syscall.SIGTERM, d.boot.Grace))
			case <-d.emptied:
				d.quit(fmt.Sprintf("it got signal %d (%v)", syscall.SIGTERM, syscall.SIGTERM))
			case <-orphaned:
				orphaned = nil
				if !d.boot.Outlives { // or the loss of a host would take along those whose agents it has started
					d.quit(errOrphaned.Error())
				}
			case <-children:
				if c := d.buried.Load(); c != nil {
					c.Bury()
				}
			case <-d.over:
				return
			}
		}
	})
	for d.line != nil {
		d.heed(d.line)
		d.line = d.office.next()
	}
	close(d.over)
	d.leave()
}

// heed does what the head says until the connection ends.
func (d *deputy) heed(l *line) {
	l.conn.Missed = func() { d.office.ask(l) }
	l.conn.Excuse = func() bool { return d.office.bears(l) }
	defer l.conn.Wait(d.boot.Silence)()
	d.office.line.Store(l)
	for {
		m, err := l.to.Receive()
		if err != nil {
			if _, silent := errors.AsType[patient.Silent](err); !silent {
				d.office.ended(l)
			}
			break
		}
		if m.Over != nil {
			d.office.end()
			break
		}
		d.do(m)
	}
	d.office.line.Store(nil)
	l.conn.Close()
	d.books.lost()
	d.unanswered()
}

// beat says that this agent is alive.
func (d *deputy) beat() {
	tick := alarm.NewTicker(control.Beat(d.boot.Silence))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.say(control.FromAgent{Alive: &control.Alive{}})
		case <-d.over:
			return
		}
	}
}

// quit ends the connection and says why, if that can be said.
func (d *deputy) quit(reason string) {
	d.office.without()
	d.books.quit(reason)
}

// leave ends what is left of the job on this host.
func (d *deputy) leave() {
	d.office.close()
	d.mu.Lock()
	for _, w := range d.windows {
		w.give(0, true)
	}
	d.mu.Unlock()
	if d.input != nil {
		d.input.close()
	}
	if d.metrics != nil {
		d.metrics.Close()
	}
	if d.crew != nil {
		for _, p := range d.crew.Processes() {
			d.crew.Kill(p, syscall.SIGKILL)
		}
		d.asked.Close()
	}
	if d.copies != nil {
		d.copies.Close()
	}
	if d.crew != nil {
		d.crew.Close()
		d.dir.Remove()
	}
	d.orders.Guard.Close()
	var launched []int
	if d.office.goesOn.Load() {
		launched = d.launches.leave()
	} else {
		d.launches.close()
	}
	d.wg.Wait()
	orphans.End(launched...)
}

// say tells the first agent something. If that cannot be, its connection has
// ended, and serve sees it.
func (d *deputy) say(m control.FromAgent) { d.books.say(m) }

// do does what the first agent said.
func (d *deputy) do(m control.ToAgent) {
	switch {
	case m.Run != nil:
		d.run(*m.Run)
	case m.Taken != nil:
		of := stdio{m.Taken.Process, m.Taken.Stderr}
		d.books.taken(of, m.Taken.Bytes)
		d.window(of).give(m.Taken.Bytes, m.Taken.Broken)
	case m.Answer != nil:
		d.mu.Lock()
		reply := d.answers[m.Answer.ID]
		delete(d.answers, m.Answer.ID)
		d.mu.Unlock()
		if reply != nil {
			reply <- m.Answer.Text
		}
	case m.Buddy != nil || m.Copy != nil || m.Fence != nil || m.Close != nil:
		if d.copies != nil {
			d.copies.Do(m)
		}
	case m.Voters != nil:
		if d.office.vote(*m.Voters) {
			d.say(control.FromAgent{Votes: &control.Votes{}})
		}
	case m.Leave != nil:
		select {
		case d.emptied <- struct{}{}:
		default:
		}
	case !d.running: // what follows is about processes
	case m.Spawn != nil:
		if err := d.add(*m.Spawn); err != nil {
			d.Forked(m.Spawn.Index, 0, err)
		}
	case m.Tell != nil:
		d.tellAll(*m.Tell)
	case m.Alive != nil:
		for _, t := range m.Alive.Later {
			d.tellAll(t)
		}
	case m.Kill != nil:
		d.crew.Kill(m.Kill.Process, syscall.Signal(m.Kill.Signal))
	case m.Input != nil && d.input != nil:
		d.books.input(m.Input.Process, len(m.Input.Data))
		d.input.add(m.Input.Data, m.Input.End)
	}
}

func (d *deputy) tellAll(t control.Tell) {
	if t.Message == nil {
		return
	}
	for _, p := range t.Processes {
		d.tell(p, *t.Message)
	}
}

// tell hands a process what the first agent says to it. One that does not read
// is ended by a signal when it must stop.
func (d *deputy) tell(process int, m control.Message) {
	d.books.told(process, m)
	d.office.told(m)
	if !d.crew.Send(m, process) && m.Stop != nil {
		d.crew.Kill(process, syscall.SIGTERM)
	}
}

// question passes what mpivrun asks here on to the head, and its answer back. What changes
// nothing is asked again if the head goes before it answers.
func (d *deputy) question(c *net.UnixConn) {
	c.SetDeadline(time.Now().Add(questionTime))
	var q json.RawMessage
	var asked Question
	if json.NewDecoder(c).Decode(&q) != nil || json.Unmarshal(q, &asked) != nil {
		return
	}
	c.SetDeadline(time.Now().Add(asked.time()))
	late := time.After(asked.time())
	for {
		text, err := d.pass(q, late)
		switch {
		case err == nil:
			c.Write(append(text, '\n'))
		case errors.Is(err, errHeadLost) && !asked.changes():
			continue
		case !errors.Is(err, errNoAnswer):
			json.NewEncoder(c).Encode(Answer{Error: err.Error(), NoHead: errors.Is(err, ErrNoHead)})
		}
		return
	}
}

var (
	errHeadLost = errors.New("the agent that led the job is lost, and with it whether this was done: see mpivrun ps, and ask again")
	errNoAnswer = errors.New("no answer")
)

// pass asks the head, once.
func (d *deputy) pass(q json.RawMessage, late <-chan time.Time) (text []byte, err error) {
	id, reply := d.expect()
	defer d.forget(id)
	if !d.awaitHead() {
		return nil, ErrNoHead
	}
	d.say(control.FromAgent{Question: &control.Exchange{ID: id, Text: q}})
	var answered bool
	select {
	case text, answered = <-reply:
	case <-d.over:
		select {
		case text, answered = <-reply: // the last that the head said
		default:
			return nil, errNoAnswer
		}
	case <-late:
		return nil, errNoAnswer
	}
	if !answered {
		return nil, errHeadLost
	}
	return text, nil
}

// expect is where the answer to a question of that id will come. It is closed if the
// connection to the head ends before.
func (d *deputy) expect() (id uint64, reply chan []byte) {
	id, reply = d.questions.Add(1), make(chan []byte, 1)
	d.mu.Lock()
	d.answers[id] = reply
	d.mu.Unlock()
	return id, reply
}

func (d *deputy) forget(id uint64) {
	d.mu.Lock()
	delete(d.answers, id)
	d.mu.Unlock()
}

// unanswered ends the wait for answers: who was to give them is lost.
func (d *deputy) unanswered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, reply := range d.answers {
		delete(d.answers, id)
		close(reply)
	}
}

// awaitHead waits until there is a head; false if there is none in time to ask it.
func (d *deputy) awaitHead() bool {
	end := time.After(questionTime / 2)
	for d.books.up.Load() == nil {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-end:
			return false
		case <-d.over:
			return false
		}
	}
	return true
}
