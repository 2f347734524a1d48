package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

// A pairing is two processes that do nothing by themselves, and the connection between them.
type pairing struct {
	*testing.T
	network    *mem.Network
	engines    [2]*engine.Engine
	conn       *mem.Conn // the end of process 0, unless it is shared
	wanted     bool      // one of them wants a connection
	generation uint32    // of the connection, or the last
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
	there, here := p.network.Pipe("mem:0", "mem:1")
	p.conn = here
	p.connectBy(there, here)
}

// connectShared has the two go over to memory that they share.
func (p *pairing) connectShared() {
	p.Helper()
	there, here := p.network.SharedPipe("mem:0", "mem:1")
	p.connectBy(there, here)
}

func (p *pairing) connectBy(there, here transport.Conn) {
	p.Helper()
	p.wanted = false
	generation, ok := p.engines[0].Dial(1, p.generation)
	require.True(p, ok)
	dials, accepts := p.engines[0].Greet(here, true), p.engines[1].Greet(there, false)
	require.NoError(p, dials.Take(generation))
	for _, g := range []*engine.Greeter{accepts, dials} {
		done, err := g.Poll()
		require.NoError(p, err)
		require.True(p, done)
	}
	require.True(p, p.engines[0].EndDial(1, generation))
	p.generation = generation
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

// What was sent and not acknowledged when two processes go over to memory that they share,
// where nothing is acknowledged, is sent again, and its buffer is the program's when it is there.
func TestMessagesUnderWayChangeOverToSharedMemory(t *testing.T) {
	for _, n := range []int{100, 60_000, 300_000} { // copied to the log; lent to it; offered
		p := newPairing(t, engine.Config{Keep: true})
		p.connect()
		from, to := p.engines[0].Box(0), p.engines[1].Box(1)
		const messages = 3
		var sent, received [messages]engine.Request
		var into [messages][]byte
		for i := range messages {
			sent[i] = from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, i), engine.Standard)
		}
		p.engines[0].Progress() // it is on its way, and never comes
		p.connectShared()
		for i := range messages {
			into[i] = make([]byte, n)
			received[i] = to.Irecv(engine.Match{Peer: 0, Tag: 5}, into[i])
		}
		for i := range messages {
			p.until(received[i].Finished)
			p.until(sent[i].Finished)
			_, err := received[i].Wait(t.Context(), recv)
			require.NoError(t, err)
			_, err = sent[i].Wait(t.Context(), send)
			require.NoError(t, err)
			require.Equal(t, pattern(n, i), into[i])
		}
		p.until(func() bool { return p.engines[0].Held(1).Logged == 0 })
	}
}
