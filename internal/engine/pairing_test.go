package engine_test

import (
	"errors"
	"fmt"
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

// passed has both go on until a message has passed.
func (p *pairing) passed(sent, received engine.Request) {
	p.Helper()
	p.until(received.Finished)
	p.until(sent.Finished)
	_, err := received.Wait(p.Context(), recv)
	require.NoError(p, err)
	_, err = sent.Wait(p.Context(), send)
	require.NoError(p, err)
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
			p.passed(sent[i], received[i])
			require.Equal(t, pattern(n, i), into[i])
		}
		p.until(func() bool { return p.engines[0].Held(1).Logged == 0 })
	}
}

// barring is an end of memory that is shared, until it may not be read any more.
type barring struct {
	*mem.SharedConn
	barred *bool
	later  bool // that comes out when it is polled
	failed []uint64
}

func (c *barring) Pull(t transport.Ticket, into []byte, id uint64) error {
	err := fmt.Errorf("it is not yours: %w", transport.ErrBarred)
	switch {
	case *c.barred && c.later:
		clear(into) // a part has come
		c.failed = append(c.failed, id)
		return nil
	case *c.barred:
		return err
	}
	return c.SharedConn.Pull(t, into, id)
}

func (c *barring) Poll(in transport.Receiver) (moved bool, err error) {
	for _, id := range c.failed {
		in.Pulled(id, transport.ErrBarred)
	}
	moved, c.failed = len(c.failed) > 0, nil
	m, err := c.SharedConn.Poll(in)
	return moved || m, err
}

// A process gives up rights while messages are under way, so that its memory may not be read any more: their
// bodies are sent, at every level.
func TestBodiesAreSentWhereMemoryMayNotBeReadAnyMore(t *testing.T) {
	for _, cfg := range []engine.Config{{}, {Keep: true}, {Keep: true, Replay: true}} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprintf("keep %v, replay %v, later %v", cfg.Keep, cfg.Replay, later), func(t *testing.T) {
				p := newPairing(t, cfg)
				there, here := p.network.SharedPipe("mem:0", "mem:1")
				barred := false
				p.connectBy(&barring{SharedConn: there, barred: &barred, later: later}, here)
				from, to := p.engines[0].Box(0), p.engines[1].Box(1)
				const n, messages = 300_000, 5
				var sent, received [messages]engine.Request
				var into [messages][]byte
				for i := range messages {
					sent[i] = from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, i), engine.Standard)
					if i == 1 {
						p.until(func() bool { _, there := to.Iprobe(engine.Match{Peer: 0, Tag: 5}); return there })
					}
				}
				for i := range messages {
					barred = i > 0
					into[i] = make([]byte, n)
					received[i] = to.Irecv(engine.Match{Peer: 0, Tag: 5}, into[i])
					p.passed(sent[i], received[i])
					require.Equal(t, pattern(n, i), into[i])
				}
			})
		}
	}
}

// receives has to receive its next message, which is to be want.
func (p *pairing) receives(to *engine.Box, want []byte) {
	into := make([]byte, len(want))
	r := to.Irecv(engine.Match{Peer: 0, Tag: 5}, into)
	p.until(r.Finished)
	_, err := r.Wait(p.Context(), recv)
	require.NoError(p, err)
	require.Equal(p, want, into)
}

// What has left with its body over one connection is sent again over another that does not
// take as much at once, whether it has come meanwhile or not.
func TestMessagesUnderWayChangeOverToWhereTheyAreTooLong(t *testing.T) {
	for name, come := range map[string]bool{"it has come": true, "it has not come": false} {
		t.Run(name, func(t *testing.T) {
			p := newPairing(t, engine.Config{Keep: true})
			p.network = mem.NewNetwork(mem.Options{MaxBody: 32 << 10, Other: &mem.Options{MaxBody: 256 << 10}})
			p.connect()
			require.Equal(t, 256<<10, p.conn.MaxBody())
			from, to := p.engines[0].Box(0), p.engines[1].Box(1)
			const n = 200_000
			require.NoError(t, from.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 5}, pattern(n, 0), engine.Standard)) // copied to the log
			sent := from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, 1), engine.Standard)                               // lent to it
			p.engines[0].Progress()
			if come {
				p.until(func() bool { _, got, _ := to.Counts(); return len(got) == 1 && got[0].N == 2 })
			}
			p.connect()
			require.Equal(t, 32<<10, p.conn.MaxBody())
			for i := range 2 {
				p.receives(to, pattern(n, i))
			}
			p.until(sent.Finished)
			_, err := sent.Wait(t.Context(), send)
			require.NoError(t, err)
			p.until(func() bool { return p.engines[0].Held(1).Logged == 0 })
		})
	}
}

