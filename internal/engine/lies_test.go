package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
	"github.com/mpiv/mpiv/wire"
)

// A liar is process 1 of three, which speaks the wire by hand. Process 0 is an
// engine with ranks 0 and 1, rank 2 is the liar's, rank 3 is of process 2.
type liar struct {
	t      *testing.T
	engine *engine.Engine
	conn   *mem.Conn
	failed chan error
	heard  []wire.Header
}

func newLiar(t *testing.T) *liar {
	l := &liar{t: t, failed: make(chan error, 1)}
	l.engine = engine.New(engine.Config{
		Process: 0, Processes: [][]topology.Rank{{0, 1}, {2}, {3}}, Keep: true,
		Fail: func(err error) { l.failed <- err },
	})
	t.Cleanup(l.engine.Close)
	there, here := mem.NewNetwork(mem.Options{}).Pipe("mem:liar", "mem:engine")
	l.conn = here
	g := l.engine.Greet(there, false)
	l.greet(1, 1)
	done, err := g.Poll()
	require.True(t, done)
	require.NoError(t, err)
	return l
}

func (l *liar) greet(process, generation uint32) {
	body := make([]byte, wire.GreetingLen)
	wire.Greeting{Version: wire.Version, Process: process, Generation: generation, Epoch: 1}.Put(body)
	l.say(wire.Header{Kind: wire.Hello}, body, false)
}

func (l *liar) say(h wire.Header, body []byte, bulk bool) {
	b := make([]byte, wire.HeaderLen)
	h.Put(b)
	require.NoError(l.t, l.conn.Send(transport.Message{Header: b, Body: body, Bulk: bulk}))
}

// insists sends until that is taken; false if the engine takes nothing for a while, or has had enough.
func (l *liar) insists(header, body []byte) bool {
	for end := time.Now().Add(time.Second); ; {
		err := l.conn.Send(transport.Message{Header: header, Body: body})
		l.engine.Progress()
		if err == nil || !errors.Is(err, transport.ErrFull) || time.Now().After(end) {
			return err == nil
		}
	}
}

// eager is a message that is right.
func eager(seq uint64) wire.Header {
	return wire.Header{Kind: wire.Eager, Source: 2, Dest: 0, Tag: 1, Epoch: 1, Seq: seq}
}

// hear takes what the engine has sent.
func (l *liar) hear() {
	l.engine.Progress()
	_, err := l.conn.Poll(l)
	require.NoError(l.t, err)
}

func (l *liar) Place(header []byte, n int) []byte { return make([]byte, n) }
func (l *liar) Pulled(uint64, error)              {}
func (l *liar) Receive(header, body []byte) bool  { return transport.Receive(l, header, body) }
func (l *liar) Arrived(header, body []byte) {
	var h wire.Header
	require.NoError(l.t, h.Parse(header))
	l.heard = append(l.heard, h)
}

func span(off, end uint64) []byte {
	b := make([]byte, wire.SpanLen)
	wire.Span{Offset: off, End: end}.Put(b)
	return b
}

func envelope(n uint64) []byte {
	b := make([]byte, wire.EnvelopeLen)
	(&wire.Envelope{Length: n}).Put(b)
	return b
}

func acks(a ...wire.StreamAck) []byte {
	b := make([]byte, len(a)*wire.StreamAckLen)
	for i := range a {
		a[i].Put(b[i*wire.StreamAckLen:])
	}
	return b
}

