package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/mem"
)

// A pairing is two processes that do nothing by themselves, and the connection between them.
type pairing struct {
	*testing.T
	network *mem.Network
	engines [2]*engine.Engine
	conn    *mem.Conn // the end of process 0
	wanted  bool      // one of them wants a connection
}

func newPairing(t *testing.T, cfg engine.Config) *pairing {
	p := &pairing{T: t, network: mem.NewNetwork(mem.Options{})}
	cfg.Processes, cfg.Stepped = [][]topology.Rank{{0}, {1}}, true
	cfg.Connect = func(int) { p.wanted = true }
	cfg.Fail = func(err error) { t.Errorf("an engine failed: %v", err) }
	for i := range p.engines {
		cfg.Process = i
		p.engines[i] = engine.New(cfg)
		t.Cleanup(p.engines[i].Close)
	}
	return p
}

// connect has process 0 dial the other.
func (p *pairing) connect() {
	p.Helper()
	p.wanted = false
	generation, ok := p.engines[0].Dial(1, 0)
	require.True(p, ok)
	there, here := p.network.Pipe("mem:0", "mem:1")
	p.conn = here
	dials, accepts := p.engines[0].Greet(here, true), p.engines[1].Greet(there, false)
	require.NoError(p, dials.Take(generation))
	for _, g := range []*engine.Greeter{accepts, dials} {
		done, err := g.Poll()
		require.NoError(p, err)
		require.True(p, done)
	}
	require.True(p, p.engines[0].EndDial(1, generation))
}

// until has both go on until it is so.
func (p *pairing) until(so func() bool) {
	p.Helper()
	for range 1000 {
		if so() {
			return
		}
		p.engines[0].Progress()
		p.engines[1].Progress()
	}
	p.Fatal("nothing has come of it in 1000 steps")
}

// What processes say to each other, of ranks that move among it, is lost with no connection.
func TestEnvoysOutliveTheirConnections(t *testing.T) {
	for _, level := range []struct {
		name   string
		replay bool
	}{{"moves", false}, {"crashes", true}} {
		for _, size := range []struct {
			name string
			n    int
		}{{"a short message", 100}, {"an offered one", 300_000}} {
			t.Run(level.name+", "+size.name, func(t *testing.T) {
				p := newPairing(t, engine.Config{Keep: true, Replay: level.replay})
				p.connect()
				from, to := p.engines[0].Envoy(0), p.engines[0].Envoy(1)
				body, into := pattern(size.n, 1), make([]byte, size.n)
				sent := p.engines[0].Box(from).Isend(engine.Match{Peer: to, Tag: 5}, body, engine.Standard)
				p.engines[0].Progress()
				p.conn.Cut() // what is under way never comes
				p.until(func() bool { return p.wanted })
				p.connect()
				received := p.engines[1].Box(to).Irecv(engine.Match{Peer: from, Tag: 5}, into)
				p.until(received.Finished)
				p.until(sent.Finished)
				_, err := received.Wait(t.Context(), recv)
				require.NoError(t, err)
				_, err = sent.Wait(t.Context(), send)
				require.NoError(t, err)
				require.Equal(t, body, into)
			})
		}
	}
}

// No snapshot covers what processes have said to each other, so it is kept no longer than
// until it is there: the state of a rank that has left is not the log's.
func TestEnvoysMessagesAreNotKept(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true, Replay: true})
	p.connect()
	from, to := p.engines[0].Envoy(0), p.engines[0].Envoy(1)
	for _, n := range []int{100, 60_000, 3 << 20} {
		for range 10 {
			sent := p.engines[0].Box(from).Isend(engine.Match{Peer: to, Tag: 5}, pattern(n, 1), engine.Standard)
			into := make([]byte, n)
			received := p.engines[1].Box(to).Irecv(engine.Match{Peer: from, Tag: 5}, into)
			p.until(received.Finished)
			p.until(sent.Finished)
			require.Equal(t, pattern(n, 1), into)
		}
	}
	p.until(func() bool { return p.engines[0].Held(1).Logged == 0 })
}
