package agent

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/metrics"
	"github.com/mpiv/mpiv/internal/orphans"
	"github.com/mpiv/mpiv/sensors"
)

// How long things may take.
const (
	grace       = 2 * time.Second        // between Stop and SIGKILL
	signalGrace = 5 * time.Second        // between a signal that was passed on and SIGKILL
	settle      = 20 * time.Millisecond  // a rank that fails may only have been the first to notice that another died
	settleMost  = time.Second            // the same, where one is seen to be dying
	lateEnd     = 5 * time.Second        // between the end of a process and that of its connection, which on a starved host can be apart
	lateWrapper = time.Second            // the same, where a script stands between
	drainTime   = 100 * time.Millisecond // for the last output of a process whose pipe others keep open
)

// An Agent is the first of a job: it decides. It has the processes of this host,
// and those of others through the agents there.
type Agent struct {
	job       Job
	hosts     []*host
	processes []*process
	dir       *jobDir    // of this host; nil where there is a deputy
	crew      *crew.Crew // the same
	since     time.Time
	token     []byte
	authority *identity.Authority // nil where all is on this host
	buddies   *buddy.Keeper       // nil where all is on this host, or the job does not outlive hosts, or this process has a deputy
	deputy    *deputy             // of this host, in this process, where the job outlives its head; else nil
	copies    bool                // snapshots are copied to other hosts
	head      *head               // to which other agents connect; nil where all is on this host
	asked     *net.UnixListener   // for mpivrun
	speaker   *speaker
	known     atomic.Pointer[[]*process] // processes, for other goroutines than loop
	roster    atomic.Pointer[[]*host]    // hosts, for other goroutines than loop
	first     int                        // how many processes the job began with
	screens   [2]*screen
	outputs   []*os.File // files of OutputDir
	typed     *os.File   // a pipe to the process that has the terminal's input; nil if there is none
	feeding   *window    // towards the process elsewhere that has the input; nil if there is none

	eventsFile *os.File        // nil: none
	traceFile  *os.File        // nil: none
	metrics    *metrics.Server // nil: none

	events chan func()   // run by loop; never closed
	done   chan struct{} // closed when the loop has ended
	ended  chan struct{} // closed when all has ended
	code   int           // the job's exit code; read after ended
	wg     sync.WaitGroup

	writers sync.WaitGroup // of events and traces, who may have a last word

	// What follows is owned by loop.
	running    int // processes that have not been judged
	draining   int // those that were started and whose output has not all been passed on
	ready      int
	toldRun    bool
	toldStart  bool
	ending     bool
	mourning   bool     // the job ends when others have said what they wait for from a process that died
	doubt      *verdict // a failure that may have been another's consequence
	final      *verdict // why the job ends; nil again when it has been said
	interrupts int      // INT and TERM that came
	interrupt  syscall.Signal
	passed     []syscall.Signal // that came before all processes were known to run
	timers     map[*time.Timer]bool
	rounds     map[uint64]*round
	lastRound  uint64
	watch      watch
	news       newsfeed
	reader     reader
	tracing    *tracing // nil: there is none
	lastTrace  uint64

	survival survival
	stops    stops
	pen      *pen          // nil where the job does not outlive its head
	deposed  error         // why this is the head no more; nil: it is
	typing   *feeder       // takes what a front brings of the job's input; nil: the job reads none
	typed0   int64         // bytes of it that have come to here, or to heads before
	fronts   *front        // who shows the job; nil: nobody has
	settled  chan struct{} // closed when code is known
	back     *reconvention // while a new head hears what is there; nil: no more
	voters   []int         // by index of their hosts
	apart    bool          // lines of output and of errors do not come between each other, where there is a spool
	spool    *spool        // output, for who shows the job; nil where the job does not outlive its head

	contracts *sensors.Watch // nil: there are none
	policy    *policy        // nil: there is nothing to decide, or not yet
	turmoil   turmoil
	cuts      map[[2]*host]*cut      // pairs of hosts that do not reach each other; made when there is one
	met       map[[2]*host]time.Time // when bytes of the processes of one of two hosts had come to the other; made when that is so

	boots       map[int]control.Boot // of the agents that are started elsewhere
	hereAddress string               // of this host, to the first of them that joined
}

// Start starts j. An error of the program or of its place is an *exit.Error.
// The caller must Wait.
func Start(j Job) (*Agent, error) {
	a := newAgent(j.withDefaults())
	if err := a.start(); err != nil {
		return nil, err
	}
	return a, nil
}

// newAgent has nothing yet that must be released.
func newAgent(j Job) *Agent {
	return &Agent{
		job: j, since: time.Now(), token: make([]byte, 16),
		settled: make(chan struct{}),
		events:  make(chan func(), 64), done: make(chan struct{}), ended: make(chan struct{}),
		rounds: map[uint64]*round{}, timers: map[*time.Timer]bool{},
		news:     newsfeed{refusals: map[string]*refusals{}},
		survival: newSurvival(),
	}
}

