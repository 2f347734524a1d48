package engine

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// A live move. What was sent to the rank over a connection that keeps a log is sent
// again to where the rank is now. What was sent over a stable one is kept nowhere:
// so the process asks everybody whom it shares memory with to hold what is for the
// rank, and goes on when all have said that they do, behind the last that they sent.

// A parting is of a rank that is about to leave.
type parting struct {
	number  uint64  // unlike that of any other parting of this process: an answer to another is none
	waiting []*link // who has not answered yet
}

// A Departure is a rank that is about to leave this process.
type Departure struct{ box *Box }

// BeginDepart asks the peers to hold what is for b's rank, which must be at a safe
// point: ErrPending.
func (b *Box) BeginDepart() (Departure, error) { return Departure{b}, b.askPeers() }

// Ready tells whether all peers have answered.
func (d Departure) Ready() bool { return d.box.e.awaited(d.box.rank) == 0 }

// End ends the life of the rank in this process: the capsule, which is written, is for
// Adopt in process to, by a map of that epoch.
func (d Departure) End(to int, epoch topology.Epoch) ([]byte, error) {
	b, e := d.box, d.box.e
	e.enter()
	defer e.leave()
	delete(e.leaving, b.rank)
	if err := b.Idle(); err != nil {
		return nil, err
	}
	written := b.capture(true).Append(nil) // before others may use the memory
	b.leave(e.link(to), epoch)
	return written, nil
}

// Undo has the rank stay. The error wraps cause, and says who has not answered.
func (d Departure) Undo(cause error) error { return d.box.stay(cause) }

// departPolls is how often Depart polls before it sleeps: for some milliseconds, in which
// processes that have to wake up answer, and may have this core. A timer would wake it later.
const departPolls = 8192

// Depart is BeginDepart, a wait and End. If the context ends before all peers have
// answered the rank stays.
func (b *Box) Depart(ctx context.Context, to int, epoch topology.Epoch) ([]byte, error) {
	e := b.e
	if to == e.cfg.Process {
		return nil, fmt.Errorf("move rank %d to process %d: it is there", b.rank, to)
	}
	d, err := b.BeginDepart()
	if err != nil {
		return nil, err
	}
	for polls, pause := 0, 50*time.Microsecond; !d.Ready(); polls++ {
		e.Progress()
		if polls < departPolls { // the answers are on their way
			runtime.Gosched()
			give()
			continue
		}
		pause = min(2*pause, time.Millisecond)
		select {
		case <-ctx.Done():
			return nil, d.Undo(ctx.Err())
		case <-e.dead:
			return nil, e.err()
		case <-time.After(pause):
		}
	}
	return d.End(to, epoch)
}

// askPeers says Depart to whom the log does not know.
func (b *Box) askPeers() error {
	e := b.e
	e.enter()
	defer e.leave()
	if err := b.Idle(); err != nil {
		return err
	}
	if e.leaving == nil {
		e.leaving = map[topology.Rank]*parting{}
	}
	e.partings++
	e.leaving[b.rank] = &parting{number: e.partings}
	b.leaving.Store(true)
	for _, l := range *e.active.Load() {
		l.mu.Lock()
		l.askDepart(b.rank)
		l.pump()
		l.mu.Unlock()
	}
	return nil
}

// askDepart says Depart of r, if what comes over the connection is kept nowhere.
// Polling and mu are held.
func (l *link) askDepart(r topology.Rank) {
	if l.firmLocked() {
		p := l.e.leaving[r]
		l.control(wire.Header{Kind: wire.Depart, Source: r, Seq: p.number}, nil)
		p.waiting = append(p.waiting, l)
	}
}

