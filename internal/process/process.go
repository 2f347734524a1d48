// Package process assembles one process of a job: it joins the agent that
// started it, listens on its networks, and gives the library its engine.
package process

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/brief"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/pages"
	"github.com/mpiv/mpiv/internal/spill"
	"github.com/mpiv/mpiv/internal/witness"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma/shm"
)

// ErrStopped is why calls fail after the agent has ended the job.
var ErrStopped = errors.New("the job was stopped")

// Describe says in words what the check of a collective's messages stands for.
type Describe func(check uint16) string

// A Process is this process's part in a job.
type Process struct {
	agent    *control.Conn[control.Message]
	index    int
	options  control.Options
	describe Describe
	log      *slog.Logger       // for people
	identity *identity.Identity // nil where nobody asks
	devices  bool               // some write to memory: the system does not know all that was written to
	short    int                // the least of the networks' Short

	engine   *engine.Engine
	spill    *spill.Spill // nil where the log has no use for it
	fabric   *fabric.Fabric
	networks []fabric.Network
	shared   *shm.Domain // of networks; nil: it is not one
	began    time.Time
	watches  chan control.Watch // that the agent wants

	stopped  chan struct{} // closed when the agent has said Stop, or is gone
	reason   error         // why; nil if all have finished; set before stopped is closed
	finished sync.WaitGroup

	dir     string        // of the job
	host    string        // this one's name
	router  string        // of the address translation that it is behind; empty: it is behind none
	relayed []string      // networks on which processes are reached through endpoints of others, too
	copied  bool          // a snapshot covers nothing before the agent says so
	page    *witness.Page // nil unless copied: choices are to be known on another host
	lives   chan *Life    // that begin here; never full
	moves   *moves
	reserve pages.Reserve // while no rank is here: for the state of one that comes
	blank   blank         // likewise: for its choices
	behind  chan int      // processes that have to hear of a map
	calls   calls         // to processes that may not be reached from here
	asks    asks          // for snapshots of ranks here

	mu     sync.Mutex // guards what follows
	ends   map[topology.Rank]bool
	living map[topology.Rank]*Life
	over   bool // the job has ended

	recording *recording // nil: nothing is recorded
}

// Launched tells whether this process was started as a part of a job.
func Launched() bool { return os.Getenv(control.EnvSocket) != "" }

// Join takes this process's part in the job that started it: it returns when
// all processes of the job have come so far. The caller must Leave. extra are
// networks that the program has beside the usual ones.
func Join(describe Describe, extra ...transport.Network) (*Process, error) {
	index, err := strconv.Atoi(os.Getenv(control.EnvProcess))
	if err != nil {
		return nil, fmt.Errorf("%s in the environment: %w", control.EnvProcess, err)
	}
	socket := os.Getenv(control.EnvSocket)
	agent, err := control.Dial(socket)
	if err != nil {
		return nil, err
	}
	os.Unsetenv(control.EnvSocket) // a program that this one starts is no part of the job
	os.Unsetenv(control.EnvProcess)
	p := &Process{agent: agent, index: index, describe: describe, stopped: make(chan struct{}), watches: make(chan control.Watch), began: time.Now(), behind: make(chan int, 16), calls: calls{came: make(chan struct{}, 1)}, asks: asks{came: make(chan struct{}, 1)}, ends: make(map[topology.Rank]bool), living: make(map[topology.Rank]*Life)}
	pprof.Do(context.Background(), pprof.Labels(Label, ofLibrary), func(context.Context) {
		err = p.join(filepath.Dir(socket), extra)
	})
	if err != nil {
		agent.Close()
		return nil, err
	}
	return p, nil
}

func (p *Process) join(dir string, extra []transport.Network) error {
	hello := control.Hello{Version: control.Version, Process: p.index, PID: os.Getpid()}
	if err := p.agent.Send(control.Message{Hello: &hello}); err != nil {
		return fmt.Errorf("say hello to the agent: %w", err)
	}
	welcome, err := p.agent.Receive()
	if err == nil && welcome.Stop != nil {
		err = errors.New(welcome.Stop.Reason)
	}
	if err != nil || welcome.Welcome == nil {
		return fmt.Errorf("the agent did not say welcome (is mpivrun of the same version?): %v", err)
	}
	p.options, p.dir = welcome.Welcome.Options, dir
	networks, err := p.listen(dir, *welcome.Welcome, extra)
	if err != nil {
		return err
	}
	var ready control.Ready
	for _, n := range networks {
		ready.Addrs = append(ready.Addrs, control.Addr{Class: n.Class, Addr: string(n.Endpoint.Addr())})
	}
	if err := p.agent.Send(control.Message{Ready: &ready}); err != nil {
		closeAll(networks)
		return fmt.Errorf("tell the agent that this process is ready: %w", err)
	}
	m, err := p.agent.Receive()
	if err != nil || m.Start == nil {
		closeAll(networks)
		if err == nil && m.Stop != nil {
			return fmt.Errorf("%w: %s", ErrStopped, m.Stop.Reason)
		}
		return fmt.Errorf("the agent did not say how the job starts: %v", err)
	}
	p.start(m.Start, networks)
	return nil
}