// So is what the log has as a record, as it has all at level crashes.
func TestARecordChangesOverToWhereItIsTooLong(t *testing.T) {
	for name, come := range map[string]bool{"it has come": true, "it has not come": false} {
		t.Run(name, func(t *testing.T) {
			p := newPairing(t, engine.Config{Keep: true, Replay: true})
			p.network = mem.NewNetwork(mem.Options{MaxBody: 32 << 10, Other: &mem.Options{MaxBody: 256 << 10}})
			p.connect()
			require.Equal(t, 256<<10, p.conn.MaxBody())
			from, to := p.engines[0].Box(0), p.engines[1].Box(1)
			const n = 50_000
			for i := range 2 {
				require.NoError(t, from.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 5}, pattern(n, i), engine.Standard))
			}
			if come {
				p.until(func() bool { _, got, _ := to.Counts(); return len(got) == 1 && got[0].N == 2 })
			}
			p.connect()
			require.Equal(t, 32<<10, p.conn.MaxBody())
			for i := range 2 {
				p.receives(to, pattern(n, i))
				p.connect()
				p.connect() // over what takes less, and while one is offered
			}
			_, covers, err := to.Capture()
			require.NoError(t, err)
			to.Covered(covers)
			p.until(func() bool { return p.engines[0].Held(1).Logged == 0 })
		})
	}
}

// A message that has come is sent again as an offer, and its sender wants it back: it is too late.
func TestAMessageThatHasComeIsTakenBack(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true})
	p.network = mem.NewNetwork(mem.Options{MaxBody: 32 << 10, Other: &mem.Options{MaxBody: 256 << 10}})
	p.connect()
	from, to := p.engines[0].Box(0), p.engines[1].Box(1)
	const n = 200_000
	sent := from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, 1), engine.Standard)
	p.until(func() bool { _, got, _ := to.Counts(); return len(got) == 1 && got[0].N == 1 })
	p.connect()
	sent.Cancel()
	p.until(sent.Finished)
	_, err := sent.Wait(t.Context(), send)
	require.NoError(t, err, "it was not taken back")
	into := make([]byte, n)
	r := to.Irecv(engine.Match{Peer: 0, Tag: 5}, into)
	p.until(r.Finished)
	_, err = r.Wait(t.Context(), recv)
	require.NoError(t, err)
	require.Equal(t, pattern(n, 1), into)
}

// A message was given back, and the answer was lost with the connection: its sender learns of
// it when it offers the message again.
func TestAMessageGivenBackIsOfferedAgain(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true})
	p.connect()
	from, to := p.engines[0].Box(0), p.engines[1].Box(1)
	const n = 300_000
	sent := from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, 1), engine.Standard)
	came := func() bool { _, ok := to.Iprobe(engine.Match{Peer: 0, Tag: 5}); return ok }
	p.until(came)
	sent.Cancel()
	p.engines[0].Progress() // asks for it
	p.engines[1].Progress() // gives it back
	require.False(t, came())
	require.False(t, sent.Finished(), "the answer is on its way")
	p.connect()
	p.until(sent.Finished)
	_, err := sent.Wait(t.Context(), send)
	require.ErrorIs(t, err, engine.ErrCancelled)

	into := make([]byte, n)
	r := to.Irecv(engine.Match{Peer: 0, Tag: 5}, into)
	p.passed(from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, 2), engine.Standard), r)
	require.Equal(t, pattern(n, 2), into)
}

