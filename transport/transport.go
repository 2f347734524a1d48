// Package transport is the contract that networks keep. Messages are opaque
// here: a header and a body. Nothing in it knows ranks, tags or epochs.
//
// A network is an [Endpoint] that dials and accepts [Conn]s. A Conn never waits
// and runs no goroutine between a message and its receiver: whoever waits for a
// message calls Poll, and who has waited long enough calls Arm and sleeps.
// Package transporttest is the contract as tests; every network passes them.
package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
)

// HeaderLen is the length of every message's header, in bytes. It is fixed so
// that networks can lay messages out in slots.
const HeaderLen = 40

// CopyHeader copies word by word. A wider load would wait until the words, just
// written, have left the core, and with them all that was stored before: over shared memory
// that is a slot for which this core fights with the receiver's.
func CopyHeader(to, from *[HeaderLen]byte) {
	const _ = -(HeaderLen ^ 40)
	order := binary.NativeEndian
	order.PutUint64(to[0:], order.Uint64(from[0:]))
	order.PutUint64(to[8:], order.Uint64(from[8:]))
	order.PutUint64(to[16:], order.Uint64(from[16:]))
	order.PutUint64(to[24:], order.Uint64(from[24:]))
	order.PutUint64(to[32:], order.Uint64(from[32:]))
}

// CountAt is where a header has eight bytes, little-endian, that are often one more than in
// the message before, while nothing else of it changes. Networks may shorten headers by it.
const CountAt = 24

// An Addr names an endpoint: the network, a colon, and what that network needs
// to find it, such as "tcp:127.0.0.1:4711" or "shm:/run/job/3.sock".
type Addr string

// Network is the part of a before the first colon.
func (a Addr) Network() string { n, _, _ := strings.Cut(string(a), ":"); return n }

// Local is the part of a after the first colon.
func (a Addr) Local() string { _, l, _ := strings.Cut(string(a), ":"); return l }

// What Conns refuse with, for errors.Is. A Conn that was closed here answers
// net.ErrClosed.
var (
	ErrFull    = errors.New("path is full") // of Send: not now
	ErrTooLong = errors.New("body longer than the connection takes")
	ErrBroken  = errors.New("connection is broken") // the peer closed it, died, or sent what cannot be

	// ErrBarred is of Pull: the memory cannot be read any more. The body has to be sent.
	ErrBarred = errors.New("this process may not read the peer's memory")
)

// A Message is a header of HeaderLen bytes and a body of any length up to the
// connection's MaxBody. It goes to Send in registers; with a field more it would not.
type Message struct {
	Header, Body []byte
	// Bulk messages travel in a lane of their own: they never delay the others,
	// and no order holds between the two lanes. Within a lane, order holds.
	Bulk bool
	// Last says that Flush follows: there is nothing that could leave with this one.
	Last bool
}

// An Endpoint is a process's presence on a network. All methods may be called
// by any goroutine.
type Endpoint interface {
	// Addr is where others can dial this endpoint.
	Addr() Addr
	// Dial connects to the endpoint at a. Both ends have what they need to
	// send when it returns nil.
	Dial(ctx context.Context, a Addr) (Conn, error)
	// Accept waits for a connection that another endpoint dialed. After Close
	// the error is net.ErrClosed. A stranger who does not complete the
	// network's handshake is never returned, and holds nobody up.
	Accept(ctx context.Context) (Conn, error)
	// Close ends the endpoint, and with it every connection it made, and
	// waits for its goroutines. Twice is harmless.
	Close() error
}

