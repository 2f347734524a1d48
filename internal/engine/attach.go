package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// How two processes connect. Whoever has a message for the other dials, sends a
// greeting with a generation that is newer than all it knows of, and waits for one
// in answer. The connection counts for the accepting end when it answers, for the
// dialing end when it has the answer. The same is done to leave a connection for
// one over another path: what was not acknowledged is sent again, and what has
// come is refused, so nothing is lost or doubled when the two ends change over at
// different moments.
//
// Both ends may dial at once, over one path or over two. Then each has a greeting
// under way, and the newer of them wins; of two of the same generation that of the
// process with the lower index. Each end can tell by itself: it answers a greeting
// that beats its own, and does not answer one that does not. So exactly one of the
// two is answered. See docs/decisions/0009-paths.md for why no other order of events
// leaves the ends with two connections.
//
// A connection that is stable keeps no log, so one that either end has used is
// never given up for another; nor is any where the job keeps no log. An end that
// has one neither dials nor answers.

// ErrFenced: the process was declared dead.
var ErrFenced = errors.New("it was fenced")

// Dial begins to connect to a process: the generation to greet it with. over is
// the generation of the connection that the new one is to replace, 0 for none.
// False if that is not the one there is, or it must not be replaced. EndDial ends it,
// or another Dial of that process.
func (e *Engine) Dial(process int, over uint32) (generation uint32, ok bool) {
	l := e.link(process)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fenced || l.conn != nil && (l.firmLocked() || l.generation != over) {
		return 0, false
	}
	l.tried = max(l.tried, l.generation) + 1
	if !l.dialing {
		l.dialing = true
		e.dials.Add(1)
	}
	return l.tried, true
}

// EndDial says that dialing with that generation has ended, whether or not it led
// to a connection. True if there is one.
func (e *Engine) EndDial(process int, generation uint32) bool {
	l := e.link(process)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tried == generation && l.dialing {
		l.dialing = false
		e.dials.Add(-1)
	}
	return l.conn != nil
}

// refusesLocked is why the link does not take a connection of that generation,
// which this process has dialed or not; nil if it does.
func (l *link) refusesLocked(generation uint32, dialed bool) error {
	switch {
	case l.e.closed.Load():
		return ErrClosed
	case l.fenced:
		return fmt.Errorf("process %d: %w", l.process, ErrFenced)
	case l.conn != nil && l.firmLocked():
		return fmt.Errorf("process %d is connected, and not to be moved", l.process)
	case generation <= l.generation:
		return fmt.Errorf("the connection to process %d is newer", l.process)
	case !dialed && l.dialing && (generation < l.tried || generation == l.tried && l.e.cfg.Process < l.process):
		return fmt.Errorf("process %d is being dialed", l.process)
	}
	return nil
}

// firmLocked: what is sent over the connection is kept nowhere, so it must not be
// given up.
func (l *link) firmLocked() bool { return l.stable && !l.replay || !l.keeps }