// A message that the log has no room for, however empty it is, is not sent with its body.
func TestAMessageLongerThanTheLog(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true, LogBytes: 64 << 10})
	p.network = mem.NewNetwork(mem.Options{MaxBody: 256 << 10})
	p.connect()
	const n = 200_000
	sent := p.engines[0].Box(0).Isend(engine.Match{Peer: 1, Tag: 5}, pattern(n, 0), engine.Standard)
	into := make([]byte, n)
	r := p.engines[1].Box(1).Irecv(engine.Match{Peer: 0, Tag: 5}, into)
	p.until(r.Finished)
	p.until(sent.Finished)
	for _, r := range []engine.Request{sent, r} {
		_, err := r.Wait(t.Context(), recv)
		require.NoError(t, err)
	}
	require.Equal(t, pattern(n, 0), into)
}

// A log that is full is sent again all the same.
func TestAFullLogIsSentAgain(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true, LogBytes: 8 << 10})
	p.network = mem.NewNetwork(mem.Options{Depth: 1000})
	p.connect()
	from, to := p.engines[0].Box(0), p.engines[1].Box(1)
	var sent []engine.Request
	begun := func() int { return int(p.engines[0].Held(1).Logged) }
	for before := -1; begun() > before; { // until there is no room for one more
		before = begun()
		sent = append(sent, from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(100, len(sent)), engine.Standard))
		p.engines[0].Progress()
	}
	p.connect()
	for i := range sent {
		into := make([]byte, 100)
		r := to.Irecv(engine.Match{Peer: 0, Tag: 5}, into)
		p.until(r.Finished)
		p.until(sent[i].Finished)
		_, err := r.Wait(t.Context(), recv)
		require.NoError(t, err)
		_, err = sent[i].Wait(t.Context(), send)
		require.NoError(t, err)
		require.Equal(t, pattern(100, i), into)
	}
}

// That a snapshot covers what a sender keeps is said again over the next connection: a sender whose log is
// full waits for it, and its receiver may come to no safe point before the message that waits with it.
func TestWhatIsCoveredIsSaidAgain(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true, Replay: true, LogBytes: 4 << 10, Spill: &scraps{full: true}})
	p.network = mem.NewNetwork(mem.Options{Depth: 1000})
	p.connect()
	from, to := p.engines[0].Box(0), p.engines[1].Box(1)
	take := func() {
		into := make([]byte, 100)
		r := to.Irecv(engine.Match{Peer: 0, Tag: 5}, into)
		p.until(r.Finished)
		_, err := r.Wait(t.Context(), recv)
		require.NoError(t, err)
		require.Equal(t, pattern(100, 1), into)
	}
	var waits engine.Request
	for { // until there is no room for one more
		waits = from.Isend(engine.Match{Peer: 1, Tag: 5}, pattern(100, 1), engine.Standard)
		if p.engines[0].Progress(); !waits.Finished() {
			break
		}
		take()
	}
	_, covers, err := to.Capture()
	require.NoError(t, err)
	to.Covered(covers)
	p.connect() // over another path, before it has come
	take()
	p.until(waits.Finished)
	_, err = waits.Wait(t.Context(), send)
	require.NoError(t, err)
}

// A rank that was about to leave, and stays, has sent what its log has and has offered, since the two processes share
// memory now: it can still be received.
func TestWhatWasOfferedByARankThatStays(t *testing.T) {
	p := newPairing(t, engine.Config{Keep: true})
	p.network = mem.NewNetwork(mem.Options{MaxBody: 32 << 10, Other: &mem.Options{MaxBody: 256 << 10}})
	p.connect()
	from, to := p.engines[0].Box(0), p.engines[1].Box(1)
	const n = 200_000
	require.NoError(t, from.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 5}, pattern(n, 0), engine.Standard))
	p.connectShared()
	p.until(func() bool { _, ok := to.Iprobe(engine.Match{Peer: 0, Tag: 5}); return ok })
	d, err := from.BeginDepart()
	require.NoError(t, err)
	p.until(d.Ready)
	require.Error(t, d.Undo(errors.New("another peer is silent")))
	into := make([]byte, n)
	r := to.Irecv(engine.Match{Peer: 0, Tag: 5}, into)
	p.until(r.Finished)
	_, err = r.Wait(t.Context(), recv)
	require.NoError(t, err)
	require.Equal(t, pattern(n, 0), into)
}
