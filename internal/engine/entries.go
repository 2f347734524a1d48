package engine

import (
	"github.com/mpiv/mpiv/wire"
)

func (l *link) newEntry(s *stream) *entry {
	x := l.free
	if x == nil {
		return &entry{stream: s}
	}
	l.free, x.qnext, x.stream = x.qnext, nil, s
	return x
}

func (l *link) freeEntry(x *entry) {
	x.withdraw()
	if x.lent {
		x.op.entry = nil
		x.op.finish()
	} else if x.spilled {
		l.chunks.spill.Give(x.body)
	} else if x.op == nil && len(x.body) > len(x.small) && !x.repeats {
		l.e.bufs.put(x.body)
	}
	if x.repeats {
		x.stream.past.giveBack(&l.chunks)
	}
	x.body, x.op, x.stream, x.needs = nil, nil, nil, 0
	x.kept, x.lent, x.queued, x.gone, x.streaming, x.retracting, x.done, x.repeats, x.spilled = false, false, false, false, false, false, false, false, false
	x.qnext, l.free = l.free, x
}

// An entryQueue is a first-in first-out queue, linked by qnext.
type entryQueue struct {
	head, tail *entry
	n          int
}

func (q *entryQueue) push(x *entry) {
	x.qnext = nil
	if q.tail == nil {
		q.head = x
	} else {
		q.tail.qnext = x
	}
	q.tail = x
	q.n++
}

func (q *entryQueue) pop() {
	x := q.head
	q.n--
	if q.head = x.qnext; q.head == nil {
		q.tail = nil
	}
	x.qnext = nil
}

// A ctlQueue holds control messages, in memory that is used again. There are
// at most a few for each request of the peer, but for answers that it may ask for
// again: answersMost.
type ctlQueue struct {
	ring     []ctlMessage
	first, n int
}

type ctlMessage struct {
	header wire.Header
	needs  uint64 // choices that it may tell of
	body   [maxAcks * wire.StreamAckLen]byte
	n      int
}

// maxAcks is how many streams one Ack speaks about.
const maxAcks = 16

func (q *ctlQueue) size() int { return q.n }

func (q *ctlQueue) head() *ctlMessage { return &q.ring[q.first] }

func (q *ctlQueue) push(h wire.Header, body []byte, needs uint64) {
	if q.n == len(q.ring) {
		ring := make([]ctlMessage, max(8, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.first+i)%len(q.ring)]
		}
		q.ring, q.first = ring, 0
	}
	m := &q.ring[(q.first+q.n)%len(q.ring)]
	m.header, m.needs = h, needs
	m.n = copy(m.body[:], body)
	q.n++
}

func (q *ctlQueue) pop() {
	q.first = (q.first + 1) % len(q.ring)
	q.n--
}

// answersMost is how many control messages may wait when the peer asks for what it has been told.
const answersMost = 1 << 16

// clear drops what the two ends find out again over the next connection.
func (q *ctlQueue) clear() { q.first, q.n = 0, 0 }