// TestLiesEndTheJobByName: what a process must not send is refused with an error
// that names it, and reaches no receive.
func TestLiesEndTheJobByName(t *testing.T) {
	tests := []struct {
		name string
		lie  func(l *liar)
		want string
	}{
		{"a rank of another process", func(l *liar) {
			h := eager(1)
			h.Source = 3
			l.say(h, []byte("lie"), false)
		}, "message of rank 3 to rank 0"},
		{"one of ours as its own", func(l *liar) {
			h := eager(1)
			h.Source = 1
			l.say(h, []byte("lie"), false)
		}, "message of rank 1 to rank 0"},
		{"a rank that does not exist", func(l *liar) {
			h := eager(1)
			h.Source = 1 << 30
			l.say(h, []byte("lie"), false)
		}, "message of rank 1073741824 to rank 0"},
		{"a message for another process", func(l *liar) {
			h := eager(1)
			h.Dest = 3
			l.say(h, []byte("lie"), false)
		}, "message of rank 2 to rank 3"},
		{"a number that is not due", func(l *liar) { l.say(eager(7), []byte("lie"), false) }, "eager 7 of rank 2 to rank 0 comes after 0"},
		{"no map", func(l *liar) {
			h := eager(1)
			h.Epoch = 0
			l.say(h, []byte("lie"), false)
		}, "eager of no map"},
		{"a second greeting", func(l *liar) { l.greet(1, 2) }, "hello of no map"},
		{"another's rank that is to leave", func(l *liar) {
			l.say(wire.Header{Kind: wire.Depart, Source: 3, Epoch: 1}, nil, false)
		}, "depart of rank 3, which is not there"},
		{"a snapshot, where there are none", func(l *liar) {
			l.say(wire.Header{Kind: wire.Stable, Epoch: 1}, acks(wire.StreamAck{Source: 0, Dest: 2, Seq: 1}), false)
		}, "a snapshot covers message 1 of rank 0 to rank 2, and nothing is kept"},
		{"an acknowledgement of what was not sent", func(l *liar) {
			h := eager(1)
			h.Ack = 5
			l.say(h, []byte("lie"), false)
		}, "acknowledged message 5 of rank 0 to rank 2, of 0 sent"},
		{"an acknowledgement for another process", func(l *liar) {
			l.say(wire.Header{Kind: wire.Ack, Epoch: 1}, acks(wire.StreamAck{Source: 0, Dest: 3, Seq: 1}), false)
		}, "message of rank 3 to rank 0"},
		{"half an acknowledgement", func(l *liar) { l.say(wire.Header{Kind: wire.Ack, Epoch: 1}, make([]byte, 3), false) }, "malformed body"},
		{"a control message that is too long", func(l *liar) { l.say(wire.Header{Kind: wire.Ack, Epoch: 1}, make([]byte, 60_000), false) }, "ack of 60000 bytes"},
		{"an offer without an envelope", func(l *liar) {
			h := eager(1)
			h.Kind = wire.Offer
			l.say(h, []byte("lie"), false)
		}, "offer of 3 bytes"},
		{"an offer of more than there is", func(l *liar) {
			h := eager(1)
			h.Kind = wire.Offer
			l.say(h, envelope(1<<63), false)
		}, "malformed body"},
		{"data that was not accepted", func(l *liar) {
			h := eager(1)
			h.Kind = wire.Data
			l.say(h, []byte("lie"), true)
		}, "data of message 1 of rank 2 to rank 0, which was not accepted"},
		{"done with a message for another process", func(l *liar) {
			l.say(wire.Header{Kind: wire.Done, Source: 0, Dest: 3, Seq: 1, Epoch: 1}, nil, false)
		}, "message of rank 3 to rank 0"},
		{"what nobody has asked for is given back", func(l *liar) {
			l.engine.Box(0).Isend(engine.Match{Peer: 2, Tag: 1}, []byte("x"), engine.Synchronous)
			l.engine.Progress()
			l.say(wire.Header{Kind: wire.Done, Flags: wire.Retracted, Source: 0, Dest: 2, Seq: 1, Epoch: 1}, nil, false)
		}, "gave back message 1 of rank 0, which nobody has asked for"},
		{"a negative tag", func(l *liar) {
			b := make([]byte, wire.HeaderLen)
			h := eager(1)
			h.Put(b)
			b[19] = 0x80
			require.NoError(l.t, l.conn.Send(transport.Message{Header: b, Body: []byte("lie")}))
		}, "malformed header"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLiar(t)
			into := []byte("untouched")
			r := l.engine.Box(0).Irecv(engine.Match{Peer: engine.AnySource, Tag: engine.AnyTag}, into)
			tt.lie(l)
			l.failsWith(tt.want)
			_, err := r.Wait(t.Context(), recv)
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, "untouched", string(into))
		})
	}
}

func (l *liar) failsWith(want string) {
	l.t.Helper()
	l.engine.Progress()
	select {
	case err := <-l.failed:
		require.ErrorContains(l.t, err, "connection to process 1: process 1 broke the protocol: ")
		require.ErrorContains(l.t, err, want)
	case <-time.After(20 * time.Second):
		l.t.Fatalf("the lie was believed, want %q", want)
	}
}