// awaited is how many have not answered, have sent the rank what waits for a map, still get
// a body from it, or may be about to have a connection.
func (e *Engine) awaited(r topology.Rank) int {
	e.enter()
	defer e.leave()
	n := 0
	if p := e.leaving[r]; p != nil {
		n = len(p.waiting)
	}
	if e.dials.Load() > 0 && !e.cfg.Replay {
		for l := range e.known() {
			l.mu.Lock()
			if l.dialing && l.conn == nil {
				n++
			}
			l.mu.Unlock()
		}
	}
	for _, l := range *e.active.Load() {
		if slices.ContainsFunc(l.early, func(m *early) bool { return m.dest == r }) {
			n++
		}
		l.mu.Lock()
		if l.firmLocked() && l.sendsBodyOf(e.peers[r].box.Load()) { // which cutShort must not be; behind its answer it accepts no more
			n++
		}
		l.mu.Unlock()
	}
	return n
}

// stay takes it back.
func (b *Box) stay(cause error) error {
	e := b.e
	e.enter()
	defer e.leave()
	p := e.leaving[b.rank]
	if p == nil {
		return cause // it had not begun to leave
	}
	var silent []int
	for _, l := range p.waiting {
		silent = append(silent, l.process)
	}
	delete(e.leaving, b.rank)
	b.leaving.Store(false)
	for _, l := range *e.active.Load() {
		l.mu.Lock()
		if l.firmLocked() {
			l.control(wire.Header{Kind: wire.Stay, Source: b.rank, Seq: p.number}, nil)
			l.offerAgain(b)
			l.pump()
		}
		l.mu.Unlock()
	}
	return fmt.Errorf("move rank %d: no answer from processes %v: %w", b.rank, silent, cause)
}

// offerAgain offers again what the log of b's rank has offered: who has let go of the rank meanwhile waits for that,
// as if it had come from elsewhere. mu is held.
func (l *link) offerAgain(b *Box) {
	b.streams.all(func(s *stream) {
		if l.e.peers[s.peer].link.Load() != l {
			return
		}
		for x := s.head; x != nil; x = x.snext {
			if x.header.Kind == wire.Offer && !x.queued && !x.streaming {
				l.again(x)
			}
		}
	})
}

// leave takes the rank out of the process. Polling is held.
func (b *Box) leave(to *link, epoch topology.Epoch) {
	e := b.e
	e.raise(epoch)
	for _, l := range slices.Clone(*e.active.Load()) {
		l.cutShort(b)
	}
	p := &e.peers[b.rank]
	boxes := slices.DeleteFunc(slices.Clone(*e.boxes.Load()), func(o *Box) bool { return o == b })
	e.boxes.Store(&boxes)
	b.mu.Lock()
	p.link.Store(to)
	p.was(nil)
	b.gone = true
	b.mu.Unlock()
	e.placings++
	for _, other := range boxes {
		other.parted(b, to)
	}
	b.streams.all(b.endStream)
	for _, l := range *e.active.Load() {
		l.forsake(b)
	}
	if e.left == nil {
		e.left = map[int]uint32{}
	}
	e.left[to.process] = max(e.left[to.process], uint32(epoch))
}

// cutShort gives the connection up if a body of b's is half sent. The capsule has it, and
// the rest of the message cannot come from here.
func (l *link) cutShort(b *Box) {
	l.mu.Lock()
	half := l.sendsBodyOf(b)
	if half {
		l.detach()
		l.want()
	}
	l.mu.Unlock()
	if half {
		l.unplace()
		l.e.refreshActive(l)
	}
}

// sendsBodyOf tells whether a body of b's is half sent.
func (l *link) sendsBodyOf(b *Box) bool {
	return slices.ContainsFunc(l.bulk, func(x *entry) bool { return x.stream.box == b })
}

// forsake has what is half here for b, which has left, count as if it had come after that:
// it is sent again to where the rank is now.
func (l *link) forsake(b *Box) {
	if in := &l.lanes[0]; in.placed && in.stream != nil && in.stream.box == b {
		in.stales()
		in.stream, in.arrival = nil, nil // of which the rest is yet written into the memory
		l.lags()
	}
	if l.last != nil && l.last.box == b {
		l.last = nil // it would hold on to all that the rank has left here
	}
}

