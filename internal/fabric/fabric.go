// Package fabric connects the processes of a job: it dials and accepts on every
// network that this process has, and hands the connections to its engine.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// Options of a Fabric. Networks and Log must be set.
type Options struct {
	Process  int
	Networks []Network     // best first; Close closes their endpoints
	Patience time.Duration // how long to try to reach a process. Zero means 30 s.
	Log      *slog.Logger
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
// accept on them.
type Fabric struct {
	opt   Options
	wants chan int // processes to connect to; one slot for each
	ctx   context.Context
	stop  context.CancelFunc
	done  sync.WaitGroup

	engine *engine.Engine // set by Start
	addrs  [][]Addr       // of each process; set by Start
}

// New makes a Fabric for a job of that many processes. It does nothing until
// Start.
func New(processes int, opt Options) *Fabric {
	if opt.Patience == 0 {
		opt.Patience = 30 * time.Second
	}
	f := &Fabric{opt: opt, wants: make(chan int, processes)}
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

// Connect asks for a connection to a process; it is engine.Config.Connect. A
// process has one such wish at a time, so there is room for it.
func (f *Fabric) Connect(process int) {
	select {
	case f.wants <- process:
	default:
		panic("fabric: the same process was asked for twice")
	}
}

// Start begins to accept and dial for e. addrs says where each process is.
func (f *Fabric) Start(e *engine.Engine, addrs [][]Addr) {
	f.engine, f.addrs = e, addrs
	for _, n := range f.opt.Networks {
		f.done.Go(func() { f.accept(n.Endpoint) })
	}
	f.done.Go(f.dialAll)
}

// Close stops dialing and accepting, closes the endpoints and waits. The engine
// must be closed before.
func (f *Fabric) Close() {
	f.stop()
	for _, n := range f.opt.Networks {
		if err := n.Endpoint.Close(); err != nil {
			f.opt.Log.Warn("endpoint closed badly", "addr", n.Endpoint.Addr(), "err", err)
		}
	}
	f.done.Wait()
}

func (f *Fabric) accept(ep transport.Endpoint) {
	for {
		conn, err := ep.Accept(f.ctx)
		switch {
		case errors.Is(err, net.ErrClosed), f.ctx.Err() != nil:
			return
		case err != nil:
			f.opt.Log.Warn("accept", "addr", ep.Addr(), "err", err)
			continue
		}
		f.done.Go(func() {
			if err := f.greet(f.ctx, conn, false, 0); err != nil {
				f.opt.Log.Debug("connection refused", "peer", conn.Peer(), "err", err)
			}
		})
	}
}

// greet exchanges greetings on a connection; then it is the engine's. Otherwise
// it is closed.
func (f *Fabric) greet(ctx context.Context, conn transport.Conn, dialed bool, generation uint32) error {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	g := f.engine.Greet(conn, dialed)
	if dialed {
		g.Take(generation)
	}
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
			return ctx.Err()
		}
	}
}

func (f *Fabric) dialAll() {
	for {
		select {
		case p := <-f.wants:
			f.done.Go(func() { f.dial(p) })
		case <-f.ctx.Done():
			return
		}
	}
}

// dial connects to a process, on the best network that it has too. If the other
// process is faster, that is as good.
func (f *Fabric) dial(process int) {
	ctx, stop := context.WithTimeout(f.ctx, f.opt.Patience)
	defer stop()
	ep, addr := f.choose(process)
	if ep == nil {
		f.engine.Fail(fmt.Errorf("no network in common with process %d: it has %v, this process %v", process, f.addrs[process], f.Addrs()))
		return
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		generation, ok := f.engine.Dial(process, 0)
		if !ok {
			return
		}
		err := f.try(ctx, ep, addr, generation)
		if f.engine.EndDial(process) {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if f.ctx.Err() == nil {
				f.engine.Fail(fmt.Errorf("process %d cannot be reached at %s: %w", process, addr, errors.Join(err, ctx.Err())))
			}
			return
		}
	}
}

// try dials once.
func (f *Fabric) try(ctx context.Context, ep transport.Endpoint, addr transport.Addr, generation uint32) error {
	conn, err := ep.Dial(ctx, addr)
	if err != nil {
		return err
	}
	return f.greet(ctx, conn, true, generation)
}

func (f *Fabric) choose(process int) (transport.Endpoint, transport.Addr) {
	for _, n := range f.opt.Networks {
		for _, a := range f.addrs[process] {
			if a.Class == n.Class && a.Addr.Network() == n.Endpoint.Addr().Network() {
				return n.Endpoint, a.Addr
			}
		}
	}
	return nil, ""
}
