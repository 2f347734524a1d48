package mpiv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mpiv/mpiv/internal/engine"
)

// What calls fail with, for errors.Is. All come wrapped in a *RankError.
var (
	ErrType       = errors.New("type cannot be sent as it lies in memory")
	ErrRank       = errors.New("no such rank")
	ErrTag        = errors.New("invalid tag")
	ErrRoot       = errors.New("no such root")
	ErrCount      = errors.New("lengths do not fit")
	ErrComm       = errors.New("communicator was freed") // or is nil: Split with Undefined gives none
	ErrGroup      = errors.New("invalid group")
	ErrDims       = errors.New("invalid grid")
	ErrBuffer     = errors.New("buffer attached for Bsend is too small")
	ErrOverlap    = errors.New("buffers overlap")
	ErrModified   = errors.New("buffer changed while its request was pending")
	ErrOp         = errors.New("invalid reduction")
	ErrMismatch   = errors.New("ranks are in different collectives")
	ErrAbandoned  = errors.New("another rank gave up the collective") // RankError.Peer is which
	ErrInactive   = errors.New("persistent request is not in the right state")
	ErrUnreceived = errors.New("message was never received")
	ErrTruncate   = engine.ErrTruncate
	ErrCancelled  = engine.ErrCancelled
	ErrRequest    = engine.ErrStale
	ErrFinalized  = engine.ErrClosed
)

// What failures make calls fail with, where the job's level is "report".
var (
	// ErrProcFailed: the process of the peer, or of a rank that the collective needs,
	// has failed. A collective may fail on some ranks and not on others.
	ErrProcFailed = engine.ErrProcFailed
	// ErrProcFailedPending: a receive from AnySource may wait for a rank that has
	// failed. A request goes on, and can be waited for again after AckFailed; what is no
	// request has ended, and is ErrProcFailed too.
	ErrProcFailedPending = engine.ErrProcFailedPending
	// ErrRevoked: a rank has called Revoke. Shrink and Agree work yet.
	ErrRevoked = engine.ErrRevoked
)

// errNoComm is ErrComm for a Comm that is nil.
var errNoComm error = noCommError{}

type noCommError struct{}

func (noCommError) Error() string {
	return "communicator is nil: Split gives none to ranks whose color is Undefined or negative, " +
		"Create and CartCreate none to ranks that are not in it, and none comes with an error"
}
func (noCommError) Is(e error) bool { return e == ErrComm }

// errReceived is ErrRequest for a Message.
var errReceived error = receivedError{}

type receivedError struct{}

func (receivedError) Error() string   { return "message was already received" }
func (receivedError) Is(e error) bool { return e == ErrRequest }

// errNoMessage is ErrRequest for a Message that is none.
var errNoMessage error = noMessageError{}

type noMessageError struct{}

func (noMessageError) Error() string {
	return "there is no message: look at the error of the probe first, and of Improbe whether it found one"
}
func (noMessageError) Is(e error) bool { return e == ErrRequest }

// A RankError is what every call of this package returns when it fails.
type RankError struct {
	Op    string // "Send"
	Comm  string // name of the communicator. Empty: none is concerned
	Rank  int    // that made the call, in Comm; -1 if that is not known
	Peer  int    // the other rank in Comm; AnySource, ProcNull, or -1 if no one peer is concerned
	Tag   int    // -1 if there is none
	Where string // line of the program that made the call, "main.go:12"; for a request, the call that found it wrong. Empty if it is not known.
	Err   error
}

func (e *RankError) Error() string {
	var s strings.Builder
	s.WriteString(e.Op)
	if e.Comm != "" {
		fmt.Fprintf(&s, " on %s", engine.Quoted(e.Comm))
	}
	if e.Rank >= 0 {
		fmt.Fprintf(&s, ", rank %d", e.Rank)
	}
	if e.Peer >= 0 {
		fmt.Fprintf(&s, ", peer %d", e.Peer)
	}
	if e.Tag >= 0 {
		fmt.Fprintf(&s, ", tag %d", e.Tag)
	}
	if e.Where != "" {
		fmt.Fprintf(&s, " (%s)", e.Where)
	}
	fmt.Fprintf(&s, ": %v", e.Err)
	return s.String()
}

func (e *RankError) Unwrap() error { return e.Err }
