package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/metrics"
)

// A deputy is the agent of a host that is not the job's first: it has a crew,
// and does with it what the first agent says.
type deputy struct {
	boot     control.Boot
	orders   Orders
	identity *identity.Identity
	line     *line    // to the head; owned by serve
	copies   *buddies // nil where the job does not outlive hosts
	books    books
	office   office // where the job outlives its head
	launches launcher
	crew     *crew   // nil before there are orders to run; set by serve
	running  bool    // there were
	input    *feeder // of the process that reads; nil if it is not here
	asked    *net.UnixListener
	wg       sync.WaitGroup
	orphaned chan struct{} // closed when who started this agent has ended
	over     chan struct{} // closed when the job has ended for this agent
	emptied  chan struct{} // one element: it may leave, as it was told to

	metrics   *metrics.Server // nil: none
	strangers atomic.Uint64   // connections of processes that were refused
	questions atomic.Uint64
	buried    atomic.Pointer[crew] // crew, for who buries its dead

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
	In    io.Reader // has what to do, as a line. Its end is that of the launch
	Out   io.Writer // of a job that outlives its head: the first agent tells how it began, as a Begun
	Errs  io.Writer // takes what cannot be told the job's first agent
	Guard []string  // as in Job
	Log   bool      // this operating-system process does nothing else: the first agent's own standard error becomes a file
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
	} else if d.identity, err = d.boot.Credentials.Open(); err != nil {
		return err
	}
	d.books.outlive = d.boot.Outlive
	d.office.init(d)
	if d.boot.Crashes && d.copies == nil {
		if d.copies, err = newBuddies(d.identity, d.say); err != nil {
			return err
		}
	}
	l, err := d.dial(ctx)
	if err == nil {
		d.line = l
		err = l.from.Send(control.FromAgent{Joined: new(d.joined())})
	}
	if err != nil {
		d.office.close()
		if d.copies != nil {
			d.copies.close()
		}
		return err
	}
	d.books.up.Store(l)
	for _, b := range tree(d.boot.Children) {
		d.launches.start(b, func(f control.LaunchFailed) { d.say(control.FromAgent{LaunchFailed: &f}) })
	}
	return nil
}

