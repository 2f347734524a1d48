package process

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/dirty"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/pages"
	"github.com/mpiv/mpiv/internal/race"
	"github.com/mpiv/mpiv/migrate"
	"github.com/mpiv/mpiv/topology"
)

// Large state goes ahead of its rank: from the first safe point after the order on it
// travels while the rank goes on, and what the rank has written to meanwhile follows once
// the rank stands still, at a safe point after that. It is the pre-copy of virtual
// machines (Clark et al., Live Migration of Virtual Machines, NSDI 2005), in one round.

// A piece of state goes ahead if it is aheadPart long or longer, and if all such are
// aheadFrom: what is less is there before the rank would reach another safe point.
const (
	aheadFrom = 8 << 20
	aheadPart = 1 << 20
	aheadTag  = 1 << 20 // of the messages, and up
	patchMost = 32768   // ranges of one piece; what needs more is sent whole
)

// A vanguard is the state of a rank that goes ahead, where it comes from.
type vanguard struct {
	order  *control.Depart
	book   *dirty.Book
	pieces [][]byte
	done   func()      // ends the wait for there
	there  atomic.Bool // all has been sent, or cannot be
	failed bool        // it cannot be; to be read after there
}

// A patch is how a segment comes of whose memory some went ahead: what is in Ranges, one
// after the other.
type patch struct {
	Segment int // of the image
	Piece   int // of those that went ahead
	Ranges  []dirty.Range
}

// departs is the order to leave, if the rank is to leave now; nil: there is none, or its
// state goes ahead.
func (l *Life) departs(image migrate.Image) *control.Depart {
	order := l.depart.Load()
	if v := l.ahead; v != nil && v.order != order { // that order is no more
		l.endAhead()
	}
	if order == nil {
		return nil
	}
	if l.ahead == nil {
		if l.ahead = l.sendAhead(order, image); l.ahead != nil {
			l.going.Store(order)
		}
	}
	if v := l.ahead; v != nil && !v.there.Load() || !l.depart.CompareAndSwap(order, nil) {
		return nil
	}
	return order
}

// sendAhead begins to send the large pieces of an image. Nil: the rank may as well stand
// still for them.
func (l *Life) sendAhead(order *control.Depart, image migrate.Image) *vanguard {
	if race.Enabled || l.p.devices {
		return nil // devices write unseen; and the race detector does not know that what was read too early comes again
	}
	v := &vanguard{order: order}
	total := 0
	g := luggage{Rank: int(l.Rank), Epoch: order.Epoch, Ahead: true}
	for _, s := range image.Segments[1:] { // the first is made anew for each image
		if len(s) >= aheadPart {
			v.pieces = append(v.pieces, s)
			g.Lengths = append(g.Lengths, int64(len(s)))
			total += len(s)
		}
	}
	if total < aheadFrom {
		return nil
	}
	l.written.end() // only one book is kept of a piece of memory
	var err error
	if v.book, err = dirty.Open(); err != nil {
		return nil
	}
	for _, piece := range v.pieces {
		if v.book.Watch(piece) != nil {
			v.book.Close()
			return nil
		}
	}
	head, err := g.pack(nil)
	if err != nil {
		v.book.Close()
		return nil
	}
	m := l.p.moves
	to := engine.Match{Context: moveContext, Peer: l.p.engine.Envoy(order.To), Tag: moveTag}
	sends := []engine.Request{m.envoy.Isend(to, head, engine.Standard)}
	to.Context = partContext(order.Epoch)
	for i, piece := range v.pieces {
		to.Tag = aheadTag + int32(i)
		sends = append(sends, m.envoy.Isend(to, piece, engine.Standard))
	}
	ctx, stop := context.WithCancel(m.ctx)
	v.done = stop
	l.p.finished.Go(func() {
		defer stop()
		for _, r := range sends {
			_, err := r.Wait(ctx, awaitMoves)
			v.failed = v.failed || err != nil
		}
		v.there.Store(true)
		l.due.Store(true)
	})
	return v
}

// endAhead forgets what goes ahead. What is under way goes on, and is of no use.
func (l *Life) endAhead() {
	if v := l.ahead; v != nil {
		v.done()
		v.book.Close()
		l.ahead = nil
	}
}

// follow has what is new of segments take the place of those that went ahead: it is in
// parts, which come after the first ones.
func (v *vanguard) follow(segments, parts [][]byte) (patches []patch) {
	for i, s := range segments {
		for k, piece := range v.pieces {
			if len(s) != len(piece) || unsafe.SliceData(s) != unsafe.SliceData(piece) {
				continue
			}
			ranges, err := v.book.Written(piece)
			if err != nil || len(ranges) > patchMost || dirty.Total(ranges) > len(s)/2 {
				continue // all of it comes once more
			}
			patches = append(patches, patch{Segment: i, Piece: k, Ranges: ranges})
			parts[firstParts+i] = gather(s, ranges)
		}
	}
	return patches
}

