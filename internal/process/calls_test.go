package process

import (
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A call that is lost, as while the job changes its head, is made again.
func TestACallThatWasLostIsMadeAgain(t *testing.T) {
	near, far := net.Pipe()
	ep, err := tcp.Listen(t.Context(), tcp.Options{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	p := &Process{agent: control.NewConn[control.Message](near), stopped: make(chan struct{}), calls: calls{to: make([]callee, 2), came: make(chan struct{}, 1)}}
	p.calls.to[1].apart.Store(true)
	p.fabric = fabric.New(2, fabric.Options{Networks: []fabric.Network{{Class: topology.LAN, Endpoint: ep}}, Log: slog.New(slog.DiscardHandler)})
	p.engine = engine.New(engine.Config{Keep: true, Processes: [][]topology.Rank{{0}, {1}}, Connect: p.connect, Fail: func(error) {}})
	p.fabric.Start(p.engine, [][]fabric.Addr{p.fabric.Addrs(), {{Class: topology.LAN, Addr: "tcp:127.0.0.1:1"}}})
	var all sync.WaitGroup
	all.Go(p.call)
	defer func() {
		close(p.stopped)
		near.Close()
		far.Close()
		p.engine.Close()
		p.fabric.Close()
		all.Wait()
	}()
	heard := make(chan int, 100)
	all.Go(func() {
		c := control.NewConn[control.Message](far)
		for {
			m, err := c.Receive()
			if err != nil {
				return
			}
			if m.Call != nil {
				heard <- m.Call.Process
			}
		}
	})
	p.engine.Box(0).Isend(engine.Match{Peer: 1, Tag: 1}, make([]byte, 8), engine.Standard)
	for i := range 3 {
		select {
		case to := <-heard:
			require.Equal(t, 1, to)
		case <-time.After(20 * time.Second):
			t.Fatalf("%d calls", i)
		}
	}
}