func (p *Process) start(s *control.Start, networks []fabric.Network) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	p.log = log
	opt := fabric.Options{Process: p.index, Networks: networks, Log: log}
	if p.identity != nil {
		opt.Authenticate = p.authenticate
	}
	p.fabric = fabric.New(len(s.Processes)+s.Room, opt)
	p.calls.to = make([]callee, len(s.Processes)+s.Room)
	cfg := engine.Config{
		Process:  p.index,
		Epoch:    topology.Epoch(s.Epoch),
		Room:     s.Room,
		Keep:     p.options.Survive != "none",
		Replay:   p.options.Survive == "crashes",
		Save:     p.asks.add,
		LogBytes: p.options.LogBytes,
		Recorded: p.short,
		Behind:   p.lags,
		Connect:  p.connect,
		Fail:     p.failed,
		Log:      log,
	}
	if p.options.Survive == "report" {
		cfg.Lost = p.lostPeer
	}
	own := s.Processes[p.index]
	p.host, p.router, p.copied = own.Host, own.Router, s.Copied
	cfg.SaveBytes = saveBytesHere
	if p.copied {
		cfg.SaveBytes = saveBytes
	}
	var failed error
	if p.copied && cfg.Replay {
		if p.page, failed = witness.Open(p.dir); failed == nil {
			cfg.Witness = p.page
		}
	}
	cfg.Crowded, cfg.Shared = began(s.Processes[:s.Ranked])
	if cfg.Crowded && p.shared != nil {
		p.shared.Crowd()
	}
	cfg.Shared = cfg.Shared && networks[0].Endpoint.Addr().Network() == "shm"
	addrs := make([][]fabric.Addr, len(s.Processes))
	for i, q := range s.Processes {
		ranks := make([]topology.Rank, len(q.Ranks))
		for k, r := range q.Ranks {
			ranks[k] = topology.Rank(r)
		}
		cfg.Processes = append(cfg.Processes, ranks)
		addrs[i] = p.reach(q)
		p.calls.to[i].apart.Store(q.Router != "" && q.Host != own.Host)
	}
	setProcs(own, s.Processes[:s.Ranked])
	p.networks = networks
	if cfg.Replay {
		p.spill = spill.New(os.TempDir(), cmp.Or(p.options.LogDisk, logDisk), func(err error) {
			log.Error("the log is longer than --log-bytes, and stays in memory without a bound", "err", err)
		})
		cfg.Spill = p.spill
	}
	p.engine = engine.New(cfg)
	for i, q := range s.Processes {
		if q.Host != p.host {
			p.engine.SetFar(i)
		}
	}
	if failed != nil {
		p.engine.Fail(fmt.Errorf("open the page on which the agent says what other hosts know: %w", failed))
	}
	if s.Trace != nil {
		p.trace(*s.Trace)
	}
	p.begin()
	p.fabric.Start(p.engine, addrs)
	p.finished.Go(p.listenToAgent)
	p.finished.Go(p.reportWhenStuck)
	p.finished.Go(p.reportWhenWatched)
	p.finished.Go(p.call)
	if cfg.Keep {
		p.finished.Go(p.reportBehind)
	}
	if p.betweenHosts() {
		p.finished.Go(p.reportCuts)
	}
	if p.options.Paths > 0 {
		p.finished.Go(p.reportPaths)
	}
}

// logDisk is the bound of what is put on disk unless the job says otherwise.
const logDisk = 4 << 30

// authenticate tells which process of the job a certificate is of.
func (p *Process) authenticate(cert *x509.Certificate) (int, error) {
	name, err := p.identity.Verify(cert)
	if err == nil && name.Role != identity.Process {
		err = fmt.Errorf("%v is no process", name)
	}
	return name.Index, err
}

// Engine is the message core of this process.
func (p *Process) Engine() *engine.Engine { return p.engine }

// Check tells whether costly checks of the program are wanted.
func (p *Process) Check() bool { return p.options.Check }

// Stopped is closed when the job has ended, for whatever reason.
func (p *Process) Stopped() <-chan struct{} { return p.stopped }

// Err is why the job ended before all ranks had finished; nil if it did not. It
// may be asked once Stopped is closed.
func (p *Process) Err() error { return p.reason }

