package streams

import (
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"

	"github.com/mpiv/mpiv/transport"
)

var errLength = errors.New("a frame is longer than any can be")

// An inLane is what arrives through one stream: a goroutine reads bytes into the
// ring, and Poll takes messages out of it.
type inLane struct {
	stream Stream
	ring   ring
	// need is the tail from which on Poll has something worth its while: a new
	// header, the rest of a body, or half a ring of it.
	need    atomic.Uint64
	waiting atomic.Bool // the reader waits for room
	room    chan struct{}

	// Owned by Poll: the message of which a part has come, if size ≥ 0.
	size   int
	got    int // bytes of the body that have come, dropped ones included
	place  []byte
	header [transport.HeaderLen]byte
}

func (l *inLane) init(s Stream, size int) {
	l.stream, l.size, l.room = s, -1, make(chan struct{}, 1)
	l.ring.buf = make([]byte, size)
	l.need.Store(prefixLen)
}

// read fills the ring until the stream or the connection ends.
func (c *Conn) read(l *inLane) {
	for {
		p := l.ring.free()
		if len(p) == 0 {
			l.waiting.Store(true)
			if p = l.ring.free(); len(p) == 0 {
				select {
				case <-l.room:
				case <-c.done:
					return
				}
			}
			l.waiting.Store(false)
			continue
		}
		n, err := l.stream.Read(p)
		if n > 0 {
			if tail := l.ring.tail.Add(uint64(n)); tail >= l.need.Load() {
				c.signal()
			}
		}
		if err != nil {
			if err == io.EOF {
				err = errPeerClosed
			}
			c.fail("receive from", err)
			return
		}
	}
}

// ready tells whether deliver has something to do.
func (l *inLane) ready() bool { return l.ring.tail.Load() >= l.need.Load() }

// deliver hands what has come to in, until alive says no.
func (l *inLane) deliver(in transport.Receiver, alive func() bool) error {
	r := &l.ring
	head, tail := r.head.Load(), r.tail.Load()
	for head < tail && alive() {
		if l.size < 0 {
			if tail-head < prefixLen {
				break
			}
			var length [4]byte
			r.copyTo(length[:], head)
			size := binary.LittleEndian.Uint32(length[:])
			if size > MaxBody {
				return errLength
			}
			r.copyTo(l.header[:], head+4)
			head += prefixLen
			l.size, l.got = int(size), 0
			place := in.Place(l.header[:], l.size)
			l.place = place[:min(len(place), l.size)]
		}
		n := int(min(tail-head, uint64(l.size-l.got)))
		if l.got < len(l.place) {
			r.copyTo(l.place[l.got:min(l.got+n, len(l.place))], head)
		}
		head += uint64(n)
		l.got += n
		if l.got < l.size {
			break
		}
		body := l.place
		l.size, l.place = -1, nil
		in.Arrived(l.header[:], body)
	}
	r.head.Store(head)
	if l.size < 0 {
		l.need.Store(head + prefixLen)
	} else {
		l.need.Store(head + uint64(min(l.size-l.got, len(r.buf)/2)))
	}
	if l.waiting.Load() {
		select {
		case l.room <- struct{}{}:
		default:
		}
	}
	return nil
}
