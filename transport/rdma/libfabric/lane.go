//go:build ofi && cgo && linux

package libfabric

import (
	"sync/atomic"

	"github.com/mpiv/mpiv/transport/rdma"
)

// How many messages of a lane the peer takes before it has consumed one, and how
// many receives a queue pair adds for those that are about credit and grants.
var window = [rdma.Lanes]uint32{64, 32}

const asides = 16

// A sendLane is owned by who posts sends, but for its atomics.
type sendLane struct {
	number  uint32        // of the next message
	posted  atomic.Uint32 // messages, ever
	freed   atomic.Uint32 // of them, consumed by the peer; written with polling held
	full    atomic.Bool   // a message was refused, and none was taken since
	blocked atomic.Bool   // by libfabric: nobody will say when there is room
}

func (l *sendLane) room(which rdma.Lane) bool {
	return l.posted.Load()-l.freed.Load() < window[which]
}

// heard takes the peer's word on what it has consumed; words may overtake each
// other. False when that cannot be.
func (l *sendLane) heard(freed uint32) bool {
	before := l.freed.Load()
	if int32(freed-before) <= 0 {
		return true
	}
	if freed-before > l.posted.Load()-before {
		return false
	}
	l.freed.Store(freed)
	return true
}

// A recvLane holds the messages that have come, until PollCQ takes them.
type recvLane struct {
	number uint32    // of the next message; written with polling held
	inbox  []arrival // guarded by the queue pair's mu; a ring of window entries
	head   uint32    // likewise
	count  uint32    // likewise

	freed atomic.Uint32 // messages, ever; written by who polls
	told  atomic.Uint32 // of them, what the peer knows
}

type arrival struct {
	slot   slot
	length int // of the body
}

func (l *recvLane) pushLocked(a arrival) bool {
	if int(l.count) == len(l.inbox) {
		return false
	}
	l.inbox[(l.head+l.count)%uint32(len(l.inbox))] = a
	l.count++
	return true
}

func (l *recvLane) popLocked() (a arrival, ok bool) {
	if l.count == 0 {
		return a, false
	}
	a = l.inbox[l.head]
	l.head = (l.head + 1) % uint32(len(l.inbox))
	l.count--
	return a, true
}

// owes tells whether the peer ought to hear what was consumed.
func (l *recvLane) owes(which rdma.Lane) bool {
	return l.freed.Load()-l.told.Load() >= window[which]/4
}