// joined is who this agent is.
func (d *deputy) joined() control.Joined {
	j := control.Joined{
		Version: control.AgentVersion, PID: os.Getpid(), Cores: runtime.NumCPU(), Time: time.Now(),
		System: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if d.copies != nil {
		j.Copies = d.copies.port()
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

// dial connects to the job's first agent, at the first of its addresses that
// answers as it should.
func (d *deputy) dial(ctx context.Context) (*line, error) {
	patience := d.boot.Patience
	if patience <= 0 || patience > dialTime {
		patience = dialTime
	}
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer stop()
	type result struct {
		line *line
		err  error
	}
	results := make(chan result)
	for _, addr := range d.boot.Head {
		go func() { // ends soon after ctx
			if ipVersion(addr) != ipVersion(d.boot.Head[0]) {
				select {
				case <-time.After(headStart):
				case <-ctx.Done():
				}
			}
			l, err := d.try(ctx, addr)
			select {
			case results <- result{l, err}:
			case <-ctx.Done():
				if l != nil {
					l.conn.Close()
				}
			}
		}()
	}
	var errs []error
	for range d.boot.Head {
		select {
		case r := <-results:
			if r.err == nil {
				return r.line, nil
			}
			errs = append(errs, r.err)
			continue
		case <-ctx.Done():
			errs = append(errs, context.Cause(ctx))
		}
		break
	}
	return nil, fmt.Errorf("mpivrun cannot be reached from there at any of %s (is there a firewall between?): %w", strings.Join(d.boot.Head, ", "), errors.Join(errs...))
}

// headStart is how long the addresses of the version of IP that comes first are ahead of
// the others: the processes of a host listen where its agent came from, and where all hosts have
// both versions they are to agree.
const headStart = 300 * time.Millisecond

// ipVersion is that of an address with a port; 0 if it is a name.
func ipVersion(addr string) int {
	at, err := netip.ParseAddrPort(addr)
	switch {
	case err != nil:
		return 0
	case at.Addr().Unmap().Is4():
		return 4
	}
	return 6
}

// dialTime is how long it may take at most to reach the first agent.
const dialTime = 30 * time.Second

// try connects to addr. A connection that ends before both know who the other is
// may have had to make room for another: it is made again.
func (d *deputy) try(ctx context.Context, addr string) (*line, error) {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		l, err := d.tryOnce(ctx, addr)
		if err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			return l, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// A line is a connection to the job's head, which has let us in.
type line struct {
	conn *patient
	from *control.Conn[control.FromAgent]
	to   *control.Conn[control.ToAgent]
	term uint64 // of the head
}

func newLine(c *tls.Conn) *line {
	conn := &patient{Conn: c}
	return &line{conn: conn, from: control.NewConn[control.FromAgent](conn), to: control.NewConn[control.ToAgent](conn)}
}

func (d *deputy) tryOnce(ctx context.Context, addr string) (*line, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	persist(raw)
	config := d.identity.TLS()
	if d.boot.Outlive {
		config.NextProtos = []string{control.ProtocolHead}
	}
	l := newLine(tls.Client(raw, config))
	if err := l.greet(ctx, d.identity, d.boot.Leads); err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return l, nil
}

// greet makes sure that the other end is the job's first agent, and that it has
// let us in: of TLS, this side's part is over before that is decided.
func (l *line) greet(ctx context.Context, own *identity.Identity, first int) error {
	if err := l.conn.HandshakeContext(ctx); err != nil {
		return err
	}
	name, err := own.Verify(l.conn.ConnectionState().PeerCertificates[0])
	if err == nil && (name.Role != identity.Agent || name.Index != first) {
		err = fmt.Errorf("%v is not the job's first agent", name)
	}
	if err != nil {
		return err
	}
	return l.admitted(ctx)
}

// admitted waits until the other end has let us in.
func (l *line) admitted(ctx context.Context) error {
	until, _ := ctx.Deadline()
	l.conn.SetReadDeadline(until)
	m, err := l.to.Receive()
	if m.Alive != nil {
		l.term = m.Alive.Term
	}
	return err
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
					c.bury()
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
	l.conn.wait(d.boot.Silence)
	for {
		m, err := l.to.Receive()
		if err != nil {
			break
		}
		if m.Over != nil {
			d.office.end()
			break
		}
		d.do(m)
	}
	l.conn.Close()
	d.books.lost()
}

// beat says that this agent is alive.
func (d *deputy) beat() {
	tick := time.NewTicker(control.Beat(d.boot.Silence))
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
	d.office.end()
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
		for _, m := range d.crew.all() {
			m.kill(syscall.SIGKILL)
		}
		d.asked.Close()
	}
	if d.copies != nil {
		d.copies.close()
	}
	if d.crew != nil {
		d.crew.close()
	}
	d.launches.close()
	d.wg.Wait()
	endOrphans()
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
	case m.Buddy != nil || m.Copy != nil || m.Fence != nil:
		if d.copies != nil {
			d.copies.do(m)
		}
	case m.Voters != nil:
		d.office.vote(*m.Voters)
	case m.Leave != nil:
		select {
		case d.emptied <- struct{}{}:
		default:
		}
	case !d.running: // what follows is about processes
	case m.Spawn != nil:
		if err := d.add(d.crew, *m.Spawn); err != nil {
			d.forked(m.Spawn.Index, 0, err)
			return
		}
		d.crew.more(d.crew.child(m.Spawn.Index))
	case m.Start != nil:
		for _, c := range d.crew.all() {
			s := *m.Start
			s.Process = c.index
			d.tell(c.index, control.Message{Start: &s})
		}
	case m.Tell != nil && m.Tell.Message != nil:
		d.tell(m.Tell.Process, *m.Tell.Message)
	case m.Kill != nil:
		d.crew.kill(m.Kill.Process, syscall.Signal(m.Kill.Signal))
	case m.Input != nil && d.input != nil:
		d.books.input(m.Input.Process, len(m.Input.Data))
		d.input.add(m.Input.Data, m.Input.End)
	}
}

// tell hands a process what the first agent says to it. One that does not read
// is ended by a signal when it must stop.
func (d *deputy) tell(process int, m control.Message) {
	d.books.told(process, m)
	if !d.crew.send(process, m) && m.Stop != nil {
		d.crew.kill(process, syscall.SIGTERM)
	}
}

// house makes what the processes here need, and where mpivrun finds the job.
func (d *deputy) house() error {
	if d.crew != nil {
		return nil
	}
	c, err := newCrew(crewJob{name: d.boot.Job, runtime: RuntimeDir(), guard: d.orders.Guard}, d)
	if err != nil {
		return err
	}
	if d.asked, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(c.dir.path, askName), Net: "unix"}); err != nil {
		c.close()
		return err
	}
	d.crew = c
	d.buried.Store(c)
	if d.copies != nil {
		if err := d.copies.home(c.dir.path); err != nil {
			return err
		}
	}
	c.wg.Go(func() { c.accept(d.asked, d.question) })
	return nil
}

// run starts this host's processes.
func (d *deputy) run(r control.Run) {
	fail := func(err error) {
		for _, s := range r.Processes {
			d.forked(s.Index, 0, err)
		}
	}
	if err := d.house(); err != nil {
		fail(err)
		return
	}
	d.running = true
	c := d.crew
	c.job.token, c.job.networks, c.job.options, c.job.bind = r.Token, r.Networks, r.Options, r.Bind
	var err error
	for _, s := range r.Processes {
		if err = d.add(c, s); err != nil {
			break
		}
	}
	if err == nil {
		err = c.start()
	}
	if err != nil {
		fail(err)
		return
	}
	if r.Options.Paths > 0 {
		c.wg.Go(func() { c.readHost(d.copies, func(r control.HostReading) { d.say(control.FromAgent{Host: &r}) }) })
	}
	if r.Metrics != "" {
		d.serveMetrics(r.Metrics)
	}
}