// A Conn connects two processes. Messages arrive once, in order within their
// lane, for as long as the connection lives; what was under way when it breaks
// is lost.
//
// One goroutine at a time may be in Send or Flush, and one, the same or
// another, in Poll. Arm and Close may be called by any.
type Conn interface {
	// Send takes m as a whole and keeps nothing of it after it returns nil.
	// It never waits: ErrFull says that the path is full now, and that the
	// next Send in this lane must be of the same message, unchanged (a part
	// of it may have left). Unless the connection is Stable, small messages
	// may be held back, to leave together, until Flush or the next Poll.
	Send(m Message) error
	// Flush sends what Send held back. What the path does not take now goes
	// with later Polls.
	Flush() error
	// Poll moves what can be moved now in both directions and hands what has
	// arrived to in. moved is false when there was nothing. After an error
	// the connection is dead: a body that was placed and has not arrived
	// never will.
	Poll(in Receiver) (moved bool, err error)
	// Arm asks for one call of wake when a Poll could move something: a
	// message came, a full path has room again, the connection broke. If that
	// is so already, wake is called at once, perhaps before Arm returns. It
	// may come for nothing, on any goroutine and with locks held: wake must
	// neither block nor call the connection. It need not come after a Poll
	// that moved something.
	Arm(wake func())
	// MaxBody is the longest body of a message, in bytes: at least 32 KiB.
	MaxBody() int
	// Stable tells whether what Send took is at the peer at once, as long as
	// both processes live, because it lies in memory that both map. Where it
	// is false, only the peer's word tells.
	Stable() bool
	// Peer is the address that was dialed, or of whom dialed.
	Peer() Addr
	// Close breaks the connection and frees what it holds. Twice is harmless.
	Close() error
}

// A Receiver is told by Poll what has arrived, so that a body lands where it is
// wanted, once. All calls come from within Poll, and none may call Poll; they
// may Send.
type Receiver interface {
	// Place says where the n bytes of body that follow header go. The answer
	// may be shorter, and nil: what does not fit is dropped. The body is
	// written to it by this Poll or by later ones; no other message of the
	// same lane is announced before this one has Arrived.
	Place(header []byte, n int) []byte
	// Arrived says that the message is whole. body is what Place returned.
	Arrived(header, body []byte)
	// Receive is Place and Arrived in one, for a message whose body lies whole in the
	// transport's memory. It may be read there once, until Receive returns: the peer may
	// be able to change it. more is false when the receiver has what it waits for and no place
	// yet for the next: a Poll had better end then, as what comes without a place is copied twice.
	Receive(header, body []byte) (more bool)
	// Pulled says that the Pull of that id has ended.
	Pulled(id uint64, err error)
}

// Receive is in's Receive by Place and Arrived.
func Receive(in Receiver, header, body []byte) (more bool) {
	place := in.Place(header, len(body))
	place = place[:min(len(place), len(body))]
	copy(place, body)
	in.Arrived(header, place)
	return true
}

// An Assisted Conn has goroutines of its own that move its bytes. Who polls it
// without a pause keeps the cores from them.
type Assisted interface{ Assisted() }

// A Lender is a Conn that may hold a body back where it is.
type Lender interface {
	// Lends tells whether it does.
	Lends() bool
	// SendLasting is Send of a message whose body stays as it is until the peer has said
	// that it came, or the connection is closed. After ErrFull either follows.
	SendLasting(m Message) error
	// Lent tells whether a body has not left yet.
	Lent() bool
}

// A Ticket is what the peer needs to pull a body; opaque to all but the
// transport.
type Ticket [32]byte

// A Puller is a Conn that can fetch a body out of the peer's memory: moved once,
// without the peer's program having to do anything. Few can: shared memory, RDMA.
type Puller interface {
	// PrefersPull tells whether a body of n bytes that is sent now is likely to be there sooner
	// when it is offered and pulled than with Send. Only who may Send asks. It may be asked more
	// than once about a message.
	PrefersPull(n int) bool
	// Offer makes body available to the peer. Body must stay where it is,
	// unchanged, until Withdraw. False means not this one: send it instead.
	Offer(body []byte) (Ticket, bool)
	// Withdraw ends an offer.
	Withdraw(t Ticket)
	// Pull starts to fetch the first len(into) bytes that t offers.
	// Receiver.Pulled(id, …) reports the end from this or a later Poll, never
	// from within Pull. Only the goroutine that may Poll may Pull.
	Pull(t Ticket, into []byte, id uint64) error
}
