package agent

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/metrics"
	"github.com/mpiv/mpiv/internal/replica"
	"github.com/mpiv/mpiv/internal/rundir"
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
	dir       *rundir.Dir // of this host; nil where there is a deputy
	crew      *crew.Crew  // the same
	began     time.Time   // the job, by the clock of its first host
	since     time.Time   // this agent leads
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
	outputs   map[string]*os.File // files of OutputDir, by path
	typed     *os.File            // a pipe to the process that has the terminal's input; nil if there is none
	feeding   *window             // towards the process elsewhere that has the input; nil if there is none

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
	pen      *pen             // nil where the job does not outlive its head
	deposed  error            // why this is the head no more; nil: it is
	typing   *feeder          // takes what a front brings of the job's input; nil: the job reads none
	typed0   int64            // bytes of it that have come to here, or to heads before
	fronts   []*front         // who show the job
	signals  map[string]int   // by viewer: how many of its signals were passed on
	typist   *front           // who of them brings its input; nil: nobody does
	settled  chan struct{}    // closed when code is known
	back     *reconvention    // while a new head hears what is there; nil: no more
	voters   []int            // by index of their hosts
	founding *replica.Replica // until its first election; nil: there is none to come
	parties  int              // how many take part in that
	apart    bool             // lines of output and of errors do not come between each other, where there is a spool
	spool    *spool           // output, for who shows the job; nil where the job does not outlive its head

	contracts *sensors.Watch // nil: there are none
	policy    *policy        // nil: there is nothing to decide, or not yet
	turmoil   turmoil
	cuts      map[[2]*host]*cut        // pairs of hosts that do not reach each other; made when there is one
	missed    map[[2]*process]*missing // who does not reach whom; made when there is one
	met       map[[2]*host]time.Time   // when bytes of the processes of one of two hosts had come to the other; made when that is so

	boots       map[int]control.Boot // of the agents that are started elsewhere
	hereAddress string               // of this host, to the first of them that joined
	awaitsOpen  bool                 // processes of hosts behind address translations are not started yet
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
	now := time.Now()
	return &Agent{
		job: j, began: now, since: now, token: make([]byte, 16),
		settled: make(chan struct{}),
		events:  make(chan func(), 64), done: make(chan struct{}), ended: make(chan struct{}),
		rounds: map[uint64]*round{}, timers: map[*time.Timer]bool{}, signals: map[string]int{},
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

// live is the loop, until the job has ended or another head is to lead it.
func (a *Agent) live() {
	for a.deposed == nil {
		switch {
		case a.running > 0 || a.draining > 0 || a.back != nil || a.pending():
			(<-a.events)()
		case a.doubt != nil && !a.ending && a.interrupts == 0:
			a.fail(*a.doubt)
		default:
			close(a.done)
			a.finish()
			return
		}
	}
	close(a.done)
	a.abdicate()
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

// every has f run by the loop again and again, until it ends.
func (a *Agent) every(period time.Duration, f func()) {
	a.wg.Go(func() {
		tick := alarm.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				a.post(f)
			case <-a.done:
				return
			}
		}
	})
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
	a.limit()
	if a.head == nil {
		a.startAll()
	} else {
		a.launchAll()
	}
	a.live()
}
