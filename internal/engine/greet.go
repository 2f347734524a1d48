package engine

import (
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// A Greeter exchanges greetings with the other process on a connection, and
// attaches the connection to that process's link.
//
// On a connection that was dialed, Probe first asks whether the other process is
// there: a greeting of generation 0, which is answered with the same. Take asks it
// to connect.
type Greeter struct {
	e        *Engine
	conn     transport.Conn
	dialed   bool
	expected int // process that the other must be; -1: any
	vouched  int // process that the other's certificate names; -1: it has none
	asked    uint32
	answered bool // the other is there, and has not been asked for more
	link     *link
	body     [wire.GreetingLen]byte
	err      error
}

// Anybody is whom Vouched takes for a connection without a certificate.
const Anybody = -1

// Greet begins to wait for a greeting on conn, which this process has dialed or
// accepted.
func (e *Engine) Greet(conn transport.Conn, dialed bool) *Greeter {
	return &Greeter{e: e, conn: conn, dialed: dialed, expected: Anybody, vouched: Anybody}
}

// Vouched says which process the other end of the connection has proved to be,
// and must say it is.
func (g *Greeter) Vouched(process int) { g.vouched = process }

// Expect says which process was dialed.
func (g *Greeter) Expect(process int) { g.expected = process }

// An ImpostorError: a process says that it is another.
type ImpostorError struct {
	Peer            transport.Addr
	Claimed, Proved int
}

func (e *ImpostorError) Error() string {
	return fmt.Sprintf("connection from %s says it is process %d but has the certificate of process %d: refused", e.Peer, e.Claimed, e.Proved)
}

// greeting is the first message to a process, or to Anybody, on a connection. Polling is held.
func (e *Engine) greeting(process int, generation uint32) transport.Message {
	header, body := make([]byte, wire.HeaderLen), make([]byte, wire.GreetingLen)
	(&wire.Header{Kind: wire.Hello}).Put(header)
	wire.Greeting{Version: wire.Version, Process: uint32(e.cfg.Process), Generation: generation, Epoch: e.whole.Load(), Left: e.leftBut(process)}.Put(body)
	return transport.Message{Header: header, Body: body}
}

// Probe asks on a dialed connection whether the process is there.
func (g *Greeter) Probe() error { return g.say(0) }

// Take asks it to connect, with a generation of [Engine.Dial].
func (g *Greeter) Take(generation uint32) error { return g.say(generation) }

func (g *Greeter) say(generation uint32) error {
	g.asked, g.answered = generation, false
	g.e.enter()
	m := g.e.greeting(g.expected, generation)
	g.e.leave()
	err := g.conn.Send(m)
	if err == nil {
		err = g.conn.Flush()
	}
	if err != nil {
		g.conn.Close()
		return fmt.Errorf("greet %s: %w", g.conn.Peer(), err)
	}
	return nil
}

// Poll looks for the greeting. When it is done the engine has the connection, or
// what was asked was whether the process is there, and it is. Or the error says
// why not; then the connection is closed.
func (g *Greeter) Poll() (done bool, err error) {
	g.e.enter()
	_, err = g.conn.Poll(g)
	g.e.shut()
	g.e.leave()
	switch {
	case g.link != nil:
		return true, nil
	case g.err != nil:
		err = g.err
	}
	if err != nil {
		g.conn.Close()
		return true, err
	}
	return g.answered, nil
}

// Process is whom the connection was attached for, after a Poll that was done.
func (g *Greeter) Process() int { return g.link.process }

// Generation is that of the connection, after a Poll that was done.
func (g *Greeter) Generation() uint32 { return g.asked }

// enter takes polling as soon as who has it has polled once more, though it would
// poll for as long as messages come.
func (e *Engine) enter() {
	e.guests.Add(1)
	e.polling.Lock()
	e.guests.Add(-1)
}

// Place implements transport.Receiver.
func (g *Greeter) Place(header []byte, n int) []byte {
	if g.link != nil {
		return g.link.Place(header, n)
	}
	var h wire.Header
	if err := h.Parse(header); err != nil {
		g.refuse(err)
	} else if h.Kind != wire.Hello || n != wire.GreetingLen {
		g.refuse(fmt.Errorf("%v of %d bytes comes before a greeting", h.Kind, n))
	}
	return g.body[:]
}

// Receive implements transport.Receiver.
func (g *Greeter) Receive(header, body []byte) (more bool) {
	if g.link != nil {
		return g.link.Receive(header, body)
	}
	return transport.Receive(g, header, body)
}

// Arrived implements transport.Receiver.
func (g *Greeter) Arrived(header, body []byte) {
	if g.link != nil {
		g.link.Arrived(header, body)
		return
	}
	if g.err != nil {
		return
	}
	hello, err := wire.ParseGreeting(body)
	if err == nil {
		err = g.check(hello)
	}
	if err != nil {
		g.refuse(err)
		return
	}
	switch {
	case g.dialed && hello.Generation != g.asked:
		g.refuse(fmt.Errorf("generation %d in answer to %d", hello.Generation, g.asked))
		return
	case hello.Generation == 0 && g.dialed:
		g.answered = true
		return
	case hello.Generation == 0:
		if err := errors.Join(g.conn.Send(g.e.greeting(int(hello.Process), 0)), g.conn.Flush()); err != nil {
			g.refuse(err)
		}
		return
	}
	if err := g.e.attach(int(hello.Process), g.conn, hello.Generation, g.dialed); err != nil {
		g.refuse(err)
		return
	}
	g.asked = hello.Generation
	g.link = g.e.link(int(hello.Process))
}

// check is what is wrong with who speaks.
func (g *Greeter) check(hello wire.Greeting) error {
	process := int(hello.Process)
	switch {
	case hello.Version != wire.Version:
		return fmt.Errorf("version %d of the format on the wire, this process has %d: start all processes from the same build", hello.Version, wire.Version)
	case process >= len(g.e.links) || process == g.e.cfg.Process:
		return fmt.Errorf("there is no process %d", process)
	case g.firm() && !g.e.sameRanks(hello):
		if hello.Epoch < g.e.leftBut(process) {
			g.e.link(process).lags()
		} else {
			g.e.misses()
		}
		return fmt.Errorf("process %d knows map %d, and let a rank go by map %d; this process knows map %d: one of the two has to learn of a newer map first", process, hello.Epoch, hello.Left, g.e.whole.Load())
	case g.vouched != Anybody && process != g.vouched:
		return &ImpostorError{Peer: g.conn.Peer(), Claimed: process, Proved: g.vouched}
	case g.expected != Anybody && process != g.expected:
		return fmt.Errorf("process %d answers where process %d was dialed", process, g.expected)
	}
	return nil
}

// firm: what is sent over the connection will be kept nowhere. Elsewhere what goes to a rank that has left is sent
// again, to where it is; and so it must be: of two ranks that leave at once each may have to come over a
// connection before the map of the other is told.
func (g *Greeter) firm() bool {
	return g.conn.Stable() && !g.e.cfg.Replay || !g.e.cfg.Keep
}

// sameRanks tells whether neither end thinks that a rank is here, or there, which has
// left: it must learn of that first, unless it is who takes the rank. Both ends find the
// same, or one would have a connection that the other has refused. Polling is held.
func (e *Engine) sameRanks(hello wire.Greeting) bool {
	return hello.Epoch >= e.leftBut(int(hello.Process)) && hello.Left <= e.whole.Load()
}

// leftBut is the newest map by which a rank has left this process for another than that;
// 0: none has. Polling is held.
func (e *Engine) leftBut(process int) (newest uint32) {
	for to, epoch := range e.left {
		if to != process {
			newest = max(newest, epoch)
		}
	}
	return newest
}

func (g *Greeter) refuse(err error) {
	if _, named := errors.AsType[*ImpostorError](err); !named {
		err = fmt.Errorf("connection from %s: %w", g.conn.Peer(), err)
	}
	if g.err == nil {
		g.err = err
	}
}

// Pulled implements transport.Receiver.
func (g *Greeter) Pulled(id uint64, err error) { g.link.Pulled(id, err) }
