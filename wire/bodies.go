package wire

import (
	"encoding/binary"
	"errors"

	"github.com/mpiv/mpiv/topology"
)

// ErrBody is what the parsers of bodies refuse with.
var ErrBody = errors.New("malformed body")

// A Greeting is the body of a Hello: who speaks, and for which life of the link.
type Greeting struct {
	Version    uint32
	Process    uint32 // index of the speaker among the job's processes
	Generation uint32 // of the link; grows each time it is made again. 0: do not connect yet, only answer
	Epoch      uint32 // of the newest map that the speaker knows
	Left       uint32 // of that by which a rank left the speaker last, but for those that left for whom it speaks to. Who has an older map must learn of it first
}

const GreetingLen = 24

var greetingMagic = [4]byte{'m', 'p', 'i', 'v'}

func (g Greeting) Put(b []byte) {
	copy(b, greetingMagic[:])
	binary.LittleEndian.PutUint32(b[4:], g.Version)
	binary.LittleEndian.PutUint32(b[8:], g.Process)
	binary.LittleEndian.PutUint32(b[12:], g.Generation)
	binary.LittleEndian.PutUint32(b[16:], g.Epoch)
	binary.LittleEndian.PutUint32(b[20:], g.Left)
}

// ParseGreeting reads the body of a Hello.
func ParseGreeting(b []byte) (Greeting, error) {
	if len(b) != GreetingLen || [4]byte(b[:4]) != greetingMagic {
		return Greeting{}, ErrBody
	}
	return Greeting{
		Version:    binary.LittleEndian.Uint32(b[4:]),
		Process:    binary.LittleEndian.Uint32(b[8:]),
		Generation: binary.LittleEndian.Uint32(b[12:]),
		Epoch:      binary.LittleEndian.Uint32(b[16:]),
		Left:       binary.LittleEndian.Uint32(b[20:]),
	}, nil
}

// TicketLen is the length of what a transport needs to fetch a body from its
// peer's memory (transport.Ticket).
const TicketLen = 32

// An Envelope is the body of an Offer.
type Envelope struct {
	Length uint64 // of the message, in bytes
	Ticket [TicketLen]byte
	Fetch  bool   // the ticket is valid: fetch with it. Otherwise answer Accept
	Sum    uint32 // of the message, where a snapshot has to cover it; 0 elsewhere
}

const EnvelopeLen = 8 + 8 + TicketLen

func (e *Envelope) Put(b []byte) {
	binary.LittleEndian.PutUint64(b, e.Length)
	var fetch uint64
	if e.Fetch {
		fetch = 1
	}
	binary.LittleEndian.PutUint64(b[8:], fetch|uint64(e.Sum)<<32)
	copy(b[16:EnvelopeLen], e.Ticket[:])
}

// Parse reads the body of an Offer.
func (e *Envelope) Parse(b []byte) error {
	if len(b) != EnvelopeLen {
		return ErrBody
	}
	e.Length = binary.LittleEndian.Uint64(b)
	fetch := binary.LittleEndian.Uint64(b[8:])
	e.Sum = uint32(fetch >> 32)
	fetch &= 1<<32 - 1
	e.Fetch = fetch == 1
	e.Ticket = [TicketLen]byte(b[16:])
	if fetch > 1 || e.Length > 1<<62 {
		return ErrBody
	}
	return nil
}

// A Span is the body of an Accept: send the bytes from Offset to End.
type Span struct{ Offset, End uint64 }

const SpanLen = 16

func (s Span) Put(b []byte) {
	binary.LittleEndian.PutUint64(b, s.Offset)
	binary.LittleEndian.PutUint64(b[8:], s.End)
}

// ParseSpan reads the body of an Accept.
func ParseSpan(b []byte) (Span, error) {
	if len(b) != SpanLen {
		return Span{}, ErrBody
	}
	s := Span{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	if s.Offset > s.End {
		return Span{}, ErrBody
	}
	return s, nil
}

// A StreamAck says that all messages up to Seq of a stream have arrived.
type StreamAck struct {
	Source, Dest topology.Rank
	Seq          uint64
}

// StreamAckLen is the length of one in the body of an Ack, which is a list.
const StreamAckLen = 16

func (a StreamAck) Put(b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(a.Source))
	binary.LittleEndian.PutUint32(b[4:], uint32(a.Dest))
	binary.LittleEndian.PutUint64(b[8:], a.Seq)
}

// ParseStreamAck reads the first of the list b and returns the rest.
func ParseStreamAck(b []byte) (a StreamAck, rest []byte, err error) {
	if len(b) < StreamAckLen {
		return a, nil, ErrBody
	}
	a.Source = topology.Rank(binary.LittleEndian.Uint32(b))
	a.Dest = topology.Rank(binary.LittleEndian.Uint32(b[4:]))
	a.Seq = binary.LittleEndian.Uint64(b[8:])
	if a.Source < 0 || a.Dest < 0 {
		return a, nil, ErrBody
	}
	return a, b[StreamAckLen:], nil
}
