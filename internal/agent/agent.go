package agent

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// An Agent runs one job.
type Agent struct {
	job       Job
	dir       *jobDir
	processes []*process
	since     time.Time
	token     []byte
	control   *net.UnixListener // for the processes
	asked     *net.UnixListener // for mpivrun
	speaker   *speaker
	starter   *starter
	null      *os.File
	outputs   []*os.File // files of OutputDir
	typed     *os.File   // a pipe to the process that has the terminal's input; nil if there is none

	forking sync.RWMutex // held for reading while a process is started

	events chan func()   // run by loop; never closed
	done   chan struct{} // closed when the loop has ended
	ended  chan struct{} // closed when all has ended
	code   int           // the job's exit code; read after ended
	wg     sync.WaitGroup

	connMu sync.Mutex // guards what follows
	conns  map[*net.UnixConn]bool
	closed bool

	// What follows is owned by loop.
	running    int // processes that have not been judged
	hellos     int
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
}

// Start starts j. An error of the program or of its place is an *ExitError.
// The caller must Wait.
func Start(j Job) (*Agent, error) {
	j = j.withDefaults()
	a := &Agent{
		job: j, processes: layout(j), since: time.Now(), token: make([]byte, 16),
		events: make(chan func(), 64), done: make(chan struct{}), ended: make(chan struct{}),
		conns: map[*net.UnixConn]bool{}, rounds: map[uint64]*round{}, timers: map[*time.Timer]bool{},
	}
	if err := a.prepare(); err != nil {
		a.release()
		return nil, err
	}
	a.wg.Go(func() { a.accept(a.control, a.serveProcess) })
	a.wg.Go(func() { a.accept(a.asked, a.serveQuestion) })
	if a.typed != nil {
		a.wg.Go(func() { typeOn(a.job.Stdin, a.typed, a.done) })
	}
	for _, p := range a.processes {
		for i, s := range []*stream{p.stdout, p.stderr} {
			if s != nil {
				p.pumps.Go(func() { s.pump(p.readers[i]) })
			}
		}
	}
	go a.run()
	return a, nil
}

// prepare makes all that can fail before the first process runs.
func (a *Agent) prepare() error {
	if len(a.processes) == 0 {
		return fmt.Errorf("the job has no ranks")
	}
	for _, p := range a.processes {
		dir := p.prog.Dir
		if dir != "" && !isDir(dir) {
			return &ExitError{CodeNotFound, fmt.Errorf("working directory %s does not exist", dir)}
		}
		if prev := p.index - 1; prev >= 0 && a.processes[prev].prog == p.prog {
			p.path = a.processes[prev].path
			continue
		}
		search := valueOf(p.prog.Env, "PATH")
		if search == "" {
			search = os.Getenv("PATH")
		}
		var err error
		if p.path, err = resolve(p.prog.Path, dir, search); err != nil {
			return err
		}
	}
	rand.Read(a.token)
	var err error
	if a.dir, err = makeJobDir(a.job.Runtime, a.job.Name); err != nil {
		return err
	}
	a.job.Name = filepath.Base(a.dir.path)
	if a.control, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(a.dir.path, processName), Net: "unix"}); err != nil {
		return err
	}
	if a.asked, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(a.dir.path, askName), Net: "unix"}); err != nil {
		return err
	}
	if a.null, err = os.Open(os.DevNull); err != nil {
		return err
	}
	if a.job.OutputDir != "" {
		if err := os.MkdirAll(a.job.OutputDir, 0o777); err != nil {
			return fmt.Errorf("make the directory for output: %w", err)
		}
	}
	out, ok1 := a.job.Stdout.(*os.File)
	errs, ok2 := a.job.Stderr.(*os.File)
	files := ok1 && ok2
	// One process whose lines need no tags writes where we would.
	raw := files && len(a.processes) == 1 && !a.job.Tag && !a.job.Timestamp && a.job.OutputDir == ""
	screens := [2]*screen{new(screen), new(screen)}
	if !files || sameFile(out, errs) {
		screens[0] = screens[1]
	}
	a.speaker = newSpeaker(&stream{screen: screens[1], w: a.job.Stderr})
	for _, p := range a.processes {
		if err := a.connect(p, raw, screens); err != nil {
			return fmt.Errorf("make the output of %s: %w", p.who(), err)
		}
	}
	return nil
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