// A message that is repeated is not received twice.
func TestRepetitionIsDropped(t *testing.T) {
	l := newLiar(t)
	b := l.engine.Box(0)
	for _, seq := range []uint64{1, 1, 2, 1, 2} {
		l.say(eager(seq), fmt.Append(nil, seq), false)
	}
	l.engine.Progress()
	require.Len(t, b.Unreceived(), 2)
	select {
	case err := <-l.failed:
		t.Fatal(err)
	default:
	}
}

// What the liar says of a body that it takes must be in the order that bodies are
// taken in: a part of it may be on its way.
func TestLiesAboutBodies(t *testing.T) {
	tests := []struct {
		name string
		lie  func(l *liar, offer wire.Header)
		want string
	}{
		{"more than there is", func(l *liar, h wire.Header) { l.say(h, span(0, 9<<20), false) }, "accepted bytes 0 to 9437184 of a message of 8388608 bytes"},
		{"nothing", func(l *liar, h wire.Header) { l.say(h, span(5, 5), false) }, "accepted bytes 5 to 5"},
		{"half a span", func(l *liar, h wire.Header) { l.say(h, make([]byte, 5), false) }, "malformed body"},
		{"accepted twice", func(l *liar, h wire.Header) {
			l.say(h, span(0, 8<<20), false)
			l.say(h, span(1<<20, 2<<20), false)
		}, "accepted again before its body was sent"},
		{"done too early", func(l *liar, h wire.Header) {
			l.say(h, span(0, 8<<20), false)
			h.Kind = wire.Done
			l.say(h, nil, false)
		}, "is done before its body was sent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLiar(t)
			l.engine.Box(0).Isend(engine.Match{Peer: 2, Tag: 1}, make([]byte, 8<<20), engine.Standard)
			l.hear()
			require.Equal(t, wire.Offer, l.heard[len(l.heard)-1].Kind)
			tt.lie(l, wire.Header{Kind: wire.Accept, Source: 0, Dest: 2, Seq: 1, Epoch: 1})
			l.failsWith(tt.want)
		})
	}
}

// A message in each lane at once would have the second end the first's receive.
func TestTwoMessagesAtOnceAreRefused(t *testing.T) {
	l := newLiar(t)
	c := &twoAtOnce{Conn: l.conn}
	g := l.engine.Greet(c, false)
	c.generation = 2
	done, err := g.Poll()
	require.True(t, done)
	require.NoError(t, err)
	b := l.engine.Box(0)
	first := b.Irecv(engine.Match{Peer: engine.AnySource, Tag: 1}, make([]byte, 3))
	second := b.Irecv(engine.Match{Peer: engine.AnySource, Tag: 1}, make([]byte, 3))
	l.failsWith("a message begins before the one before it in its lane has ended")
	for _, r := range []engine.Request{first, second} {
		_, err := r.Wait(t.Context(), recv)
		require.ErrorContains(t, err, "process 1 broke the protocol")
	}
}

// twoAtOnce begins two messages, after its greeting, before it ends either.
type twoAtOnce struct {
	transport.Conn
	generation uint32
	greeted    bool
}

func (c *twoAtOnce) Send(transport.Message) error { return nil }
func (c *twoAtOnce) Flush() error                 { return nil }
func (c *twoAtOnce) Arm(wake func())              { wake() }
func (c *twoAtOnce) Close() error                 { return nil }

func (c *twoAtOnce) Poll(in transport.Receiver) (bool, error) {
	header, other := make([]byte, wire.HeaderLen), make([]byte, wire.HeaderLen)
	if !c.greeted {
		c.greeted = true
		(&wire.Header{Kind: wire.Hello}).Put(header)
		wire.Greeting{Version: wire.Version, Process: 1, Generation: c.generation}.Put(in.Place(header, wire.GreetingLen))
		body := make([]byte, wire.GreetingLen)
		wire.Greeting{Version: wire.Version, Process: 1, Generation: c.generation}.Put(body)
		in.Arrived(header, body)
		return true, nil
	}
	h := eager(1)
	h.Put(header)
	h.Put(other)
	a := in.Place(header, 3)
	b := in.Place(other, 3)
	in.Arrived(other, b)
	in.Arrived(header, a)
	return true, nil
}

