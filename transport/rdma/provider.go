package rdma

import (
	"context"

	"github.com/mpiv/mpiv/transport"
)

// A Domain is a provider's presence in a process: what its queue pairs and
// regions belong to. All methods may be called by any goroutine.
type Domain interface {
	Addr() transport.Addr
	// Connect makes a queue pair with the domain at a. Both ends can post when
	// it returns nil. Its errors name a.
	Connect(ctx context.Context, a transport.Addr) (QueuePair, error)
	// Accept waits for a queue pair that a peer connected; after Close the
	// error is net.ErrClosed.
	Accept(ctx context.Context) (QueuePair, error)
	// Close closes the queue pairs too, and waits for the goroutines.
	Close() error
}

// A Lane is one of a queue pair's two send queues. Each keeps its order, and
// neither waits for the other.
type Lane int

const (
	Eager Lane = iota
	Bulk
	Lanes = iota
)

// A Key is what the peer needs to reach a region: where it lies in the memory
// of the process that registered it, and what proves that it may.
type Key struct {
	Addr, Len uint64
	Remote    [2]uint64 // the provider's; libfabric's fi_mr_key is one word
}

// Access is what the peer may do with a region.
type Access int

const (
	RemoteRead Access = iota
	RemoteWrite
)

// A QueuePair is one end of a reliable connection with its completion queue.
//
// One goroutine at a time posts sends; one, the same or another, polls and posts
// reads and writes. The other methods may be called by any.
type QueuePair interface {
	// PostSend sends a message to the peer, and wakes it if it sleeps. The
	// memory may be used again when it returns nil. When the lane is full it
	// returns transport.ErrFull and has done nothing.
	PostSend(l Lane, header *[transport.HeaderLen]byte, body []byte) error
	// PostRead fetches the beginning of the peer's region from. PollCQ reports
	// the end as in.Pulled(id, …). PostRead itself reports nothing.
	PostRead(into []byte, from Key, id uint64) error
	// PostWrite copies from, which must stay unchanged until PollCQ reports
	// the end as in.Pulled(id, …), to the beginning of the peer's region to.
	PostWrite(to Key, from []byte, id uint64) error
	// PollCQ makes progress and reports what has completed: messages received
	// (Place, Arrived), reads and writes (Pulled). It is bounded. After an
	// error the queue pair is dead: transport.ErrBroken, or net.ErrClosed when
	// it was closed here.
	PollCQ(in transport.Receiver) (moved bool, err error)
	// NotifyCQ asks for one call of wake when PollCQ would make progress, or a
	// full lane has room. If that is so already, the call comes at once.
	NotifyCQ(wake func())
	// Register lets the peer reach buf until Deregister. False: not possible.
	Register(buf []byte, a Access) (Key, bool)
	// Deregister ends that. A read or write that has not completed by now
	// fails, and nothing is written to the region after it returns.
	Deregister(k Key)
	// PrefersRead tells whether a body of n bytes, sent now, should not go by PostSend: it is there
	// sooner when the peer reads it with PostRead, or where that cannot be, is too long to be
	// sent before the peer asks for it. Who may post sends asks.
	PrefersRead(n int) bool
	// MaxSend is the longest body that PostSend takes.
	MaxSend() int
	// Stable: what PostSend took arrives as long as both processes live.
	Stable() bool
	// Err is why the queue pair is dead; nil while it lives.
	Err() error
	Peer() transport.Addr
	Close() error
}