// attach gives a link its connection. The error says why it does not take it.
// Polling is held.
func (e *Engine) attach(process int, conn transport.Conn, generation uint32, dialed bool) error {
	l := e.link(process)
	b := l.placedIn()
	if b != nil {
		b.mu.Lock() // comes before the link's
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.refusesLocked(generation, dialed)
	if err == nil && !dialed {
		err = conn.Send(e.greeting(process, generation))
	}
	if err == nil {
		l.unplaceLocked()
	}
	if b != nil {
		b.mu.Unlock()
	}
	if err != nil {
		return err
	}
	if l.conn != nil {
		l.detach()
	}
	l.generation = generation
	l.conn, l.stable = conn, conn.Stable()
	l.puller, _ = conn.(transport.Puller)
	l.barred = false
	if lender, ok := conn.(transport.Lender); ok && lender.Lends() {
		l.lender = lender
	}
	l.eager = min(eagerSent, conn.MaxBody())
	switch {
	case l.puller != nil:
		l.eager = eagerPulled
	case l.replay:
		l.eager = min(l.eager, e.cfg.Recorded)
	}
	l.wanted, l.broken, l.bad = false, nil, nil
	for _, o := range l.parts {
		if !o.awaits {
			l.accept(o)
		}
	}
	if l.press {
		l.press = false
		l.tellPress()
	}
	for r := range e.leaving {
		l.askDepart(r)
	}
	if l.replay {
		l.tellStableAgain()
	}
	e.refreshActive(l)
	e.disarm()
	l.pump()
	select {
	case e.ready <- struct{}{}:
	default:
	}
	return nil
}

// detach drops the connection: what was under way is sent again over the next
// one, and what had begun to arrive is expected again. Polling and mu are held.
func (l *link) detach() {
	l.conn.Close()
	l.conn, l.puller, l.lender, l.stuck, l.broken, l.bad = nil, nil, nil, stuckNone, nil, nil
	l.pressed = false
	for _, o := range l.pulls {
		if o != nil {
			l.awaitOffer(o)
			l.e.pulling--
		}
	}
	for _, p := range l.pulling {
		l.awaitOffer(p.op)
	}
	l.pulls, l.freePulls, l.pulling, l.retracts = nil, nil, l.pulling[:0], nil
	l.ctl.clear()
	for _, x := range l.bulk {
		x.streaming = false
	}
	clear(l.bulk)
	l.bulk = l.bulk[:0]
	l.endRecords(func(*entry) bool { return true })
	var unsent entryQueue
	for x := l.queue.head; x != nil; {
		next := x.qnext
		switch {
		case x.gone, x.repeats:
			l.freeEntry(x)
		case !x.kept:
			unsent.push(x)
		}
		x = next
	}
	l.queue = entryQueue{}
	for _, b := range append(slices.Clone(*l.e.boxes.Load()), l.e.envoy) {
		b.streams.all(func(s *stream) {
			if l.e.peers[s.peer].link.Load() == l {
				for x := s.head; x != nil; x = x.snext {
					x.withdraw()
					x.queued = false
				}
				l.repeat(s, s.acked)
			}
		})
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

// awaitOffer has the receive o, whose body was being fetched, wait until it is
// offered again. If its sender has gone elsewhere meanwhile that may have been done.
// Polling and mu are held.
func (l *link) awaitOffer(o *op) {
	o.got, o.awaits = 0, true
	now := l.e.peers[o.status.Source].link.Load()
	if now == l {
		l.parts = append(l.parts, o)
		return
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	now.bring(o, wire.Envelope{}, true)
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
	again := !l.firmLocked() && l.bad == nil
	l.detach()
	l.why = err
	l.wanted = l.wanted || !again && l.e.cfg.Lost != nil // until it is declared failed
	if again && !l.wanted && !l.fenced {
		l.wanted = true
		l.e.cfg.Connect(l.process)
	}
	l.mu.Unlock()
	l.unplace()
	l.e.refreshActive(l)
	if !again {
		l.e.gaveUp(l.process, err)
	}
}

// unplace gives back what the message that had begun to arrive was placed in.
// Polling is held.
func (l *link) unplace() {
	if b := l.placedIn(); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	l.unplaceLocked()
}

// placedIn is the box for which a message has begun to arrive; nil if none has.
func (l *link) placedIn() *Box {
	if in := &l.lanes[0]; in.placed && in.stream != nil {
		return in.stream.box
	}
	return nil
}

// unplaceLocked is unplace where the box of that message is locked.
func (l *link) unplaceLocked() {
	in := &l.lanes[0]
	placed := in.placed
	in.placed, l.lanes[1].placed = false, false
	if !placed || in.stream == nil {
		return
	}
	b := in.stream.box
	if o := in.op; o != nil {
		if o.peer == AnySource { // it has matched that message, and a later one must not take its place
			o.peer, o.only = in.header.Source, in.header.Seq
		}
		if !b.endIfAbandonedLocked(o) && (!b.trouble.Load() || !b.endIfRefusedLocked(o)) {
			b.posted.list(o).insert(o)
		}
	}
	if in.arrival != nil {
		b.freeArrivalLocked(in.arrival)
	}
	in.op, in.arrival = nil, nil
}

// refreshActive has l among the links that are polled if it has a connection, and
// not if it has none. Polling is held.
func (e *Engine) refreshActive(l *link) {
	active := slices.DeleteFunc(slices.Clone(*e.active.Load()), func(o *link) bool { return o == l })
	if l.conn != nil {
		i, _ := slices.BinarySearchFunc(active, l.process, func(o *link, process int) int { return o.process - process })
		active = slices.Insert(active, i, l)
	}
	e.active.Store(&active)
	e.assisted.Store(slices.ContainsFunc(active, func(l *link) bool {
		_, ok := l.conn.(transport.Assisted)
		return ok
	}))
}
