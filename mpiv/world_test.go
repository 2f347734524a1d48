package mpiv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/mem"
)

// runWorld runs f as every rank of a world of one process.
func runWorld(t testing.TB, size int, f func(ctx context.Context, c *Comm) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, Run(ctx, size, Options{}, f))
}

// runProcesses runs f as every rank of processes that are joined by a mem
// network and hold that many ranks each: as where they share cores, a host, or
// both, which collectives choose by.
func runProcesses(t testing.TB, ranks []int, f func(ctx context.Context, c *Comm) error) {
	t.Helper()
	runProcessesAs(t, engine.Config{Crowded: true}, ranks, f)
	runProcessesAs(t, engine.Config{Shared: true}, ranks, f)
	runProcessesAs(t, engine.Config{Crowded: true, Shared: true}, ranks, f)
}

func runProcessesAs(t testing.TB, cfg engine.Config, ranks []int, f func(ctx context.Context, c *Comm) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	network := mem.NewNetwork(mem.Options{})
	processes := make([][]topology.Rank, len(ranks))
	next := topology.Rank(0)
	for i, n := range ranks {
		for range n {
			processes[i] = append(processes[i], next)
			next++
		}
	}
	addrs := make([][]fabric.Addr, len(ranks))
	engines := make([]*engine.Engine, len(ranks))
	fabrics := make([]*fabric.Fabric, len(ranks))
	for i := range ranks {
		ep, err := network.Listen(fmt.Sprint(i))
		require.NoError(t, err)
		fabrics[i] = fabric.New(len(ranks), fabric.Options{Process: i, Networks: []fabric.Network{{Endpoint: ep}}, Log: slog.New(slog.DiscardHandler)})
		cfg.Process, cfg.Processes, cfg.Keep, cfg.Connect = i, processes, true, fabrics[i].Connect
		engines[i] = engine.New(cfg)
		addrs[i] = fabrics[i].Addrs()
	}
	for i, f := range fabrics {
		f.Start(engines[i], addrs)
	}
	defer func() {
		for i, e := range engines {
			e.Close()
			fabrics[i].Close()
		}
	}()
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, e := range engines {
		all.Go(func() {
			errs[i] = runRanks(ctx, livesOf(e), Options{}, f, func(topology.Rank, error, bool) {})
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}
