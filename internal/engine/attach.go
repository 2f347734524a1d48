package engine

import (
	"fmt"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// Attach gives the link to a process its connection, of the given generation:
// one more than that of the last. False, and conn is closed, if the link has
// one that is as good.
//
// Two processes may dial each other at the same time. Of two connections the
// one of the higher generation is kept; of equals the one that the process with
// the lower index dialed.
func (e *Engine) Attach(process int, conn transport.Conn, generation uint32, dialed bool) bool {
	e.polling.Lock()
	ok := e.attachLocked(process, conn, generation, dialed)
	e.leave()
	if !ok {
		conn.Close()
	}
	return ok
}

// Generation is that of the connection to a process, or of the last it had.
func (e *Engine) Generation(process int) uint32 {
	l := e.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.generation
}

// Connected tells whether there is a connection to a process now.
func (e *Engine) Connected(process int) bool {
	l := e.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

func (e *Engine) attachLocked(process int, conn transport.Conn, generation uint32, dialed bool) bool {
	l := e.links[process]
	l.mu.Lock()
	defer l.mu.Unlock()
	lower := dialed == (e.cfg.Process < process) // the process with the lower index dialed it
	if e.closed.Load() || generation < l.generation || generation == l.generation && !(lower && !l.byLower) {
		return false
	}
	if l.conn != nil {
		l.detach()
	}
	l.generation, l.byLower = generation, lower
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
	return true
}

// Greeting is the first message on a connection that this process dialed.
func (e *Engine) Greeting(generation uint32) transport.Message {
	header, body := make([]byte, wire.HeaderLen), make([]byte, wire.GreetingLen)
	(&wire.Header{Kind: wire.Hello}).Put(header)
	wire.Greeting{Version: wire.Version, Process: uint32(e.cfg.Process), Generation: generation}.Put(body)
	return transport.Message{Header: header, Body: body}
}

// A Greeter waits for the first message on a connection that another process
// dialed, and attaches the connection to that process's link.
type Greeter struct {
	e    *Engine
	conn transport.Conn
	link *link
	body [wire.GreetingLen]byte
	err  error
}

// Greet begins to wait on conn.
func (e *Engine) Greet(conn transport.Conn) *Greeter { return &Greeter{e: e, conn: conn} }

// Poll looks for the greeting. When it is done the engine has the connection,
// or the error says why not; then it is closed.
func (g *Greeter) Poll() (done bool, err error) {
	g.e.polling.Lock()
	_, err = g.conn.Poll(g)
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
	case !g.e.attachLocked(int(hello.Process), g.conn, hello.Generation, false):
		g.refuse(fmt.Errorf("the connection to process %d is newer", hello.Process))
	default:
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
	l.ctl.dropRepeatable()
	for x := l.bulk.head; x != nil; x = l.bulk.head {
		l.bulk.popBulk()
		x.streaming = false
	}
	queued := l.queue
	l.queue = entryQueue{}
	for x := l.kept.head; x != nil; x = x.lnext {
		x.queued = true
		l.queue.push(x)
	}
	for x := queued.head; x != nil; {
		next := x.qnext
		switch {
		case x.gone:
			l.freeEntry(x)
		case !x.kept:
			l.queue.push(x)
		}
		x = next
	}
	for _, s := range l.dirty {
		s.dirty = false
	}
	l.dirty, l.owedBytes = l.dirty[:0], 0
	l.attention.Store(false)
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
