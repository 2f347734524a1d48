//go:build linux

package shm

import (
	"sync/atomic"

	"github.com/mpiv/mpiv/transport"
)

// Positions count slots and bytes from the beginning of the connection and never
// wrap; a ring's index is a position's low bits. A slot's word carries the lap
// of its position, so that a slot of the lap before reads as empty.
//
// Bodies of more than inlineLen bytes lie in the lane's data ring, contiguous,
// each at a multiple of 64. Both ends compute where: it follows from the lengths.

func lap(pos uint64, slots int) uint64 { return pos/uint64(slots) + 1 }

// span is where a body of n bytes lies that comes after position from: its
// first byte, and the first position behind it.
func span(from uint64, n, ring int) (at, end uint64) {
	if n <= inlineLen {
		return from, from
	}
	at = from
	need := uint64(n+63) &^ 63
	if off := at & uint64(ring-1); off+need > uint64(ring) {
		at += uint64(ring) - off // not in two pieces: skip to the beginning
	}
	return at, at + need
}

// A sendLane is the sender's end of a lane. All of it is private memory but what
// the slices and pointers refer to.
type sendLane struct {
	slots []slot
	data  []byte
	freed *word    // the receiver's head
	ends  []uint64 // by slot: the data position behind its body

	tail, dataTail uint64
	head, dataHead uint64        // as last read from freed
	fullAt         atomic.Uint64 // 1 + head when the lane was last full; 0: it is not. For Arm
}

func newSendLane(slots []slot, data []byte, freed *word) sendLane {
	return sendLane{slots: slots, data: data, freed: freed, ends: make([]uint64, len(slots))}
}

// post writes a message where the receiver sees it. It is false when there is no
// room, and ok is false when the receiver claims to have read what was not sent.
func (l *sendLane) post(header *[transport.HeaderLen]byte, body []byte) (posted, ok bool) {
	at, end := span(l.dataTail, len(body), len(l.data))
	if !l.fits(end) {
		head := l.freed.Load()
		if head-l.head > l.tail-l.head {
			return false, false
		}
		if head != l.head {
			l.head = head
			l.dataHead = l.ends[(head-1)&uint64(len(l.slots)-1)]
		}
		if !l.fits(end) {
			l.fullAt.Store(head + 1)
			return false, true
		}
	}
	if l.fullAt.Load() != 0 {
		l.fullAt.Store(0)
	}
	i := l.tail & uint64(len(l.slots)-1)
	s := &l.slots[i]
	s.header = *header
	if len(body) <= inlineLen {
		copy(s.inline[:], body)
	} else {
		copy(l.data[at&uint64(len(l.data)-1):], body)
	}
	l.ends[i] = end
	storeRelease(&s.word, lap(l.tail, len(l.slots))<<32|uint64(len(body)))
	l.tail++
	l.dataTail = end
	return true, true
}

func (l *sendLane) fits(end uint64) bool {
	return l.tail-l.head < uint64(len(l.slots)) && end-l.dataHead <= uint64(len(l.data))
}

// A recvLane is the receiver's end.
type recvLane struct {
	slots []slot
	data  []byte
	freed *word

	head, dataHead uint64
	told, dataTold uint64        // of these, in freed
	seen           atomic.Uint64 // head when Poll last found the lane empty. For Arm
	header         [transport.HeaderLen]byte
}

func newRecvLane(slots []slot, data []byte, freed *word) recvLane {
	return recvLane{slots: slots, data: data, freed: freed}
}

// next hands the next message to in. It is false when there is none, and ok is
// false when what is there cannot be a message.
func (l *recvLane) next(in transport.Receiver) (moved, ok bool) {
	s := &l.slots[l.head&uint64(len(l.slots)-1)]
	w := atomic.LoadUint64(&s.word)
	if w>>32 != lap(l.head, len(l.slots))&(1<<32-1) {
		return false, true
	}
	n := int(uint32(w))
	if n > maxBody {
		return false, false
	}
	l.header = s.header // the peer could change it while in looks at it
	body := in.Place(l.header[:], n)
	if len(body) > n {
		body = body[:n]
	}
	at, end := span(l.dataHead, n, len(l.data))
	if n <= inlineLen {
		copy(body, s.inline[:])
	} else {
		copy(body, l.data[at&uint64(len(l.data)-1):])
	}
	l.head++
	l.dataHead = end
	in.Arrived(l.header[:], body)
	return true, true
}

// due says that a quarter of the ring is free and the sender does not know.
func (l *recvLane) due() bool {
	return l.head-l.told >= uint64(len(l.slots)/4) || l.dataHead-l.dataTold >= uint64(len(l.data)/4)
}

func (l *recvLane) tell() {
	l.told, l.dataTold = l.head, l.dataHead
	l.freed.Store(l.head)
}

// rest notes that the lane was found empty.
func (l *recvLane) rest() {
	if l.seen.Load() != l.head {
		l.seen.Store(l.head)
	}
}

// filled says that there is, or was, a message since rest. Any goroutine may ask.
func (l *recvLane) filled() bool {
	seen := l.seen.Load()
	w := atomic.LoadUint64(&l.slots[seen&uint64(len(l.slots)-1)].word)
	return int32(uint32(w>>32)-uint32(lap(seen, len(l.slots)))) >= 0
}