// endStream empties the log of a stream whose rank has left, and has the link count its messages.
func (b *Box) endStream(s *stream) {
	l := b.e.lockLink(s.peer)
	if l == nil { // the peer is here
		b.forgetHere(b.e.Box(s.peer), s.sent)
		return
	}
	defer l.mu.Unlock()
	if s.peer != b.rank {
		l.before.leaves(s)
	}
	for s.head != nil {
		l.unkeep(s.head)
	}
	for x := l.queue.head; x != nil; x = x.qnext { // without the offers among them they would come out of order; and the capsule has what is unsent
		if x.stream == s && (x.repeats || x.unsent()) {
			x.gone = true
			l.attend()
		}
	}
	l.endRecords(func(x *entry) bool { return x.stream == s })
	if s.past.size > 0 {
		l.unlogs(s.past.forget(&l.chunks, s.sent))
	}
	if s.dirty {
		s.dirty = false
		l.dirty = slices.DeleteFunc(l.dirty, func(d *stream) bool { return d == s })
	}
}

// parted turns what b's rank has sent to that of left, which was in this process,
// into messages of the link to where it went.
func (b *Box) parted(left *Box, to *link) {
	left.mu.Lock()
	defer left.mu.Unlock()
	s := b.streams.known(left.rank)
	if s == nil {
		return
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	to.before.comes(s)
	s.acked = s.sent
	if n, some := s.past.first(); some { // at level "crashes" all that is not covered
		s.acked = n - 1
		to.logs(s, s.past.size)
		to.repeat(s, s.acked)
		to.want()
	}
	for a := left.unexpected.head; a != nil; a = a.allNext {
		o := a.sender
		if o == nil || o.box != b {
			continue
		}
		if to.replay { // the log has it, and so has the capsule
			o.finish()
			continue
		}
		x := to.newEntry(s)
		x.header, x.body, x.op, o.entry, o.msg = a.header, o.buf, o, x, nil
		x.header.Epoch = b.e.Epoch() // within a process there is none
		to.offer(x)
		to.keep(x)
		to.enqueue(x)
		s.acked = min(s.acked, x.header.Seq-1)
	}
	to.pump()
}

// arrivedDeparture is told of Depart, Departed or Stay. mu is held.
func (l *link) arrivedDeparture(h *wire.Header) {
	e, r := l.e, h.Source
	if int(r) >= e.size {
		l.refuse(fmt.Errorf("%v of rank %d", h.Kind, r))
		return
	}
	if h.Kind == wire.Departed {
		if p := e.leaving[r]; p != nil && p.number == h.Seq { // otherwise it stays, or stayed and leaves again
			p.waiting = slices.DeleteFunc(p.waiting, func(o *link) bool { return o == l })
		}
		return
	}
	p := &e.peers[r]
	at := p.link.Load()
	switch {
	case h.Kind == wire.Stay:
		l.departs = slices.DeleteFunc(l.departs, func(d wire.Header) bool { return d.Source == r })
		before := len(l.early)
		l.early = slices.DeleteFunc(l.early, func(m *early) bool { return m.departs == r })
		l.earlyBytes -= (before - len(l.early)) * wire.HeaderLen
		if at == e.limbo && p.letGo == l && p.parting == h.Seq { // otherwise a map says where it is, or will: it may be on its way to l
			l.mu.Unlock()
			e.rehome(r, e.limbo, l, false)
			l.mu.Lock()
		}
	case at != l && uint32(h.Epoch) > e.whole.Load():
		m := &early{dest: -1, departs: r}
		h.Put(m.header[:])
		l.early = append(l.early, m)
		l.earlyBytes += wire.HeaderLen
		e.misses()
	case at != l:
		l.refuse(fmt.Errorf("%v of rank %d, which is not there", h.Kind, r))
	case l.busyWith(r):
		l.departs = append(slices.DeleteFunc(l.departs, func(d wire.Header) bool { return d.Source == r }), *h) // the last counts
		l.attend()
	default:
		p.letGo, p.parting = l, h.Seq
		l.mu.Unlock()
		e.rehome(r, l, e.limbo, false)
		l.mu.Lock()
		l.control(wire.Header{Kind: wire.Departed, Source: r, Seq: h.Seq}, nil)
		l.pump()
	}
}
