package fabric_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

var (
	send = &engine.Call{Op: "Send"}
	recv = &engine.Call{Op: "Recv"}
)

// A world is processes of one rank each.
type world struct {
	t       testing.TB
	engines []*engine.Engine
	fabrics []*fabric.Fabric

	mu     sync.Mutex // guards failed
	failed []error
}

// A site is what a process of a world has.
type site struct {
	networks     []fabric.Network
	authenticate func(*x509.Certificate) (int, error)
	log          slog.Handler
	unmet        []int // processes of which it is not told where they are
	patience     time.Duration
}

func newWorld(t testing.TB, processes int, at func(process int) site) *world {
	w := &world{t: t}
	cfg := engine.Config{Keep: true}
	for i := range processes {
		cfg.Processes = append(cfg.Processes, []topology.Rank{topology.Rank(i)})
	}
	addrs, unmets := make([][]fabric.Addr, processes), make([][]int, processes)
	for i := range processes {
		s := at(i)
		unmets[i] = s.unmet
		if s.log == nil {
			s.log = slog.DiscardHandler
		}
		f := fabric.New(processes, fabric.Options{Process: i, Networks: s.networks, Authenticate: s.authenticate, Log: slog.New(s.log), Patience: s.patience})
		cfg.Process, cfg.Connect = i, f.Connect
		cfg.Fail = func(err error) {
			w.mu.Lock()
			w.failed = append(w.failed, err)
			w.mu.Unlock()
		}
		w.engines, w.fabrics = append(w.engines, engine.New(cfg)), append(w.fabrics, f)
		addrs[i] = f.Addrs()
	}
	for i, f := range w.fabrics {
		known := slices.Clone(addrs)
		for _, unmet := range unmets[i] {
			known[unmet] = nil
		}
		f.Start(w.engines[i], known)
	}
	t.Cleanup(func() {
		for i, e := range w.engines {
			e.Close()
			w.fabrics[i].Close()
		}
	})
	return w
}

func (w *world) box(rank int) *engine.Box { return w.engines[rank].Box(topology.Rank(rank)) }

// say sends a message from one rank to another, and receives it.
func (w *world) say(from, to int) {
	w.t.Helper()
	ctx, stop := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer stop()
	r := w.box(to).Irecv(engine.Match{Peer: topology.Rank(from), Tag: 1}, make([]byte, 8))
	require.NoError(w.t, w.box(from).Send(ctx, send, engine.Match{Peer: topology.Rank(to), Tag: 1}, make([]byte, 8), engine.Standard))
	_, err := r.Wait(ctx, recv)
	require.NoError(w.t, err)
}

// link is how a process talks to another.
func (w *world) link(from, to int) fabric.LinkStatus {
	for _, l := range w.fabrics[from].Links() {
		if l.Process == to {
			return l
		}
	}
	return fabric.LinkStatus{InUse: -1}
}

// class is that of the path in use; -1: there is none.
func (w *world) class(from, to int) int {
	if l := w.link(from, to); l.InUse >= 0 {
		return int(l.Candidates[l.InUse].Class)
	}
	return -1
}

// eventually waits until both ends of the pair use a path of the class: a path that was left
// again and again, as on a busy machine, is out for up to a minute.
func (w *world) eventually(a, b int, class topology.Class) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.class(a, b) == int(class) && w.class(b, a) == int(class) }, 90*time.Second, time.Millisecond,
		"processes %d and %d never met on the %v: %+v", a, b, class, w.link(a, b))
}

// mems is networks of package mem, one for each class.
type mems map[topology.Class]*mem.Network

func newMems(classes ...topology.Class) mems {
	m := make(mems)
	for _, c := range classes {
		m[c] = mem.NewNetwork(mem.Options{})
	}
	return m
}

// site is a process's endpoints on all of them, seen through wrap.
func (m mems) site(t testing.TB, process int, wrap func(transport.Endpoint) transport.Endpoint) (s site) {
	for class := topology.SameHost; class <= topology.WAN; class++ {
		n := m[class]
		if n == nil {
			continue
		}
		ep, err := n.Listen(fmt.Sprintf("%v%d", class, process))
		require.NoError(t, err)
		s.networks = append(s.networks, fabric.Network{Class: class, Endpoint: wrap(ep)})
	}
	return s
}

func plain(ep transport.Endpoint) transport.Endpoint { return ep }

// A wrapped endpoint changes what its connections can do.
type wrapped struct {
	transport.Endpoint
	wrap func(transport.Conn) transport.Conn
}

func (e *wrapped) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	c, err := e.Endpoint.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	return e.wrap(c), nil
}

func (e *wrapped) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := e.Endpoint.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return e.wrap(c), nil
}

// unmeasured hides what connections tell of their path.
func unmeasured(ep transport.Endpoint) transport.Endpoint {
	return &wrapped{ep, func(c transport.Conn) transport.Conn { return struct{ transport.Conn }{c} }}
}