// Abort ends the job with exit code 1, for the reason given.
func (a *Agent) Abort(reason string) {
	a.post(func() { a.fail(verdict{code: 1, text: reason}) })
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
	if a.job.Timeout > 0 {
		a.after(a.job.Timeout, a.timedOut)
	}
	a.startAll()
	for a.running > 0 {
		(<-a.events)()
	}
	if a.doubt != nil && !a.ending && a.interrupts == 0 {
		a.fail(*a.doubt)
	}
	close(a.done)
	a.finish()
}

// startAll has every process started, by as many threads as there are cores.
func (a *Agent) startAll() {
	sets := make([]unix.CPUSet, len(a.processes))
	if a.job.Bind {
		var err error
		if sets, err = coreSets(a.processes); err != nil {
			a.running = 0
			a.fail(verdict{code: 1, text: err.Error()})
			return
		}
	}
	a.starter = newStarter(min(runtime.NumCPU(), len(a.processes)))
	a.wg.Go(func() {
		for i, p := range a.processes {
			a.starter.work <- func() {
				err := a.fork(p, sets[i])
				a.closeFiles(p)
				a.post(func() { a.forked(p, err) })
			}
		}
	})
}

// forked is told that p runs, or why it does not.
func (a *Agent) forked(p *process, err error) {
	if err != nil {
		p.judged = true
		a.running--
		code := 1
		if ee, ok := err.(*ExitError); ok {
			code = ee.Code
		}
		a.fail(verdict{code: code, text: err.Error()})
		return
	}
	p.started = true
	a.detail("%s: process %d of the job started, PID %d", p.who(), p.index, p.pid())
	for _, sig := range a.passed { // it ran already, though we did not know
		p.kill(sig)
	}
	if a.ending { // too late
		p.kill(syscall.SIGKILL)
	}
	a.wg.Go(func() {
		status := p.wait()
		a.post(func() { a.exited(p, status) })
		p.drain()
		a.post(func() { a.drained(p) })
	})
}

// drain waits until what the process wrote has been passed on.
func (p *process) drain() {
	for i, s := range []*stream{p.stdout, p.stderr} {
		if s != nil {
			s.leave(p.readers[i])
		}
	}
	p.pumps.Wait()
}

// finish ends what is left when no process is.
func (a *Agent) finish() {
	for t := range a.timers {
		t.Stop()
	}
	a.closeConns()
	a.control.Close()
	a.asked.Close()
	if a.job.Reaper {
		endOrphans()
	}
	a.wg.Wait()
	a.release()
}

// release gives back what prepare made.
func (a *Agent) release() {
	if a.starter != nil {
		a.starter.close()
	}
	for _, p := range a.processes {
		if !p.started {
			a.closeFiles(p)
			for _, r := range p.readers {
				r.Close() // ends its pump, if that runs
			}
			p.pumps.Wait()
		}
	}
	if a.typed != nil {
		a.typed.Close()
	}
	if a.speaker != nil {
		a.pronounce()
		a.speaker.close()
	}
	for _, f := range append(a.outputs, a.null) {
		f.Close()
	}
	for _, l := range []*net.UnixListener{a.control, a.asked} {
		if l != nil {
			l.Close()
		}
	}
	if a.dir != nil {
		a.dir.remove()
	}
}

// closeFiles closes what was made for p to inherit.
func (a *Agent) closeFiles(p *process) {
	for _, f := range p.files {
		if f != a.null && f != a.job.Stdin && f != a.job.Stdout && f != a.job.Stderr {
			f.Close()
		}
	}
}

// detail says what only a curious user wants to know.
func (a *Agent) detail(format string, args ...any) {
	if a.job.Verbose {
		a.speaker.say(fmt.Sprintf("%7.1f ms: ", float64(time.Since(a.since))/1e6) + fmt.Sprintf(format, args...))
	}
}

// warn says what the job goes on in spite of.
func (a *Agent) warn(format string, args ...any) {
	if !a.job.Quiet {
		a.speaker.say(fmt.Sprintf(format, args...))
	}
}

// everyone is the processes that still run.
func (a *Agent) everyone() []*process {
	var all []*process
	for _, p := range a.processes {
		if p.started && !p.exited {
			all = append(all, p)
		}
	}
	return all
}

// names lists processes for people.
func names(ps []*process) string {
	labels := make([]string, len(ps))
	for i, p := range ps {
		labels[i] = p.label()
	}
	word := "rank"
	if len(ps) > 1 || len(ps) == 1 && len(ps[0].ranks) > 1 {
		word = "ranks"
	}
	return word + " " + strings.Join(labels, ", ")
}
