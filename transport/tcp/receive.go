//go:build linux

package tcp

import (
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/mpiv/mpiv/transport"
)

// Short bodies come many at a time, and are copied. Others are read into their places: with
// the end of one comes the prefix of the next, and no more. But while more has come than
// is read even those of middle length come with others: a copy costs less than a call.
const (
	longBody    = 24 << 10 // from which length on a body is not short
	longestBody = 48 << 10 // up to which it may come with others
)

var errLength = errors.New("a frame is longer than any can be")

// An inLane takes the bytes that come out of one socket apart: whoever reads
// asks room where they go, says with filled how many came, and hands what is
// whole to a Receiver with deliver, message by message. It makes no system calls, and no memory but
// its buffer. Conn.polling guards it.
type inLane struct {
	fd         int
	sealed     *sealed // what to read from instead; nil in clear
	buf        []byte
	start, end int // buf[start:end] has come and is in no message yet

	// The message of which a part has come, if size ≥ 0. Then buf is empty.
	size   int
	length int  // of its body, or that of the last
	behind bool // the last read took all that it had room for
	got    int  // bytes of the body that have come, dropped ones included
	place  []byte
	header [transport.HeaderLen]byte

	// more is true while a part of the stream may be in memory already, where
	// epoll does not see it. Only of a sealed lane. Written by Poll.
	more atomic.Bool
}

func (l *inLane) init(fd, size int) { l.fd, l.buf, l.size = fd, make([]byte, size), -1 }

// room is where the next bytes go: first to body, the rest of what was placed,
// then to buf.
func (l *inLane) room() (body, buf []byte) {
	if l.start > 0 {
		l.end = copy(l.buf, l.buf[l.start:l.end]) // part of a prefix
		l.start = 0
	}
	if l.size >= 0 && l.got < len(l.place) {
		body = l.place[l.got:]
	}
	if drops := l.size > len(l.place); l.alone() && !drops && l.end < prefixLen {
		return body, l.buf[l.end:prefixLen]
	}
	return body, l.buf[l.end:]
}

// alone tells whether bodies like the last are read without what comes after them.
func (l *inLane) alone() bool {
	return l.sealed == nil && l.length >= longBody && !(l.behind && l.length <= longestBody)
}

// filled says that the first n bytes of room are there.
func (l *inLane) filled(n int) {
	if l.size < 0 {
		l.end += n
		return
	}
	if l.got < len(l.place) {
		k := min(n, len(l.place)-l.got)
		l.got += k
		n -= k
	}
	l.end += n
	k := min(n, l.size-l.got)
	l.start += k // nobody wants these
	l.got += k
}

// deliver hands the next message to in; false when none is whole.
func (l *inLane) deliver(in transport.Receiver) (bool, error) {
	if l.size >= 0 {
		if l.got < l.size {
			return false, nil
		}
		body := l.place
		l.size, l.place = -1, nil
		in.Arrived(l.header[:], body)
		return true, nil
	}
	b := l.buf[l.start:l.end]
	if len(b) < prefixLen {
		return false, nil
	}
	size := binary.LittleEndian.Uint64(b)
	if size > maxBody {
		return false, errLength
	}
	n := int(size)
	l.length = n
	header, rest := b[lengthLen:prefixLen:prefixLen], b[prefixLen:]
	if len(rest) < n {
		copy(l.header[:], header)
		place := in.Place(l.header[:], n)
		place = place[:min(len(place), n)]
		copy(place, rest)
		l.place, l.size, l.got = place, n, len(rest)
		l.start, l.end = 0, 0
		return false, nil
	}
	l.start += prefixLen + n
	in.Receive(header, rest[:n])
	return true, nil
}
