package transport

import "time"

// A Measured Conn can tell how its path does. It costs a system call or two.
type Measured interface{ Path() PathInfo }

// A PathInfo is how a path does, both lanes together. It speaks of the peer's
// kernel: a program that does not read is no fault of the path. Where it is the peer's
// process that acknowledges, Stalled is negative, and the others are as near as can be told.
type PathInfo struct {
	RTT         time.Duration // smoothed; of the lane that is slower
	Unacked     int           // bytes written that the peer's kernel has not acknowledged
	Queued      bool          // more was written than the path takes at a time: it is what limits the sender
	Standing    bool          // a queue stands on the way, there or back: round trips take far longer than the shortest did. QUIC alone tells
	Stalled     time.Duration // how long bytes have been on their way without an acknowledgement
	Oldest      time.Duration // how long the oldest byte on its way has been there, as far as looks tell: never longer than it was
	Retransmits uint64        // segments sent again, ever
	Delivered   uint64        // bytes acknowledged, ever
	Sent        uint64        // bytes that have left, ever, those too that left again. 0: that is not known
	Received    uint64        // bytes that have come from the peer, ever
}

// A Counted Conn that is not Measured can tell at least what has passed.
type Counted interface {
	Passed() (sent, received uint64) // bytes, ever, both lanes together
}
