package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

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