// start makes what the job needs and begins it.
func (a *Agent) start() error {
	if err := a.prepare(); err != nil {
		a.release()
		return err
	}
	if a.crew != nil {
		a.crew.Accept(a.asked, a.serveQuestion)
	}
	if a.typed != nil {
		a.wg.Go(func() { typeOn(a.job.Stdin, a.typed, a.done) })
	}
	go a.run()
	return nil
}

// live is the loop, until the job has ended or another head is to lead it; then it returns
// false.
func (a *Agent) live() bool {
	for a.deposed == nil {
		switch {
		case a.running > 0 || a.draining > 0 || a.back != nil || a.pending():
			(<-a.events)()
		case a.doubt != nil && !a.ending && a.interrupts == 0:
			a.fail(*a.doubt)
		default:
			close(a.done)
			a.finish()
			return true
		}
	}
	close(a.done)
	a.abdicate()
	return false
}

// prepare makes all that can fail before the first process runs.
func (a *Agent) prepare() error {
	var err error
	if a.hosts, a.processes, err = layout(a.job); err != nil {
		return err
	}
	a.publish()
	if err := a.checkTransports(); err != nil {
		return err
	}
	if err := a.prepareContracts(); err != nil {
		return err
	}
	rand.Read(a.token)
	if a.deputy != nil {
		return a.prepareOutliving()
	}
	if a.dir, err = makeJobDir(a.job.Runtime, a.job.Name); err != nil {
		return err
	}
	if a.crew, err = crew.New(a.dir.path, local{a}); err != nil {
		return err
	}
	a.job.Name = a.dir.name()
	if a.asked, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(a.dir.path, askName), Net: "unix"}); err != nil {
		return err
	}
	for _, h := range a.hosts {
		if h.here {
			h.place, h.cores = local{a}, runtime.NumCPU()
		} else if a.head == nil && len(h.processes) > 0 {
			if err := a.openHead(); err != nil {
				return err
			}
		}
	}
	if err := a.prepareOutput(); err != nil {
		return err
	}
	if err := a.prepareChaos(); err != nil {
		return err
	}
	if a.job.Events != "" {
		if a.eventsFile, err = openEvents(a.job.Events); err != nil {
			return err
		}
	}
	if a.job.Trace != "" {
		if a.traceFile, err = openTrace(a.job.Trace); err != nil {
			return err
		}
	}
	if err := a.prepareHere(); err != nil {
		return err
	}
	return a.serveMetrics()
}

// publish has other goroutines than loop know all processes and hosts.
func (a *Agent) publish() {
	processes, hosts := a.processes, a.hosts
	a.known.Store(&processes)
	a.roster.Store(&hosts)
}

// prepareOutput makes where the output of every process goes, and the input of
// the one that has some.
func (a *Agent) prepareOutput() error {
	if a.job.OutputDir != "" {
		if err := os.MkdirAll(a.job.OutputDir, 0o777); err != nil {
			return fmt.Errorf("make the directory for output: %w", err)
		}
	}
	out, ok1 := a.job.Stdout.(*os.File)
	errs, ok2 := a.job.Stderr.(*os.File)
	a.first = len(a.processes)
	screens := [2]*screen{new(screen), new(screen)}
	if !a.apart && (!ok1 || !ok2 || sameFile(out, errs)) {
		screens[0] = screens[1]
	}
	a.screens = screens
	a.speaker = newSpeaker(&stream{screen: screens[1], w: a.job.Stderr})
	for _, p := range a.processes {
		if err := a.outputOf(p, screens); err != nil {
			return fmt.Errorf("make the output of %s: %w", p.who(), err)
		}
	}
	return nil
}

