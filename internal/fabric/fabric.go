// Package fabric connects the processes of a job: it dials and accepts on every
// network that this process has, hands the connections to its engine, and moves
// them to another path when one fails or a better one works. What it does is
// decided by package paths.
package fabric

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/paths"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// Options of a Fabric. Networks and Log must be set.
type Options struct {
	Process  int
	Networks []Network     // best first; Close closes their endpoints
	Patience time.Duration // how long to try to reach a process. Zero means 30 s.
	Log      *slog.Logger

	// Authenticate tells which process a certificate is of. With it, who comes from
	// another host must have one, and be the process it says it is. Nil: nobody is
	// asked.
	Authenticate func(cert *x509.Certificate) (process int, err error)
}

// A Network that this process has.
type Network struct {
	Class    topology.Class
	Endpoint transport.Endpoint
}

// An Addr is where a process is reached over one of its networks.
type Addr struct {
	Class topology.Class
	Addr  transport.Addr
}

// A Fabric owns the endpoints of a process and the goroutines that dial and
// accept on them. All methods may be called by any goroutine.
type Fabric struct {
	opt  Options
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup

	wanted []atomic.Bool // by process: Connect was called
	wake   chan struct{} // there is one of them, or somebody to watch
	due    *alarm.Alarm  // time has passed

	engine *engine.Engine // set by Start

	mu     sync.Mutex // guards what follows; held for no I/O
	pairs  []*pair    // by process; nil for this one; made by Start
	ticked time.Time
	next   time.Duration // after that; 0: not before something is wanted
	polled time.Time     // when lookInTime was last called
	visits map[int]int   // by process: connections that it has dialed, in their greeting
	refusals
}

// New makes a Fabric for a job of that many processes. It does nothing until
// Start.
func New(processes int, opt Options) *Fabric {
	f := &Fabric{opt: opt, wanted: make([]atomic.Bool, processes), wake: make(chan struct{}, 1), due: alarm.New()}
	f.ctx, f.stop = context.WithCancel(context.Background())
	return f
}

// Addrs is where others reach this process.
func (f *Fabric) Addrs() []Addr {
	addrs := make([]Addr, len(f.opt.Networks))
	for i, n := range f.opt.Networks {
		addrs[i] = Addr{n.Class, n.Endpoint.Addr()}
	}
	return addrs
}

// Connect asks for a connection to a process; it is engine.Config.Connect.
func (f *Fabric) Connect(process int) {
	f.wanted[process].Store(true)
	f.look()
}

// look has run look at what is wanted.
func (f *Fabric) look() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Start begins to accept and dial for e. addrs says where each process is.
func (f *Fabric) Start(e *engine.Engine, addrs [][]Addr) {
	f.engine = e
	f.mu.Lock()
	f.pairs = make([]*pair, len(f.wanted))
	for process := range addrs {
		if process != f.opt.Process {
			f.pairs[process] = newPair(f, process, addrs[process])
		}
	}
	f.mu.Unlock()
	for _, process := range addrs {
		f.expect(process)
	}
	for i := range f.opt.Networks {
		f.done.Go(func() { f.accept(&f.opt.Networks[i]) })
	}
	f.done.Go(f.run)
	e.LookWhilePolling(f.lookInTime)
}

// expect has the endpoints let in who comes from these addresses.
func (f *Fabric) expect(addrs []Addr) {
	var peers []transport.Addr
	for _, a := range addrs {
		peers = append(peers, a.Addr)
	}
	for _, n := range f.opt.Networks {
		if e, ok := n.Endpoint.(transport.Expecter); ok && len(peers) > 0 {
			e.Expect(peers)
		}
	}
}

// Close stops dialing and accepting, closes the endpoints and waits. The engine
// must be closed before.
func (f *Fabric) Close() {
	f.mu.Lock()
	f.stop() // who polls sees it, or has begun all that it will
	f.mu.Unlock()
	for _, n := range f.opt.Networks {
		if err := n.Endpoint.Close(); err != nil {
			f.opt.Log.Warn("endpoint closed badly", "addr", n.Endpoint.Addr(), "err", err)
		}
	}
	f.done.Wait()
	f.due.Close()
}

// Meet says where a process is that was started after this one.
func (f *Fabric) Meet(process int, addrs []Addr) {
	f.expect(addrs)
	f.mu.Lock()
	defer f.mu.Unlock()
	if was := f.pairs[process]; was != nil && (was.fenced || len(was.addrs) > 0) {
		return
	}
	p, was := newPair(f, process, addrs), f.pairs[process]
	f.pairs[process] = p
	if was != nil && was.generation > 0 { // it has dialed this process before
		p.attached(p.find(was.guest.over, was.guest.peer), was.generation, false)
		p.firm = p.firm || was.firm
	}
	f.look()
}

// Call has this process connect to another, which wants that and may not reach this one.
func (f *Fabric) Call(process int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if process < 0 || process >= len(f.pairs) {
		return
	}
	p := f.pairs[process]
	if p == nil || p.policy == nil || p.fenced || !p.wantedAt.IsZero() {
		return
	}
	if f.engine.Link(process).Conn != nil {
		f.engine.Ping(process, 0) // the other end may have lost it, of which this one hears when it sends
		return
	}
	p.wantedAt = time.Now()
	p.step(p.wantedAt, paths.Want{})
	f.look()
}

