package engine

import (
	"slices"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/wire"
)

// A stream is what a rank knows of its messages to and from one peer: both are
// numbered from 1.
//
// Of a peer in another process: the sending half is guarded by its link's mu,
// the receiving half by Engine.polling. Of a peer in this process sent and got
// are guarded by the receiver's Box.mu, and nothing else is used.
type stream struct {
	box  *Box
	peer topology.Rank

	sent       uint64 // number of the last message to the peer
	acked      uint64 // all to this number are stable
	settled    uint64 // all to this number are in a snapshot of the peer, though a new life of this rank may not have sent them yet
	head, tail *entry // those that are not, in order, linked by snext and sprev;
	past       past   //   but for those that are records
	open       *entry // the first of them that waits for Done; nil: there is none
	looked     *entry // those up to it do so, and forget need not look at them again; nil: not known
	saveAt     int    // bytes of past at which a snapshot is asked for, of a peer in this process

	got     uint64         // number of the last message from the peer
	sums    sums           // of the last messages from the peer, at level "crashes"
	acks    release.Uint64 // what flows back acknowledges: got, where acknowledgements are wanted and the peer does not replay
	covered uint64         // up to which number a snapshot has them that will outlive this process
	dirty   bool           // got grew since the peer was last told in an Ack

	// Numbers of the peer's Offers, guarded by the link's mu: those not answered
	// with Done, and those given back of which the peer does not know yet. These are
	// written while polling is held, too. They may have to come again first.
	offers   numbers
	returned []uint64
	again    []offer // of those, what was offered again while no receive waited for it
}

// An offer is what was said in an Offer.
type offer struct {
	seq   uint64
	env   wire.Envelope
	since uint32 // of that generation of the link
	body  []byte // it came as an eager message; then env is of no use
}

// offeredAgain notes o for the receive that has matched it and is about to look.
func (s *stream) offeredAgain(o offer) {
	s.again = slices.DeleteFunc(s.again, func(was offer) bool { return was.seq == o.seq })
	s.again = append(s.again, o)
}

// keep adds x to the messages that are not stable.
func (s *stream) keep(x *entry) {
	x.sprev, x.snext = s.tail, nil
	if s.tail == nil {
		s.head = x
	} else {
		s.tail.snext = x
	}
	s.tail = x
	if s.open == nil && x.waits() {
		s.open = x
	}
}

// answered takes the Offer with that number off offers, if it is there.
func (s *stream) answered(seq uint64) {
	s.offers.remove(seq)
	if len(s.again) > 0 {
		s.again = slices.DeleteFunc(s.again, func(o offer) bool { return o.seq == seq })
	}
}

// gaveBack notes that of an Offer.
func (s *stream) gaveBack(seq uint64) {
	if !slices.Contains(s.returned, seq) {
		s.returned = append(s.returned, seq)
	}
}

// awaitsReturned tells whether a message is yet to come that an earlier life has given back.
func (s *stream) awaitsReturned() bool {
	return slices.ContainsFunc(s.returned, func(seq uint64) bool { return seq > s.got })
}

// toAck is up to which number the peer need not send messages again. Where it replays, it may
// have to send one with its body that it only offered in an earlier life.
func (s *stream) toAck(replays bool) uint64 {
	n := s.got
	if replays {
		for _, seq := range s.offers.all() {
			n = min(n, seq-1)
		}
	}
	return n
}

// offer is the kept Offer with that number, which waits for Done; nil: there is none. Most are done in the order in
// which they were made.
func (s *stream) offer(seq uint64) *entry {
	x := s.open
	for x != nil && x.header.Seq < seq {
		x = x.snext
	}
	if x == nil || x.header.Seq != seq || !x.waits() {
		return nil
	}
	return x
}

// drop removes x.
func (s *stream) drop(x *entry) {
	if s.looked == x {
		s.looked = x.sprev
	}
	if s.open == x {
		s.open = x.snext.firstOpen()
	}
	if x.sprev == nil {
		s.head = x.snext
	} else {
		x.sprev.snext = x.snext
	}
	if x.snext == nil {
		s.tail = x.sprev
	} else {
		x.snext.sprev = x.sprev
	}
	x.sprev, x.snext = nil, nil
}

// closed notes that x, which is kept, waits no longer.
func (s *stream) closed(x *entry) {
	s.looked = nil
	if s.open == x {
		s.open = x.snext.firstOpen()
	}
}

// findOpen finds out anew which of them wait.
func (s *stream) findOpen() { s.open, s.looked = s.head.firstOpen(), nil }

// An entry is a message to another process that is not stable, or not sent yet.
type entry struct {
	header wire.Header
	body   []byte        // the program's while op is not nil; the log's otherwise
	env    wire.Envelope // of an Offer
	op     *op           // to finish when the body can be used again
	stream *stream
	needs  uint64 // choices that it may hang on, of Config.Witness

	kept       bool             // it is in its stream's and its link's log
	lent       bool             //   with the program's body, until it is stable
	queued     bool             // it is in link.queue
	gone       bool             // stable while queued to be sent again: skip and free
	done       bool             // an Offer whose body has been fetched; body is the log's
	streaming  bool             // it is in link.bulk
	retracting bool             // its sender wants it back
	repeats    bool             // it is in its stream's past, which has its body
	spilled    bool             // body is of the Spill
	off, end   uint64           // of the body: what is still to be sent as Data
	puller     transport.Puller // with which env.Ticket was offered; nil if it is not
	small      [64]byte         // room for a short body of the log's

	snext, sprev *entry // in stream
	qnext        *entry // in link.queue, or among free entries
}

// waits tells whether x is an Offer that waits for Done.
func (x *entry) waits() bool { return x.header.Kind == wire.Offer && !x.done }

// firstOpen is the first that does, of x and those after it in its stream.
func (x *entry) firstOpen() *entry {
	for x != nil && !x.waits() {
		x = x.snext
	}
	return x
}

// unsent tells whether x, which is queued, was never sent.
func (x *entry) unsent() bool { return !x.kept && !x.repeats && !x.gone }

// cost is what the entry counts against the bound of the log.
func (x *entry) cost() int { return logCost(len(x.body)) }

func logCost(n int) int { return n + 128 }

// A streamTable finds the stream of a peer. Peers that a rank never talks to
// cost it nothing but a share of a page.
type streamTable struct {
	pages []atomic.Pointer[streamPage]
	box   *Box
}

const pageStreams = 64

type streamPage [pageStreams]atomic.Pointer[stream]

func (t *streamTable) init(b *Box, size int) {
	t.box = b
	t.pages = make([]atomic.Pointer[streamPage], (size+pageStreams-1)/pageStreams)
	for i := range t.pages {
		t.pages[i].Store(&noStreams)
	}
}

// noStreams is the page of peers that the rank has not talked to.
var noStreams streamPage

// at is the stream of r, made if it is not there.
func (t *streamTable) at(r topology.Rank) *stream {
	if s := t.known(r); s != nil {
		return s
	}
	return t.make(r)
}

func (t *streamTable) make(r topology.Rank) *stream {
	slot := &t.pages[uint32(r)/pageStreams]
	if slot.Load() == &noStreams {
		slot.CompareAndSwap(&noStreams, new(streamPage))
	}
	s := &slot.Load()[uint32(r)%pageStreams]
	s.CompareAndSwap(nil, &stream{box: t.box, peer: r})
	return s.Load()
}

// all calls f for every stream there is.
func (t *streamTable) all(f func(*stream)) {
	for i := range t.pages {
		page := t.pages[i].Load()
		for k := range page {
			if s := page[k].Load(); s != nil {
				f(s)
			}
		}
	}
}
