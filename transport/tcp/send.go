//go:build linux

package tcp

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/mpiv/mpiv/transport"
)

// A frame is a message on the wire: the length of its body in 8 bytes, least
// significant first, the header, the body. A prefix of whole words keeps most bodies aligned
// where they are read: from elsewhere Go's memmove takes six times as long for some KiB.
const (
	lengthLen = 8
	prefixLen = lengthLen + transport.HeaderLen
)

const (
	smallBody = 16 << 10  // up to which a body is copied to leave with others,
	smallSeal = 8 << 10   // and within TLS
	aloneBody = 1 << 10   // up to which it is also where there are none
	holdLen   = 128 << 10 // what can be held back; half of it is not held until Flush
)

// maxParts is how many parts leave with one call.
const maxParts = 64

// An outLane is what leaves through one socket. Conn.out guards it, but for
// waits, and lasting, which is of the one who sends.
type outLane struct {
	fd         int
	sealed     *sealed  // what to write to instead; nil in clear
	buf        []byte   // what is held back; nil until something is
	start, end int      // buf[start:end] is held back,
	parts      [][]byte //   unless there are parts: then they are, some of buf and some lent
	inParts    int      // bytes of parts
	lent       bool     // the last part is
	lasting    bool     // what is being sent lasts
	left       int      // bytes of a large message's frame that have left; it is not whole
	whole      int      // that frame's length; 0: there is none
	refused    bool     // the last Send was answered with ErrFull
	meter      Meter
	outlook    outlook
	// waits is true while something is held back or was refused.
	waits atomic.Bool
}

// note brings waits up to date.
func (o *outLane) note() {
	if w := o.held() > 0 || o.refused; o.waits.Load() != w {
		o.waits.Store(w)
	}
}

// waiting tells whether something is to be written when there is room.
func (o *outLane) waiting() bool {
	return o.waits.Load() || o.sealed != nil && o.sealed.wire.owes.Load()
}

// held is how many bytes are held back.
func (o *outLane) held() int {
	if len(o.parts) > 0 {
		return o.inParts
	}
	return o.end - o.start
}

// send takes m, as a pointer, which costs less than the copies that inlining would make. The
// error is ErrFull, or the socket's or the tls.Conn's.
func (o *outLane) send(m *transport.Message) (err error) {
	switch {
	case o.holds(m):
		err = o.hold(m)
	case o.sealed != nil:
		err = o.passSealed(m)
	default:
		err = o.pass(m)
	}
	o.refused = err == transport.ErrFull
	o.note()
	return err
}

// holds tells whether m is to leave with others. What has begun to leave goes on as it began.
func (o *outLane) holds(m *transport.Message) bool {
	if o.sealed != nil {
		return o.whole == 0 && len(m.Body) <= smallSeal
	}
	alone := m.Last && o.held() == 0
	return o.whole == 0 && (len(m.Body) <= smallBody || o.lends(m)) && !(alone && len(m.Body) > aloneBody)
}

// lends tells whether the body of m is held back where it is.
func (o *outLane) lends(m *transport.Message) bool {
	return o.lasting && o.sealed == nil && len(m.Body) > aloneBody
}

// hold copies a small message, or what of it is not lent.
func (o *outLane) hold(m *transport.Message) error {
	copied, lent := m.Body, []byte(nil)
	if o.lends(m) {
		copied, lent = nil, m.Body
	}
	n := prefixLen + len(copied)
	o.readyBuf()
	if !o.fits(n) {
		if _, err := o.push(); err != nil {
			return err
		}
		if o.start > 0 && len(o.parts) == 0 {
			o.end = copy(o.buf, o.buf[o.start:o.end])
			o.start = 0
		}
		if !o.fits(n) {
			return transport.ErrFull
		}
	}
	b := o.buf[o.end : o.end+n]
	putPrefix(b, m)
	copy(b[prefixLen:], copied)
	o.end += n
	if lent != nil || len(o.parts) > 0 {
		o.part(n, lent)
	}
	if o.held() >= len(o.buf)/2 {
		_, err := o.push()
		return err
	}
	return nil
}

// fits tells whether there is room to hold back a message, of which n bytes in buf.
func (o *outLane) fits(n int) bool {
	return len(o.buf)-o.end >= n && len(o.parts) <= maxParts-2 && o.inParts < len(o.buf)
}

