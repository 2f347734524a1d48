package engine

import (
	"fmt"
	"hash/crc32"

	"github.com/zeebo/xxh3"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// A rank that goes on from a snapshot sends again what others have had. If that is
// not what they have had, the program is not deterministic, and nothing that comes
// of it could be trusted. So who receives remembers a sum of each message, and
// compares.

// A NondeterminismError: a rank that went on from a snapshot has sent another message
// than in its life before.
type NondeterminismError struct {
	Rank, To topology.Rank
	Message  uint64 // its number among those of Rank to To
	Received bool   // no: it receives, or looks for, messages in another order; Message is of To to Rank
}

func (e *NondeterminismError) Error() string {
	if e.Received {
		return fmt.Sprintf("the program is not deterministic: rank %d, which does again what it did before its process died, receives or looks for messages in another order than then: message %d of rank %d is not there for the call that had it; where several goroutines of a rank receive, probe or test, and not all name the source, the order of these calls must not hang on time or chance", e.Rank, e.Message, e.To)
	}
	return fmt.Sprintf("the program is not deterministic: rank %d, which does again what it did before its process died, has sent rank %d another message %d than then; what a rank sends may hang on its state, its messages and its rank alone, not on time, chance, goroutines or the order of a map", e.Rank, e.To, e.Message)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumsShort is up to how many bytes XXH3 does without vectors. Beyond that it is twice as fast
// as CRC-32C, but where it uses AVX-512 the processor runs slower: a program that computes
// between messages of some kilobytes took 5 % longer.
const sumsShort = 240

// sumOf is of a message: its body, and what it is matched by. Never 0.
func sumOf(h *wire.Header, body []byte) uint32 {
	match := h.Context*0x9e3779b1 ^ uint32(h.Tag)*0x85ebca6b // both are odd: neither alone can change and this not
	if len(body) > sumsShort {
		return max(crc32.Update(match, castagnoli, body), 1)
	}
	x := xxh3.Hash(body)
	return max(uint32(x)^uint32(x>>32)^match, 1)
}

// sums is those of the last messages of a stream, by number. 0: not known.
type sums struct {
	ring  []uint32
	first uint64 // the oldest that was ever added; 0: none was
	last  uint64 // the newest
	owed  owed   // and the one after that
}

// owed is a short message of which the sum has not been taken yet. It is taken while nothing
// comes: who waits for the answer to a message does not wait for its sum.
type owed struct {
	seq     uint64 // 0: there is none
	context uint32
	tag     int32
	n       int
	body    [16]byte
}

// sumsMost is how many are remembered of a stream.
const sumsMost = 1 << 16

// owe notes message h, with a short body, which follows the last.
func (s *sums) owe(h *wire.Header, body []byte) {
	s.settle()
	s.owed.seq, s.owed.context, s.owed.tag, s.owed.n = h.Seq, h.Context, h.Tag, len(body)
	copy(s.owed.body[:], body)
}

// settle takes the sum that is owed.
func (s *sums) settle() {
	if o := &s.owed; o.seq != 0 {
		seq := o.seq
		o.seq = 0
		s.add(seq, sumOf(&wire.Header{Context: o.context, Tag: o.tag}, o.body[:o.n]))
	}
}

// add notes that of message seq, which follows the last.
func (s *sums) add(seq uint64, sum uint32) {
	if s.owed.seq != 0 {
		s.settle()
	}
	if s.first == 0 {
		s.first = seq
	}
	if n := uint64(len(s.ring)); seq-s.first >= n && n < sumsMost {
		ring := make([]uint32, max(64, 2*n))
		for i := s.last - min(s.last, n-1); i <= s.last && n > 0; i++ {
			ring[i%uint64(len(ring))] = s.ring[i%n]
		}
		s.ring = ring
	}
	s.ring[s.place(seq)] = sum
	s.last = seq
}

// place is where in the ring, whose length is a power of two, the sum of a message is.
func (s *sums) place(seq uint64) uint64 { return seq & uint64(len(s.ring)-1) }

// at is that of message seq; 0 if it is not known.
func (s *sums) at(seq uint64) uint32 {
	s.settle()
	if seq > s.last || s.last-seq >= uint64(len(s.ring)) {
		return 0
	}
	return s.ring[s.place(seq)]
}

// remember notes what message h of s was; body nil: it is not known.
func (l *link) remember(s *stream, h *wire.Header, body []byte) {
	switch {
	case body == nil:
		s.sums.add(h.Seq, 0)
	case len(body) <= len(s.sums.owed.body):
		s.sums.owe(h, body)
		l.owesSum = true
	default:
		s.sums.add(h.Seq, sumOf(h, body))
	}
}

// settleSum takes the sum of the last message, if it is owed.
func (l *link) settleSum() {
	l.owesSum = false
	if l.last != nil { // otherwise it is taken when the stream needs it
		l.last.sums.settle()
	}
}

// compare fails the engine if a repeated message is another than it was.
func (l *link) compare(s *stream, h *wire.Header, sum uint32) {
	if was := s.sums.at(h.Seq); l.replay && was != 0 && was != sum {
		l.e.fail(&NondeterminismError{Rank: h.Source, To: h.Dest, Message: h.Seq}, false)
	}
}
