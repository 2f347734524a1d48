//go:build linux

package tcp

import (
	"crypto/tls"

	"github.com/mpiv/mpiv/transport"
)

// A sealed is TLS over a socket that has left Go's poller. The tls.Conn writes
// to the wire when the wire owes nothing, a batch at a time, and reads from it
// when something has come: so it never waits, and no Write of it fails for lack
// of room.
//
// Close sends no farewell, which would have to wait for room: a connection that
// ends is broken, whatever was said.
//
// The keys of AES-GCM are meant for some 2^24 records, 400 GB, and crypto/tls
// has no way to change them; it answers a peer that does.
type sealed struct {
	tls  *tls.Conn
	wire *wire
}

// pushSealed is push within TLS. What was held back together shares records.
func (o *outLane) pushSealed() (moved bool, err error) {
	w := o.sealed.wire
	moved, err = w.push()
	if err != nil || w.owes.Load() || o.start == o.end {
		return moved, err
	}
	if _, err = o.sealed.tls.Write(o.buf[o.start:o.end]); err == nil {
		_, err = w.push()
	}
	o.outlook.sent(o.end - o.start)
	o.start, o.end = 0, 0
	o.note()
	return true, err
}

// passSealed is pass within TLS. The prefix shares a record with what is held
// back and with so much of the body that the records of the rest are full.
func (o *outLane) passSealed(m *transport.Message) error {
	o.whole = prefixLen + len(m.Body)
	o.readyBuf()
	for o.left < o.whole || o.end > 0 {
		if _, err := o.sealed.wire.push(); err != nil {
			return err
		}
		if o.sealed.wire.owes.Load() {
			return transport.ErrFull
		}
		if err := o.sealBatch(m); err != nil {
			return err
		}
	}
	o.left, o.whole = 0, 0
	_, err := o.sealed.wire.push() // the message has left: the wire has it
	return err
}

// sealBatch seals the next bytes of m, and before them what is held back.
func (o *outLane) sealBatch(m *transport.Message) error {
	room := batchLen
	if first := prefixLen + len(m.Body)%maxRecord; o.left == 0 && o.end+first <= len(o.buf) {
		b := o.buf[o.end : o.end+first]
		putPrefix(b, m)
		copy(b[prefixLen:], m.Body)
		o.end += first
		o.left = first
	}
	if o.end > 0 {
		if _, err := o.sealed.tls.Write(o.buf[:o.end]); err != nil {
			return err
		}
		room -= o.end
		o.outlook.sent(o.end)
		o.start, o.end = 0, 0
	}
	if o.left == 0 {
		return nil
	}
	rest := m.Body[o.left-prefixLen:]
	rest = rest[:min(len(rest), room/maxRecord*maxRecord)]
	if len(rest) == 0 {
		return nil
	}
	_, err := o.sealed.tls.Write(rest)
	o.left += len(rest)
	o.outlook.sent(len(rest))
	return err
}

// receiveSealed is receive within TLS.
func (c *Conn) receiveSealed(l *inLane, in transport.Receiver) (moved bool, err error) {
	w := l.sealed.wire
	more, err := w.look()
	for budget := pollBytes; more && err == nil && budget > 0 && c.alive(); {
		moved = true
		into, buf := l.room()
		if len(into) == 0 {
			into = buf
		}
		var n int
		n, err = l.sealed.tls.Read(into)
		w.heard(n, len(into), err)
		if err == errLater {
			err = nil
		}
		if n > 0 {
			budget -= n
			l.filled(n)
			if e := c.deliver(l, in); e != nil {
				return true, e
			}
		}
		more = !w.dry || w.holds()
	}
	w.push() // an answer to the peer's change of keys; an error is for Send
	if l.more.Load() != more {
		l.more.Store(more)
		if more {
			c.wake() // who armed before
		}
	}
	return moved, err
}