// outputOf makes the streams of p.
func (a *Agent) outputOf(p *process, screens [2]*screen) error {
	for i, w := range []any{a.job.Stdout, a.job.Stderr} {
		name := [2]string{"stdout", "stderr"}[i]
		s := &stream{screen: screens[i], stamped: a.job.Timestamp, prompt: p.reads}
		if a.job.Tag {
			s.tag = "[" + p.label() + "]<" + name + ">: "
		}
		if a.job.OutputDir == "" && a.spool != nil {
			s.w = outlet{spooled{a.spool, i == 1}, p.index, s}
		} else if a.job.OutputDir == "" {
			s.w = w.(interface{ Write([]byte) (int, error) })
		} else {
			f, err := os.OpenFile(filepath.Join(a.job.OutputDir, "rank."+p.label()+"."+name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o666)
			if err != nil {
				return err
			}
			a.outputs = append(a.outputs, f)
			s.w, s.screen, s.prompt = f, new(screen), false
		}
		p.streams[i] = s
	}
	p.streams[1].last = new(tail)
	return nil
}

// prepareHere adds the processes of this host to its crew.
func (a *Agent) prepareHere() error {
	out, ok1 := a.job.Stdout.(*os.File)
	errs, ok2 := a.job.Stderr.(*os.File)
	// One process whose lines need no tags writes where we would.
	raw := [2]*os.File{}
	if ok1 && ok2 && len(a.processes) == 1 && !a.job.Tag && !a.job.Timestamp && a.job.OutputDir == "" {
		raw = [2]*os.File{out, errs}
	}
	var last *process
	for _, p := range a.processes {
		if !p.host.here {
			continue
		}
		m := crew.Process{Index: p.index, Ranks: p.ranks, Program: p.prog.program(), Raw: raw}
		var err error
		if last != nil && last.prog == p.prog {
			m.File = last.path
		} else if m.File, err = m.Program.Find(); err != nil {
			return err
		}
		p.path = m.File
		last = p
		if raw[0] != nil {
			p.streams = [2]*stream{}
		}
		m.Output = p.outputs()
		if p.reads {
			if m.Input, m.CloseInput, err = a.input(); err != nil {
				return fmt.Errorf("make the input of %s: %w", p.who(), err)
			}
		}
		if err := a.crew.Add(m); err != nil {
			return err
		}
	}
	return nil
}

// input is what the process gets that reads the job's standard input; made: for it alone.
func (a *Agent) input() (in *os.File, made bool, err error) {
	in = a.job.Stdin
	switch terminal := isTerminal(in); {
	case terminal && !inForeground(in):
		return nil, false, nil // reading would stop us
	case terminal:
		// The process is not in the terminal's foreground group, which is what
		// lets the agent decide who gets an interrupt. So it is given a pipe.
		r, w, err := os.Pipe()
		if err != nil {
			return nil, false, err
		}
		a.typed = w
		return r, true, nil
	}
	return in, false, nil
}

func sameFile(a, b *os.File) bool {
	ia, err1 := a.Stat()
	ib, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}

// Wait returns the job's exit code when all its processes have ended and their
// output has been passed on.
func (a *Agent) Wait() int {
	<-a.ended
	return a.code
}

// Name is what the job is called for Ask.
func (a *Agent) Name() string { return a.job.Name }

// Signal passes sig on to the job's processes. A second INT or TERM kills them,
// and so does the first after a while.
func (a *Agent) Signal(sig syscall.Signal) { a.post(func() { a.signal(sig) }) }

// Bury reaps what processes of the job left behind on this host and has ended
// since. It is for who calls orphans.Adopt, after a SIGCHLD.
func (a *Agent) Bury() {
	if a.crew != nil {
		a.post(a.crew.Bury)
	}
}

// post has f run by the loop. After the end of the job nothing happens.
func (a *Agent) post(f func()) {
	select {
	case a.events <- f:
	case <-a.done:
	}
}

// after has f run by the loop, in a while.
func (a *Agent) after(d time.Duration, f func()) {
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		a.post(func() {
			delete(a.timers, t)
			f()
		})
	})
	a.timers[t] = true
}

// run is the life of the job.
func (a *Agent) run() {
	defer close(a.ended)
	a.running = len(a.processes)
	if a.eventsFile != nil {
		a.writeEvents()
	}
	if a.traceFile != nil {
		a.traceJob()
	}
	a.emitJob()
	if a.metrics != nil {
		a.measured(a.hereName(), a.metrics.Addr().AddrPort())
	}
	if a.job.Timeout > 0 {
		a.after(a.job.Timeout, a.timedOut)
	}
	if a.head == nil {
		a.startAll()
	} else {
		a.launchAll()
	}
	a.live()
}

// startAll has every process started.
func (a *Agent) startAll() {
	a.toldRun = true
	networks, err := a.identify()
	if err == nil && a.crew != nil {
		err = a.crew.Start(crew.Job{Token: a.token, Networks: networks, Options: a.job.Options, Bind: a.job.Bind, Guard: a.job.Guard})
	}
	if err == nil && a.head != nil {
		err = a.runElsewhere()
	}
	if err != nil {
		a.forgetAll()
		a.fail(verdict{code: 1, text: err.Error()})
	}
}

// identify gives the processes of this host their keys, in a job
// of several hosts, and returns their networks.
func (a *Agent) identify() (networks []control.Network, err error) {
	for _, h := range a.hosts {
		if a.head != nil && h.here {
			h.networks = h.Networks
			networks = a.networksOf(h)
		}
	}
	if a.crew == nil {
		return networks, nil
	}
	for _, p := range a.crew.Processes() {
		c, err := a.credentialsOf(a.processes[p])
		if err != nil {
			return nil, err
		}
		a.crew.Identify(p, c)
	}
	return networks, nil
}

