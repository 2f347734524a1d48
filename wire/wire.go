// Package wire turns the headers of messages into bytes and back. It does no
// I/O. Everything here may come from an enemy: Parse checks what can be checked
// without knowing the job.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/topology"
)

// Version is that of the format on the wire. Two processes talk only if theirs
// are equal; a Hello carries it.
const Version = 6

// HeaderLen is the length of every header, in bytes.
const HeaderLen = 40

// A Kind says what a message is for. Eager, Offer and Abandon are numbered in
// their stream; the others speak about a message of a stream, or about no stream.
type Kind uint8

const (
	Hello    Kind = iota + 1 // the first on a connection; body: Greeting
	Eager                    // a message with its body
	Offer                    // a message without its body, which the receiver fetches; body: Envelope
	Accept                   // the receiver of an Offer wants its body sent; body: Span
	Data                     // a part of an accepted body, at Header.Offset()
	Done                     // the receiver of an Offer has its body
	Ack                      // what has arrived of several streams; body: Acks
	Retract                  // the sender of an Offer wants it back; answered by Done, with Retracted if it could be
	Press                    // the receiver holds too many unexpected bytes (flag Pressed), or no longer does
	Abandon                  // its source takes no more part in the messages of its context and tag; body: why
	Ping                     // answer soon, whoever polls; Seq: which, Ack: bytes a second that the path takes of its sender's, 0 if that is not known
	Pong                     // the answer, with the Seq of its Ping
	Stable                   // snapshots cover these messages: their senders need not keep them; body: Acks
	Save                     // what is kept for rank Dest is much: take a snapshot of it soon; Seq: so many bytes need not be in a snapshot of Source then, 0 if no more can be kept
	Depart                   // rank Source is about to leave the process: hold what is for it; Seq: which time
	Departed                 // the answer, after all that was sent to it, with the Seq of its Depart
	Stay                     // rank Source does not leave after all, with the Seq of its Depart
	kinds
)

var kindNames = [kinds]string{"invalid", "hello", "eager", "offer", "accept", "data", "done", "ack", "retract", "press", "abandon", "ping", "pong", "stable", "save", "depart", "departed", "stay"}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Flags of a message.
const (
	Pressed   uint8 = 1 << iota // of Press: offer, do not send eagerly
	Retracted                   // of Done: the body was not fetched and never will be; of Retract: that was understood
	AckSoon                     // of Eager: its sender waits for the acknowledgement
	flags                       // all below are known
)

// A Header goes before every body. The pair (Source, Dest) is a stream, in
// which Seq numbers the messages from 1.
type Header struct {
	Kind    Kind
	Flags   uint8
	Check   uint16         // of a collective: which one and with what root; equal at both ends
	Context uint32         // of the communicator; messages of different contexts never match
	Source  topology.Rank  // in the world; of Accept, Done: the source of the message they speak about
	Dest    topology.Rank  // in the world
	Tag     int32          // ≥ 0
	Epoch   topology.Epoch // the sender's map
	Seq     uint64         // of the message in its stream
	Ack     uint64         // all messages up to this of the stream Dest → Source have arrived; of Data: the offset
}

// What Parse refuses.
var (
	ErrShort  = errors.New("header too short")
	ErrFormat = errors.New("malformed header")
)

// Put writes h to the first HeaderLen bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	binary.LittleEndian.PutUint64(b[0:], uint64(h.Kind)|uint64(h.Flags)<<8|uint64(h.Check)<<16|uint64(h.Context)<<32)
	binary.LittleEndian.PutUint64(b[8:], uint64(uint32(h.Source))|uint64(uint32(h.Dest))<<32)
	binary.LittleEndian.PutUint64(b[16:], uint64(uint32(h.Tag))|uint64(h.Epoch)<<32)
	binary.LittleEndian.PutUint64(b[24:], h.Seq)
	binary.LittleEndian.PutUint64(b[32:], h.Ack)
}

// PutEager is Put of an Eager with these fields and no others. From registers
// it is faster than over a Header in memory, of which two fields are loaded at a
// time before they can have left the processor's store buffer.
func PutEager(b []byte, check uint16, context uint32, source, dest topology.Rank, tag int32, epoch topology.Epoch, seq uint64) {
	_ = b[HeaderLen-1]
	binary.LittleEndian.PutUint64(b[0:], uint64(Eager)|uint64(check)<<16|uint64(context)<<32)
	binary.LittleEndian.PutUint64(b[8:], uint64(uint32(source))|uint64(uint32(dest))<<32)
	binary.LittleEndian.PutUint64(b[16:], uint64(uint32(tag))|uint64(epoch)<<32)
	binary.LittleEndian.PutUint64(b[24:], seq)
	binary.LittleEndian.PutUint64(b[32:], 0)
}

// PutAck sets the field Ack of a header that was put.
func PutAck(b []byte, ack uint64) { binary.LittleEndian.PutUint64(b[32:HeaderLen], ack) }

// Parse reads the header at the start of b. What it accepts, Put writes back
// byte for byte.
func (h *Header) Parse(b []byte) error {
	if len(b) < HeaderLen {
		return ErrShort
	}
	w0 := binary.LittleEndian.Uint64(b[0:])
	w1 := binary.LittleEndian.Uint64(b[8:])
	w2 := binary.LittleEndian.Uint64(b[16:])
	h.Kind = Kind(w0)
	h.Flags = uint8(w0 >> 8)
	h.Check = uint16(w0 >> 16)
	h.Context = uint32(w0 >> 32)
	h.Source = topology.Rank(uint32(w1))
	h.Dest = topology.Rank(uint32(w1 >> 32))
	h.Tag = int32(uint32(w2))
	h.Epoch = topology.Epoch(w2 >> 32)
	h.Seq = binary.LittleEndian.Uint64(b[24:])
	h.Ack = binary.LittleEndian.Uint64(b[32:])
	if h.Kind == 0 || h.Kind >= kinds || h.Flags >= flags || h.Source < 0 || h.Dest < 0 || h.Tag < 0 {
		return ErrFormat
	}
	return nil
}

// Offset is where a Data's body goes, in bytes from the start of the message.
func (h *Header) Offset() uint64 { return h.Ack }