// part has what was held back, the last n bytes of buf and then what is lent leave as parts.
func (o *outLane) part(n int, lent []byte) {
	k := len(o.parts) - 1
	switch {
	case k < 0:
		n = o.end - o.start
		o.parts = append(o.parts, o.buf[o.start:o.end])
	case o.lent:
		o.parts = append(o.parts, o.buf[o.end-n:o.end])
	default: // what is before it in buf is the last part
		o.parts[k] = o.parts[k][:len(o.parts[k])+n]
	}
	o.inParts += n
	if o.lent = lent != nil; o.lent {
		o.parts = append(o.parts, lent)
		o.inParts += len(lent)
	}
}

// partsLeft drops the first n bytes of the parts.
func (o *outLane) partsLeft(n int) {
	o.inParts -= n
	k := 0
	for k < len(o.parts) && n >= len(o.parts[k]) {
		n -= len(o.parts[k])
		k++
	}
	o.parts = slices.Delete(o.parts, 0, k)
	if len(o.parts) == 0 {
		o.start, o.end, o.lent = 0, 0, false
		return
	}
	o.parts[0] = o.parts[0][n:]
}

// readyBuf makes buf. Within TLS what is held back leaves as one batch.
func (o *outLane) readyBuf() {
	switch {
	case o.buf != nil:
	case o.sealed != nil:
		o.buf = make([]byte, batchLen)
	default:
		o.buf = make([]byte, holdLen)
	}
}

func putPrefix(b []byte, m *transport.Message) {
	binary.LittleEndian.PutUint64(b, uint64(len(m.Body)))
	transport.CopyHeader((*[transport.HeaderLen]byte)(b[lengthLen:]), (*[transport.HeaderLen]byte)(m.Header))
}

// push writes what is held back, as far as the path takes it. The error is an
// Errno.
func (o *outLane) push() (moved bool, err error) {
	if o.sealed != nil {
		return o.pushSealed()
	}
	if o.held() == 0 {
		return false, nil
	}
	n, errno := 0, syscall.Errno(0)
	if len(o.parts) > 0 {
		n, errno = writeParts(o.fd, o.parts)
	} else {
		n, errno = write(o.fd, o.buf[o.start:o.end])
	}
	if errno != 0 {
		if later(errno) {
			return false, nil
		}
		return false, errno
	}
	o.outlook.sent(n)
	o.heldLeft(n)
	o.note()
	return true, nil
}

// heldLeft drops the first n bytes of what is held back.
func (o *outLane) heldLeft(n int) {
	if len(o.parts) > 0 {
		o.partsLeft(n)
	} else if o.start += n; o.start == o.end {
		o.start, o.end = 0, 0
	}
}

func writeParts(fd int, parts [][]byte) (int, syscall.Errno) {
	var iov [maxParts]syscall.Iovec
	for i, p := range parts {
		iov[i] = vec(p)
	}
	return writev(fd, iov[:len(parts)])
}

// pass writes a large message, and before it what is held back.
func (o *outLane) pass(m *transport.Message) error {
	if len(o.parts) > 0 {
		if _, err := o.push(); err != nil {
			return err
		}
		if len(o.parts) > 0 {
			return transport.ErrFull
		}
	}
	whole := prefixLen + len(m.Body)
	o.whole = whole
	var prefix [prefixLen]byte
	putPrefix(prefix[:], m)
	var iov [3]syscall.Iovec
	k := 0
	held := o.end - o.start
	if held > 0 {
		iov[k] = vec(o.buf[o.start:o.end])
		k++
	}
	if o.left < prefixLen {
		iov[k] = vec(prefix[o.left:])
		k++
	}
	iov[k] = vec(m.Body[max(0, o.left-prefixLen):])
	k++
	n, errno := writev(o.fd, iov[:k])
	if errno != 0 {
		if !later(errno) {
			return errno
		}
		n = 0
	}
	o.outlook.sent(n)
	if n < held {
		o.start += n
		return transport.ErrFull
	}
	o.start, o.end = 0, 0
	o.left += n - held
	if o.left < whole {
		return transport.ErrFull
	}
	o.left, o.whole = 0, 0
	return nil
}