// forgetAll is for a job whose processes are not started.
func (a *Agent) forgetAll() {
	for _, p := range a.processes {
		if !p.judged {
			p.judged = true
			a.running--
		}
	}
}

// forked is told that p runs, or why it does not.
func (a *Agent) forked(p *process, pid int, err error) {
	if p.judged || p.started { // its host was lost, or lies
		return
	}
	if err != nil && p.host.adding != nil {
		a.notAdded(p.host, fmt.Errorf("host %s: %w", p.host.name, err))
		return
	}
	if err != nil {
		p.judged = true
		a.running--
		code := 1
		if ee, ok := err.(*exit.Error); ok {
			code = ee.Code
		}
		text := err.Error()
		if !p.host.here {
			text = fmt.Sprintf("host %s: %s", p.host.name, text)
		}
		a.fail(verdict{code: code, text: text})
		return
	}
	p.started, p.pid = true, pid
	a.emitOf(p, events.Event{Kind: events.ProcessStarted, Started: &events.Started{PID: pid}})
	a.draining++
	a.detail("%s: process %d of the job started, PID %d%s", p.who(), p.index, pid, a.onHost(p))
	for _, sig := range a.passed { // it ran already, though we did not know
		p.kill(sig)
	}
	if a.ending { // too late
		p.kill(syscall.SIGKILL)
	}
}

// onHost says where p is, in a job of several hosts.
func (a *Agent) onHost(p *process) string {
	if len(a.hosts) == 1 {
		return ""
	}
	return " on host " + p.host.name
}

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
		a.partFromFront()
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
		a.dir.remove()
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
	if a.dir != nil {
		a.dir.remove()
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

// detail says what only a curious user wants to know.
func (a *Agent) detail(format string, args ...any) {
	if a.job.Verbose {
		a.say(a.stamped(format, args...))
	}
}

// stamped is a line that says when.
func (a *Agent) stamped(format string, args ...any) string {
	return fmt.Sprintf("%7.1f ms: ", float64(time.Since(a.since))/1e6) + fmt.Sprintf(format, args...)
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

// everyone is the processes that still run.
func (a *Agent) everyone() []*process {
	return slices.DeleteFunc(slices.Clone(a.processes), func(p *process) bool { return !p.started || p.exited })
}

// members is the processes that run and have been told Start, and so what has changed
// since. Who has joined may not have been heard to be started yet.
func (a *Agent) members() []*process {
	return slices.DeleteFunc(slices.Clone(a.processes), func(p *process) bool { return !p.joined || p.exited })
}

// tellMembers tells m to all who take part but some, with one message to each host.
func (a *Agent) tellMembers(m control.Message, but func(*process) bool) {
	to := a.listeners(but)
	for _, h := range a.hosts {
		if len(to[h]) > 0 {
			h.place.send(m, to[h]...)
		}
	}
}

// listeners is who takes part but some, by host.
func (a *Agent) listeners(but func(*process) bool) map[*host][]int {
	on := make(map[*host][]int, len(a.hosts))
	for _, p := range a.members() {
		if p.listens() && (but == nil || !but(p)) {
			on[p.host] = append(on[p.host], p.index)
		}
	}
	return on
}

// local is the Agent as the owner of this host's crew, and that crew as a place.
type local struct{ a *Agent }

func (l local) startRanks(processes []int, s control.Start) {
	for _, p := range processes {
		s.Process = p
		own := s
		l.send(control.Message{Start: &own}, p)
	}
}

func (l local) send(m control.Message, to ...int) bool { return l.a.crew.Send(m, to...) }
func (l local) sendLater(m control.Message, to ...int) { l.send(m, to...) }
func (l local) hurry()                                 {}
func (l local) kill(process int, sig syscall.Signal)   { l.a.crew.Kill(process, sig) }

func (l local) Forked(process, pid int, err error) {
	l.a.post(func() { l.a.forked(l.a.processes[process], pid, err) })
}

func (l local) Said(process int, m *control.Message) {
	l.a.post(func() { l.a.said(l.a.processes[process], m) })
}

func (l local) Refused(reason string) {
	l.a.post(func() {
		l.a.warn("a connection was refused: %s", reason)
		l.a.refusedOne(l.a.hereName(), reason)
	})
}

func (l local) Exited(process int, status syscall.WaitStatus) {
	l.a.post(func() { l.a.exited(l.a.processes[process], status) })
}

func (l local) Stopped(process int, why string) {
	l.a.post(func() { l.a.stopped(l.a.processes[process], why) })
}

func (l local) Drained(process int) {
	l.a.post(func() { l.a.drained(l.a.processes[process]) })
}