// Fence ends the connection to a process that was declared dead, and refuses it
// from now on.
func (f *Fabric) Fence(process int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pairs[process]
	if p == nil {
		p = newPair(f, process, nil)
		f.pairs[process] = p
	}
	p.fenced = true
	for _, n := range f.opt.Networks {
		if x, ok := n.Endpoint.(transport.Forgetter); ok {
			for _, a := range p.addrs {
				x.Forget(a.Addr)
			}
		}
	}
	for path := range p.attempts {
		p.drop(path)
	}
	f.engine.Fence(process)
}

// Avoid has this process, for so long, talk to others over another class of network where
// there is one that works. Zero ends that. Why is a phrase, for people.
func (f *Fabric) Avoid(processes []int, class topology.Class, d time.Duration, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, process := range processes {
		if process >= 0 && process < len(f.pairs) && f.pairs[process] != nil && f.pairs[process].policy != nil {
			f.pairs[process].avoid(class, d, why)
		}
	}
	f.look()
}

// How often pairs with several paths are looked at: while something is under way,
// and while nothing is.
const (
	busyTick = 5 * time.Millisecond
	idleTick = 25 * time.Millisecond
)

// run feeds the pairs with what the engine wants and with time. While there is
// nothing to watch it sleeps.
func (f *Fabric) run() {
	for {
		var due bool
		select {
		case <-f.wake:
		case <-f.due.C:
			due = true
		case <-f.ctx.Done():
			return
		}
		f.mu.Lock()
		if due && time.Since(f.polled) < f.next { // who polls is about to
			f.due.Set(2 * f.next)
		} else if f.round(due); f.next > 0 {
			f.due.Set(f.next)
		} else {
			f.due.Unset()
		}
		f.mu.Unlock()
	}
}

// lookInTime does what run would, in the thread of who polls. Then run need not wake: it looks again if
// nobody has polled by the time after that.
func (f *Fabric) lookInTime(now time.Time) {
	if !f.mu.TryLock() { // somebody looks
		return
	}
	defer f.mu.Unlock()
	f.polled = now
	if f.ctx.Err() != nil || f.next == 0 || now.Sub(f.ticked) < f.next {
		return
	}
	if f.round(true); f.next > 0 {
		f.due.Set(2 * f.next)
	}
}

// round looks at all pairs, and sets when to look again. due: time has passed. mu is held.
func (f *Fabric) round(due bool) {
	now := time.Now()
	held := now.Sub(f.ticked) > 4*idleTick // this process itself was held up, or did not look
	f.next = 0
	for process, p := range f.pairs {
		if p == nil || !p.known() {
			continue
		}
		if f.wanted[process].Swap(false) {
			p.want(now)
		}
		if due && p.watched() {
			p.tick(now, held)
		}
		switch {
		case !p.watched():
		case p.busy():
			f.next = busyTick
		case f.next == 0:
			f.next = idleTick
		}
	}
	if due {
		f.ticked = now
	} else if f.next > 0 { // the time since the last tick still runs
		f.next = max(time.Millisecond, min(f.next, f.next-now.Sub(f.ticked)))
	}
}

func (f *Fabric) accept(n *Network) {
	ep := n.Endpoint
	for {
		conn, err := ep.Accept(f.ctx)
		switch {
		case errors.Is(err, net.ErrClosed), f.ctx.Err() != nil:
			return
		case err != nil:
			f.opt.Log.Warn("accept", "addr", ep.Addr(), "err", err)
			continue
		}
		f.done.Go(func() { f.welcome(n, conn) })
	}
}

// welcome greets who has dialed this process.
func (f *Fabric) welcome(n *Network, conn transport.Conn) {
	g := f.engine.Greet(conn, false)
	process, err := f.vouch(g, conn, n.Class)
	if err == nil {
		if err = f.visit(process); err != nil {
			conn.Close()
		}
	}
	if err == nil {
		defer f.leave(process)
		ctx, stop := context.WithTimeout(f.ctx, guestStays)
		defer stop()
		err = poll(ctx, g, conn)
	}
	if err != nil {
		f.refused(err)
		return
	}
	f.greeted(n, conn, g)
}

// greeted: a connection that another process has dialed is in use.
func (f *Fabric) greeted(n *Network, conn transport.Conn, g *engine.Greeter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pairs[g.Process()]
	if p == nil { // one that was started later, and has heard of this one first
		p = newPair(f, g.Process(), nil)
		f.pairs[g.Process()] = p
	}
	if !p.known() {
		p.guest = guest{n, conn.Peer()}
	}
	p.attached(p.find(n, conn.Peer()), g.Generation(), false)
}

// guestStays is how long a connection may take to its second greeting: it may have
// been made to see whether the path works.
const guestStays = 10 * time.Second

// poll waits until g is done.
func poll(ctx context.Context, g *engine.Greeter, conn transport.Conn) error {
	woken := make(chan struct{}, 1)
	for {
		if done, err := g.Poll(); done {
			return err
		}
		conn.Arm(func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		select {
		case <-woken:
		case <-ctx.Done():
			conn.Close()
			return fmt.Errorf("greeting of %s: %w", conn.Peer(), ctx.Err())
		}
	}
}

// fail says that a process cannot be reached. It is called with locks held, and telling may take a while.
func (f *Fabric) fail(process int, err error) {
	f.done.Go(func() { f.engine.Unreachable(process, err) })
}

var errNoNetwork = errors.New("no network in common")