// A greeting of another is refused, and what a process has proved to be counts.
func TestGreetingsAreChecked(t *testing.T) {
	tests := []struct {
		name     string
		greeting wire.Greeting
		vouched  int
		want     string
	}{
		{"another version", wire.Greeting{Version: wire.Version + 1, Process: 1, Generation: 1}, engine.Anybody, "start all processes from the same build"},
		{"no such process", wire.Greeting{Version: wire.Version, Process: 99, Generation: 1}, engine.Anybody, "there is no process 99"},
		{"this process", wire.Greeting{Version: wire.Version, Process: 0, Generation: 1}, engine.Anybody, "there is no process 0"},
		{"another than it proved to be", wire.Greeting{Version: wire.Version, Process: 1, Generation: 1}, 2,
			"connection from mem:x says it is process 1 but has the certificate of process 2: refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true}, 1, 1, 1)
			there, here := mem.NewNetwork(mem.Options{}).Pipe("mem:x", "mem:y")
			g := w.engines[0].Greet(there, false)
			g.Vouched(tt.vouched)
			header, body := make([]byte, wire.HeaderLen), make([]byte, wire.GreetingLen)
			(&wire.Header{Kind: wire.Hello}).Put(header)
			tt.greeting.Put(body)
			require.NoError(t, here.Send(transport.Message{Header: header, Body: body}))
			done, err := g.Poll()
			require.True(t, done)
			require.ErrorContains(t, err, tt.want)
			_, err = here.Poll(new(liar))
			require.True(t, errors.Is(err, transport.ErrBroken), "the connection is closed")
			require.Nil(t, w.engines[0].Link(1).Conn)
		})
	}
}

// A Ping is answered while the program computes, and tells a pace.
func TestPingIsAnsweredBesideAProgramThatComputes(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 1, 1)
	m := engine.Match{Peer: 1, Tag: 1}
	r := w.boxes[1].Irecv(engine.Match{Peer: 0, Tag: 1}, make([]byte, 8))
	require.NoError(t, w.boxes[0].Send(t.Context(), send, m, make([]byte, 8), engine.Standard))
	_, err := r.Wait(t.Context(), recv)
	require.NoError(t, err)
	require.NoError(t, w.engines[0].Drain(t.Context()))
	before := w.engines[0].Link(1).Heard
	w.engines[0].Ping(1, 12345)
	require.Eventually(t, func() bool { return w.engines[0].Link(1).Heard > before }, 20*time.Second, time.Millisecond)
	require.Equal(t, uint64(12345), w.engines[1].Link(0).PeerPace)
}

// TestWhoIsFarAheadWaits: of a process that speaks by a map to come only so much is
// taken.
func TestWhoIsFarAheadWaits(t *testing.T) {
	l := newLiar(t)
	h := eager(1)
	h.Source, h.Epoch = 3, 2
	b := make([]byte, wire.HeaderLen)
	h.Put(b)
	sent := 0
	for ; sent < 1000; sent++ {
		if l.conn.Send(transport.Message{Header: b, Body: make([]byte, 60_000)}) != nil {
			break
		}
		l.engine.Progress()
	}
	require.Greater(t, sent, 60)
	require.Less(t, sent, 200)
	l.engine.Place(2) // the map comes, and says nothing of rank 3
	l.failsWith("message of rank 3 to rank 0")
}

// Departures by a map to come count as other early messages do.
func TestWhoDepartsFarAheadWaits(t *testing.T) {
	l := newLiar(t)
	b := make([]byte, wire.HeaderLen)
	sent := 0
	for ; sent < 1<<20; sent++ {
		(&wire.Header{Kind: wire.Depart, Source: 3, Epoch: 2, Seq: uint64(sent + 1)}).Put(b)
		if !l.insists(b, nil) {
			break
		}
	}
	require.Greater(t, sent, 1000)
	require.Less(t, sent, 200_000, "so many are taken at most")
}

// Who asks for an answer again and again, and reads none, is refused.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	l := newLiar(t)
	l.say(eager(1), []byte("x"), false)
	l.engine.Progress()
	_, err := l.engine.Box(0).Recv(t.Context(), recv, engine.Match{Peer: 2, Tag: 1}, make([]byte, 1))
	require.NoError(t, err)
	h := eager(1)
	h.Kind = wire.Offer
	b, env := make([]byte, wire.HeaderLen), make([]byte, wire.EnvelopeLen)
	h.Put(b)
	(&wire.Envelope{Length: 1}).Put(env)
	for range 1 << 18 {
		if !l.insists(b, env) {
			break
		}
	}
	l.failsWith("it asks again and again for answers that it does not read")
}
