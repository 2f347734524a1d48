package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

// A world is several processes in one, joined by a mem network.
type world struct {
	engines []*engine.Engine
	fabrics []*fabric.Fabric
	boxes   []*engine.Box // by rank
	network *mem.Network
}

// newWorld starts processes with that many ranks each.
func newWorld(t testing.TB, cfg engine.Config, ranks ...int) *world {
	return newWorldOn(t, cfg, func(process int) transport.Endpoint { return nil }, ranks...)
}

func newWorldOn(t testing.TB, cfg engine.Config, listen func(process int) transport.Endpoint, ranks ...int) *world {
	network := mem.NewNetwork(mem.Options{})
	w := newWorldAt(t, cfg, func(process int) []fabric.Network {
		ep := listen(process)
		if ep == nil {
			mine, err := network.Listen(fmt.Sprint(process))
			require.NoError(t, err)
			ep = mine
		}
		return []fabric.Network{{Endpoint: ep}}
	}, ranks...)
	w.network = network
	return w
}

// newWorldAt is newWorld on the networks that listen makes.
func newWorldAt(t testing.TB, cfg engine.Config, listen func(process int) []fabric.Network, ranks ...int) *world {
	w := new(world)
	next := topology.Rank(0)
	for _, n := range ranks {
		var of []topology.Rank
		for range n {
			of = append(of, next)
			next++
		}
		cfg.Processes = append(cfg.Processes, of)
	}
	addrs := make([][]fabric.Addr, len(ranks))
	for i := range ranks {
		f := fabric.New(len(ranks), fabric.Options{Process: i, Networks: listen(i), Log: slog.New(slog.DiscardHandler)})
		c := cfg
		c.Process = i
		c.Connect = f.Connect
		c.Fail = func(err error) { t.Logf("process %d failed: %v", i, err) }
		e := engine.New(c)
		w.engines = append(w.engines, e)
		w.fabrics = append(w.fabrics, f)
		addrs[i] = f.Addrs()
		for _, r := range cfg.Processes[i] {
			w.boxes = append(w.boxes, e.Box(r))
		}
	}
	for i, f := range w.fabrics {
		f.Start(w.engines[i], addrs)
	}
	t.Cleanup(func() {
		for i, e := range w.engines {
			e.Close()
			w.fabrics[i].Close()
		}
	})
	return w
}

// A wrapped endpoint makes connections that do something else than those of its network.
type wrapped struct {
	transport.Endpoint
	wrap func(transport.Conn) transport.Conn
}

func (w wrapped) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	return w.wrapped(w.Endpoint.Dial(ctx, a))
}

func (w wrapped) Accept(ctx context.Context) (transport.Conn, error) {
	return w.wrapped(w.Endpoint.Accept(ctx))
}

func (w wrapped) wrapped(c transport.Conn, err error) (transport.Conn, error) {
	if err != nil {
		return nil, err
	}
	return w.wrap(c), nil
}

// run runs f as every rank and waits for all.
func (w *world) run(t testing.TB, f func(b *engine.Box) error) {
	t.Helper()
	errs := make(chan error, len(w.boxes))
	for _, b := range w.boxes {
		go func() {
			err := f(b)
			if err != nil {
				err = fmt.Errorf("rank %d: %w", b.Rank(), err)
			}
			errs <- err
		}()
	}
	for range w.boxes {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// anew is rank 1 in process 2, where it begins anew: its process 1 is lost.
func (w *world) anew(t testing.TB) *engine.Box {
	t.Helper()
	lost := engine.Placement{Rank: 1, Process: 2, Lost: true}
	w.fabrics[0].Fence(1)
	w.fabrics[2].Fence(1)
	b, err := w.engines[2].Adopt(&engine.Capsule{Rank: 1}, topology.Epoch(2), nil, lost)
	require.NoError(t, err)
	w.engines[0].Place(2, lost)
	return b
}