// add makes the child of s.
func (d *deputy) add(c *crew, s control.Spawn) error {
	m := &child{
		index: s.Index, ranks: s.Ranks, credentials: s.Credentials,
		prog: &Program{Ranks: len(s.Ranks), Path: s.Path, Args: s.Args, Env: s.Env, Dir: s.Dir},
	}
	if err := m.resolve(); err != nil {
		return err
	}
	var in *os.File
	if s.Input {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		m.ours = append(m.ours, r)
		in = r
		d.input = newFeeder(w, func(n int, broken bool) {
			d.say(control.FromAgent{Taken: &control.Taken{Process: s.Index, Bytes: n, Broken: broken}})
		})
	}
	var out [2]*stream
	for i := range out {
		to := stdio{s.Index, i == 1}
		out[i] = &stream{screen: new(screen), w: upward{d, to, d.window(to)}, prompt: s.Input}
	}
	return c.add(m, in, out, [2]*os.File{})
}

// window is what of an output may be on its way.
func (d *deputy) window(of stdio) *window {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.windows[of]
	if w == nil {
		w = newWindow()
		d.windows[of] = w
	}
	return w
}

// upward is an output of a process: it goes to the first agent.
type upward struct {
	d      *deputy
	of     stdio
	window *window
}

func (u upward) Write(p []byte) (int, error) {
	const piece = 64 << 10
	for sent := 0; sent < len(p); {
		n := u.window.take(min(len(p)-sent, piece))
		if n == 0 {
			return sent, syscall.EPIPE
		}
		u.d.say(control.FromAgent{Output: &control.Output{Process: u.of.process, Stderr: u.of.stderr, Data: p[sent : sent+n]}})
		sent += n
	}
	return len(p), nil
}

// What the crew reports goes to the first agent.

func (d *deputy) forked(process, pid int, err error) {
	f := control.Forked{Process: process, PID: pid}
	if err != nil {
		f.Error, f.Code = err.Error(), 1
		if ee, ok := errors.AsType[*ExitError](err); ok {
			f.Code = ee.Code
		}
	}
	d.say(control.FromAgent{Forked: &f})
}

func (d *deputy) said(process int, m *control.Message) {
	if m != nil {
		if m.Saved != nil && d.copies != nil {
			d.copies.keepOf(*m.Saved)
		}
		shorten(m)
	}
	d.say(control.FromAgent{Said: &control.Said{Process: process, Message: m}})
}

// countsMost is how many counts fit a message to the first agent.
const countsMost = control.FromAgentBytes / 64

// shorten takes out of m what would make it longer than the first agent reads: it
// then does without some answers.
func shorten(m *control.Message) {
	counts := func(ranks []control.RankReport) (n int) {
		for _, r := range ranks {
			n += 8 + len(r.Sent) + len(r.Received)
		}
		return n
	}
	if m.Report != nil && counts(m.Report.Ranks) > countsMost {
		m.Report.Ranks = nil
	}
	if m.Finished != nil && counts(m.Finished.Reports) > countsMost {
		m.Finished.Reports = nil
	}
}

func (d *deputy) refused(reason string) {
	d.strangers.Add(1)
	d.say(control.FromAgent{Refused: &control.Refused{Reason: reason}})
}

func (d *deputy) exited(process int, status syscall.WaitStatus) {
	d.say(control.FromAgent{Exited: &control.Exited{Process: process, Status: uint32(status)}})
}

func (d *deputy) stopped(process int, why string) {
	d.say(control.FromAgent{Stopped: &control.Stopped{Process: process, Why: why}})
}

func (d *deputy) drained(process int) {
	d.say(control.FromAgent{Drained: &control.Drained{Process: process}})
}

// question passes what mpivrun asks here on to the first agent, and its answer
// back.
func (d *deputy) question(c *net.UnixConn) {
	c.SetDeadline(time.Now().Add(questionTime))
	var q json.RawMessage
	var asked Question
	if json.NewDecoder(c).Decode(&q) != nil || json.Unmarshal(q, &asked) != nil {
		return
	}
	c.SetDeadline(time.Now().Add(asked.time()))
	for end := time.Now().Add(questionTime / 2); d.books.up.Load() == nil && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond) // there is no head, for the moment
	}
	id := d.questions.Add(1)
	reply := make(chan []byte, 1)
	d.mu.Lock()
	d.answers[id] = reply
	d.mu.Unlock()
	d.say(control.FromAgent{Question: &control.Exchange{ID: id, Text: q}})
	select {
	case text := <-reply:
		c.Write(append(text, '\n'))
	case <-d.over:
	case <-time.After(asked.time()):
	}
	d.mu.Lock()
	delete(d.answers, id)
	d.mu.Unlock()
}