// listenToAgent does what the agent says, until the job ends.
func (p *Process) listenToAgent() {
	defer p.noMoreLives()
	defer close(p.stopped)
	for {
		m, err := p.agent.Receive()
		switch {
		case err != nil:
			if !errors.Is(err, net.ErrClosed) {
				if p.options.Survive == "crashes" {
					os.Exit(1) // the ranks go on elsewhere: what they would still do here, such as removing files, would be done to those
				}
				p.reason = fmt.Errorf("%w: mpivrun is gone", ErrStopped)
				p.engine.Fail(p.reason)
			}
			return
		case m.Ask != nil:
			r := p.Report()
			r.ID = m.Ask.ID
			p.agent.Send(control.Message{Report: &r}) // if that fails, Receive will
		case m.Ping != nil:
			p.agent.Send(control.Message{Pong: m.Ping})
		case m.Watch != nil:
			p.watches <- *m.Watch
		case m.Meet != nil:
			p.meet(*m.Meet)
		case m.Place != nil:
			p.place(*m.Place)
		case m.Adopt != nil:
			p.adopt(*m.Adopt)
		case m.Covered != nil:
			p.covered(*m.Covered)
		case m.Call != nil:
			p.fabric.Call(m.Call.Process)
		case m.Depart != nil:
			p.depart(*m.Depart)
		case m.Trace != nil:
			p.trace(*m.Trace)
		case m.Avoid != nil:
			p.fabric.Avoid(m.Avoid.Processes, m.Avoid.Class, m.Avoid.For, m.Avoid.Why)
		case m.Dead != nil:
			p.dead(*m.Dead)
		case m.Stop != nil:
			if m.Stop.Reason != "" {
				p.reason = fmt.Errorf("%w: %s", ErrStopped, m.Stop.Reason)
				p.engine.Fail(p.reason)
			}
			return
		}
	}
}

// dead is told that processes have failed.
func (p *Process) dead(m control.Dead) {
	for _, process := range m.Processes {
		p.engine.DeclareFailed(process)
		p.fabric.Fence(process)
	}
}

// lostPeer tells the agent that another process cannot be reached.
func (p *Process) lostPeer(process int, err error) {
	p.agent.Send(control.Message{Lost: &control.Lost{Process: process, Error: err.Error()}}) // if that fails, Receive will
}

// errorMost is how much is told of a rank's error: a longer message would be refused, and end the
// agent of this host, or this process.
const errorMost = 1 << 20

// Ended tells the agent that a rank of this process has returned from run. told:
// its error is the consequence of another rank's.
func (p *Process) Ended(r topology.Rank, err error, code int, told bool) {
	if l := p.life(r); l != nil {
		l.announced()
	}
	text := ""
	if err != nil { // before the rank counts as ended: it may take long, and others would seem to wait for it in vain
		text = brief.Text(err.Error(), errorMost)
	}
	p.mu.Lock()
	p.ends[r] = true
	p.mu.Unlock()
	select {
	case <-p.stopped:
		return // whatever it says, that is the reason
	default:
	}
	var m control.Message
	if err != nil { // the rank may have left
		m.Failed = &control.Failed{Rank: int(r), Code: code, Error: text, Lost: lost(err), Told: told}
	} else {
		m.Finished = &control.Finished{Ranks: []int{int(r)}, Reports: []control.RankReport{p.reportRank(p.engine.Box(r), nil, &activity{})}}
	}
	p.agent.Send(m) // if that fails, the agent is gone, and Leave will say so
}

// failed tells the agent that the message core of this process cannot go on.
func (p *Process) failed(err error) {
	if errors.Is(err, ErrStopped) || errors.Is(err, engine.ErrClosed) {
		return
	}
	p.mu.Lock()
	local := p.engine.Local()
	all := len(p.ends) >= len(local)
	p.mu.Unlock()
	if all {
		return // others have left already
	}
	m := &control.Failed{Rank: int(local[0]), Code: 1, Error: err.Error()}
	if le, ok := errors.AsType[*engine.LostError](err); ok {
		m.Lost, m.Ended = &le.Process, p.waitsEndedBy(le)
	}
	p.agent.Send(control.Message{Failed: m})
}

// waitsEndedBy is what ranks of this process waited for when it lost another.
func (p *Process) waitsEndedBy(e *engine.LostError) (all []control.RankReport) {
	for _, r := range slices.Sorted(maps.Keys(e.Waits)) {
		rep := control.RankReport{Rank: int(r), State: "waiting"}
		for _, w := range e.Waits[r] {
			rep.Waits = append(rep.Waits, p.wait(w))
		}
		all = append(all, rep)
	}
	return all
}

// lost is the process that err says was lost; nil if it says no such thing.
func lost(err error) *int {
	if le, ok := errors.AsType[*engine.LostError](err); ok {
		return &le.Process
	}
	return nil
}

// Leave waits until all processes have finished, so that everything this one
// has sent arrives, and frees what it holds. The error says why the job ended
// before.
func (p *Process) Leave() error {
	<-p.stopped
	err := p.reason
	p.endTrace()
	p.agent.Close()
	p.engine.Close()
	p.endLives()
	p.reserve.Empty()
	if p.page != nil {
		p.page.Close()
	}
	p.fabric.Close()
	p.finished.Wait()
	p.blank.discard()
	if p.spill != nil {
		p.spill.Close()
	}
	return err
}

// Kill frees nothing and waits for nobody: the job has failed here, and the
// agent knows.
func (p *Process) Kill() { p.agent.Close() }

// Ranks is the ranks of this process.
func (p *Process) Ranks() []topology.Rank { return slices.Clone(p.engine.Local()) }
