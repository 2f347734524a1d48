package engine

import (
	"github.com/mpiv/mpiv/wire"
)

func (l *link) newEntry(s *stream) *entry {
	x := l.free.take()
	x.stream = s
	return x
}

func (l *link) freeEntry(x *entry) {
	x.withdraw()
	if x.lent {
		x.op.entry = nil
		x.op.finish()
	} else if x.op == nil && x.body != nil && len(x.body) > len(x.small) {
		l.e.bufs.put(x.body)
	}
	x.body, x.op, x.stream = nil, nil, nil
	x.kept, x.lent, x.queued, x.gone, x.streaming, x.retracting, x.done = false, false, false, false, false, false, false
	l.free.put(x)
}

// A keptList is the entries of a link's log, in the order of their first
// sending.
type keptList struct{ head, tail *entry }

func (k *keptList) push(x *entry) {
	x.lprev, x.lnext = k.tail, nil
	if k.tail == nil {
		k.head = x
	} else {
		k.tail.lnext = x
	}
	k.tail = x
}

func (k *keptList) remove(x *entry) {
	if x.lprev == nil {
		k.head = x.lnext
	} else {
		x.lprev.lnext = x.lnext
	}
	if x.lnext == nil {
		k.tail = x.lprev
	} else {
		x.lnext.lprev = x.lprev
	}
	x.lprev, x.lnext = nil, nil
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
// at most a few for each request of the peer.
type ctlQueue struct {
	ring     []ctlMessage
	first, n int
}

type ctlMessage struct {
	header wire.Header
	body   [maxAcks * wire.StreamAckLen]byte
	n      int
}

// maxAcks is how many streams one Ack speaks about.
const maxAcks = 16

func (q *ctlQueue) size() int { return q.n }

func (q *ctlQueue) head() *ctlMessage { return &q.ring[q.first] }

func (q *ctlQueue) push(h wire.Header, body []byte) {
	if q.n == len(q.ring) {
		ring := make([]ctlMessage, max(8, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.first+i)%len(q.ring)]
		}
		q.ring, q.first = ring, 0
	}
	m := &q.ring[(q.first+q.n)%len(q.ring)]
	m.header = h
	m.n = copy(m.body[:], body)
	q.n++
}

func (q *ctlQueue) pop() {
	q.first = (q.first + 1) % len(q.ring)
	q.n--
}

// clear drops what the two ends find out again over the next connection.
func (q *ctlQueue) clear() { q.first, q.n = 0, 0 }
