package engine

import (
	"fmt"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// How two processes connect. Whoever has a message for the other dials, sends a
// greeting, and waits for one in answer. Both may dial at the same time: then
// the process with the lower index does not answer the other's greeting, and the
// other answers its. So a connection that either end has used is never given up
// for another, but for one of a later generation, which its peer dials after it
// saw this one break.

// Dial begins to dial a process: the generation to greet it with. False if
// there is a connection.
func (e *Engine) Dial(process int) (generation uint32, ok bool) {
	l := e.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialing = l.conn == nil
	return l.generation + 1, l.dialing
}

// EndDial says that dialing has ended, whether or not it led to a connection.
// True if there is one.
func (e *Engine) EndDial(process int) bool {
	l := e.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialing = false
	return l.conn != nil
}

// attachLocked gives a link its connection. The error says why it needs none.
func (e *Engine) attachLocked(process int, conn transport.Conn, generation uint32, dialed bool) error {
	l := e.links[process]
	l.unplace()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.closed.Load():
		return ErrClosed
	case generation <= l.generation:
		return fmt.Errorf("the connection to process %d is newer", process)
	case !dialed && l.dialing && e.cfg.Process < process:
		return fmt.Errorf("process %d is being dialed", process)
	}
	if !dialed {
		if err := conn.Send(e.Greeting(generation)); err != nil {
			return err
		}
	}
	if l.conn != nil {
		l.detach()
	}
	l.generation = generation
	l.conn, l.stable = conn, conn.Stable()
	l.puller, _ = conn.(transport.Puller)
	l.eager = min(eagerSent, conn.MaxBody())
	if l.puller != nil {
		l.eager = eagerPulled
	}
	l.wanted, l.broken, l.bad = false, nil, nil
	for _, o := range l.parts {
		l.accept(o)
	}
	if l.press {
		l.press = false
		l.tellPress()
	}
	e.refreshActive()
	e.armed.Store(false)
	l.pump()
	select {
	case e.ready <- struct{}{}:
	default:
	}
	return nil
}

// Greeting is the first message of either process on a connection.
func (e *Engine) Greeting(generation uint32) transport.Message {
	header, body := make([]byte, wire.HeaderLen), make([]byte, wire.GreetingLen)
	(&wire.Header{Kind: wire.Hello}).Put(header)
	wire.Greeting{Version: wire.Version, Process: uint32(e.cfg.Process), Generation: generation}.Put(body)
	return transport.Message{Header: header, Body: body}
}

// A Greeter waits for the greeting of the other process on a connection, and
// attaches the connection to that process's link.
type Greeter struct {
	e      *Engine
	conn   transport.Conn
	dialed bool
	link   *link
	body   [wire.GreetingLen]byte
	err    error
}

// Greet begins to wait on conn, which this process has dialed or accepted.
func (e *Engine) Greet(conn transport.Conn, dialed bool) *Greeter {
	return &Greeter{e: e, conn: conn, dialed: dialed}
}

// Poll looks for the greeting. When it is done the engine has the connection,
// or the error says why not; then it is closed.
func (g *Greeter) Poll() (done bool, err error) {
	g.e.polling.Lock()
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
	return false, nil
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
	switch {
	case err != nil:
		g.refuse(err)
	case hello.Version != wire.Version:
		g.refuse(fmt.Errorf("version %d of the format on the wire, this process has %d: start all processes from the same build", hello.Version, wire.Version))
	case int(hello.Process) >= len(g.e.links) || g.e.links[hello.Process] == nil:
		g.refuse(fmt.Errorf("there is no process %d", hello.Process))
	default:
		if err := g.e.attachLocked(int(hello.Process), g.conn, hello.Generation, g.dialed); err != nil {
			g.refuse(err)
			return
		}
		g.link = g.e.links[hello.Process]
	}
}

func (g *Greeter) refuse(err error) {
	if g.err == nil {
		g.err = fmt.Errorf("connection from %s: %w", g.conn.Peer(), err)
	}
}

// Pulled implements transport.Receiver.
func (g *Greeter) Pulled(id uint64, err error) { g.link.Pulled(id, err) }

// detach drops the connection: what was under way is sent again over the next
// one, and what had begun to arrive is expected again. Polling and mu are held.
func (l *link) detach() {
	l.conn.Close()
	l.conn, l.puller, l.stuck, l.broken, l.bad = nil, nil, stuckNone, nil, nil
	l.pressed = false
	l.e.pulling -= len(l.pulls) - len(l.freePulls)
	l.pulls, l.freePulls = nil, nil
	l.ctl.clear()
	for _, x := range l.bulk {
		x.streaming = false
	}
	clear(l.bulk)
	l.bulk = l.bulk[:0]
	var unsent entryQueue
	for x := l.queue.head; x != nil; {
		next := x.qnext
		switch {
		case x.gone:
			l.freeEntry(x)
		case !x.kept:
			unsent.push(x)
		}
		x = next
	}
	l.queue = entryQueue{}
	for x := l.kept.head; x != nil; x = x.lnext {
		x.queued = true
		l.queue.push(x)
	}
	for x := unsent.head; x != nil; {
		next := x.qnext
		l.queue.push(x)
		x = next
	}
	for _, s := range l.dirty {
		s.dirty = false
	}
	l.dirty, l.owedBytes, l.ackSoon = l.dirty[:0], 0, false
	l.attention.Set(false)
}

// lost takes the link down after a poll error. Polling is held.
func (l *link) lost(err error) {
	if l.bad != nil {
		err = fmt.Errorf("process %d broke the protocol: %w", l.process, l.bad)
	}
	l.mu.Lock()
	if l.broken != nil && err == nil {
		err = l.broken
	}
	again := l.keeps && !l.stable && l.bad == nil
	l.detach()
	if again {
		l.wanted = true
		l.e.cfg.Connect(l.process)
	}
	l.mu.Unlock()
	l.unplace()
	l.e.refreshActive()
	if !again {
		l.e.fail(fmt.Errorf("connection to process %d: %w", l.process, err), false)
	}
}

// unplace gives back what the message that had begun to arrive was placed in.
func (l *link) unplace() {
	in := &l.lanes[0]
	if !in.placed {
		return
	}
	in.placed = false
	if in.stream == nil {
		return
	}
	b := in.stream.box
	b.mu.Lock()
	if in.op != nil {
		b.posted.list(in.op).insert(in.op)
	}
	if in.arrival != nil {
		b.freeArrivalLocked(in.arrival)
	}
	b.mu.Unlock()
	in.op, in.arrival = nil, nil
}

func (l *link) closeLocked() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
	l.e.refreshActive()
}

// refreshActive rebuilds the list of links that are polled. Polling is held.
func (e *Engine) refreshActive() {
	active := make([]*link, 0, len(e.links))
	for _, l := range e.links {
		if l != nil && l.conn != nil {
			active = append(active, l)
		}
	}
	e.active.Store(&active)
}