// gather is the bytes of s in ranges.
func gather(s []byte, ranges []dirty.Range) []byte {
	if len(ranges) == 1 {
		return s[ranges[0].From:ranges[0].To]
	}
	all := make([]byte, 0, dirty.Total(ranges))
	for _, r := range ranges {
		all = append(all, s[r.From:r.To]...)
	}
	return all
}

// A coming is the state of a rank that comes ahead of it.
type coming struct {
	epoch    uint32
	pieces   [][]byte
	stop     context.CancelFunc
	received chan struct{} // closed when nothing is put into pieces any more
	err      error         // why not all of them have come; to be read after received
}

// takeAhead readies memory for what comes ahead of a rank, and has it received.
func (m *moves) takeAhead(from topology.Rank, g luggage) {
	m.drop(g.Rank)
	c := &coming{epoch: g.Epoch, received: make(chan struct{})}
	var ready sync.WaitGroup
	var receives []engine.Request
	for i, n := range g.Lengths {
		piece, there := m.p.reserve.Aside(int(n))
		if !there {
			var err error
			if piece, err = pages.Aside(int(n)); err != nil {
				c.err = fmt.Errorf("memory for %d bytes of rank %d: %w", n, g.Rank, err)
				break
			}
			pages.Ready(piece, &ready)
		}
		c.pieces = append(c.pieces, piece)
		receives = append(receives, m.envoy.Irecv(engine.Match{Context: partContext(g.Epoch), Peer: from, Tag: aheadTag + int32(i)}, piece))
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(m.ctx)
	m.p.finished.Go(func() {
		defer close(c.received)
		defer c.stop()
		defer ready.Wait()
		if err := waitFor(ctx, receives); c.err == nil {
			c.err = err
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.coming[g.Rank] = c
}

// came is what has come ahead of a rank that is here; nil if nothing has.
func (m *moves) came(g luggage) *coming {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.coming[g.Rank]
	if c == nil || c.epoch != g.Epoch {
		return nil
	}
	delete(m.coming, g.Rank)
	return c
}

// drop forgets what came ahead of a rank that has not come.
func (m *moves) drop(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.coming[rank]; c != nil {
		delete(m.coming, rank)
		m.p.finished.Go(c.end)
	}
}

// dropBy forgets what came ahead of ranks by the map of an epoch, which is known now: it
// was void, or they have gone elsewhere.
func (m *moves) dropBy(epoch uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for rank, c := range m.coming {
		if c.epoch == epoch {
			delete(m.coming, rank)
			m.p.finished.Go(c.end)
		}
	}
}

// end gives the memory back that is not used.
func (c *coming) end() {
	c.stop()
	<-c.received
	for _, piece := range c.pieces {
		pages.GiveBack(piece)
	}
}

// fits tells whether the patches are of what came ahead, and of segments.
func (c *coming) fits(segments [][]byte, patches []patch) bool {
	for i, x := range patches {
		if c == nil || x.Segment < 0 || x.Segment >= len(segments) || x.Piece < 0 || x.Piece >= len(c.pieces) || len(segments[x.Segment]) != len(c.pieces[x.Piece]) {
			return false
		}
		for _, before := range patches[:i] {
			if before.Segment == x.Segment || before.Piece == x.Piece {
				return false
			}
		}
		end := 0
		for _, r := range x.Ranges {
			if r.From < end || r.To < r.From || r.To > len(segments[x.Segment]) {
				return false
			}
			end = r.To
		}
	}
	return true
}

// bytes is how much of it is of use.
func (c *coming) bytes(patches []patch) (n int64) {
	for _, x := range patches {
		if x.Piece >= 0 && x.Piece < len(c.pieces) {
			n += int64(len(c.pieces[x.Piece]) - dirty.Total(x.Ranges))
		}
	}
	return n
}

// put has segments hold what came ahead, patched with what came after it.
func (c *coming) put(segments [][]byte, patches []patch, news [][]byte) {
	for _, x := range patches {
		piece, rest := c.pieces[x.Piece], news[x.Segment]
		for _, r := range x.Ranges {
			rest = rest[copy(piece[r.From:r.To], rest):]
		}
		pages.MoveInto(segments[x.Segment], piece)
		c.pieces[x.Piece] = nil
	}
}
