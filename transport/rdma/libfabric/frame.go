package libfabric

import (
	"encoding/binary"
	"errors"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// A frame is what precedes the body of each message on the fabric:
//
//	 0  cookie   8   which the receiver chose for this queue pair
//	 8  pair     4   the receiver's number of it
//	12  number   4   of the message in its lane, from 0
//	16  freed    4   eager messages of the other direction that were consumed, ever
//	20  freed    4   and bulk messages
//	24  kind     1
//	25  lane     1
//	26  zero     2
//	28  length   4   of the body
//	32  header  40   the program's. Of revoke and revoked: a number and places
//
// The words are little-endian.
type frame struct {
	cookie       uint64
	pair, number uint32
	freed        [rdma.Lanes]uint32
	kind         kind
	lane         rdma.Lane
	length       int
}

type kind uint8

const (
	message  kind = iota
	greeting      // the first in each lane: the way is open
	credit        // nothing but freed
	revoke        // use no more what was granted
	revoked       // the answer: nothing uses it
	kinds
)

const (
	headLen     = 32 + transport.HeaderLen
	maxBody     = 32 << 10
	longestSent = 8 << 10 // of the bodies that the peer should not read
)

var errFrame = errors.New("not a frame")

func (f frame) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, f.cookie)
	le.PutUint32(b[8:], f.pair)
	le.PutUint32(b[12:], f.number)
	le.PutUint32(b[16:], f.freed[rdma.Eager])
	le.PutUint32(b[20:], f.freed[rdma.Bulk])
	b[24], b[25], b[26], b[27] = byte(f.kind), byte(f.lane), 0, 0
	le.PutUint32(b[28:], uint32(f.length))
}

// parseFrame takes the whole message.
func parseFrame(b []byte) (f frame, err error) {
	if len(b) < headLen {
		return f, errFrame
	}
	le := binary.LittleEndian
	f.cookie = le.Uint64(b)
	f.pair = le.Uint32(b[8:])
	f.number = le.Uint32(b[12:])
	f.freed = [rdma.Lanes]uint32{le.Uint32(b[16:]), le.Uint32(b[20:])}
	f.kind, f.lane = kind(b[24]), rdma.Lane(b[25])
	length := le.Uint32(b[28:])
	if f.kind >= kinds || f.lane >= rdma.Lanes || b[26] != 0 || b[27] != 0 ||
		length > maxBody || int(length) != len(b)-headLen || f.kind != message && length != 0 {
		return f, errFrame
	}
	f.length = int(length)
	return f, nil
}
