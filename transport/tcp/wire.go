//go:build linux

package tcp

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	maxRecord = 16 << 10 // bytes of plaintext in a TLS record
	overhead  = 5 + 1 + 16
	// batchLen is the plaintext that leaves in one system call.
	batchLen = 4 * maxRecord
	// owedMost is what a wire owes its socket at most: a batch, and the
	// answers to a few updates of the peer's keys.
	owedMost = batchLen + (batchLen/maxRecord+1)*overhead + 1<<10
	// peekLen is what is read from a socket to see whether anything came.
	peekLen = 4 << 10
	// greetMost bounds what a peer may send before it is known. A handshake of
	// two members takes a quarter of it.
	greetMost = 16 << 10
)

var (
	errTooMuch = errors.New("its handshake has more bytes than any needs")
	errOwed    = errors.New("it changes its keys and reads nothing")
)

// A wire is what a tls.Conn takes for its socket. While the handshake runs, that
// is Go's socket. Then it is a descriptor of which Read takes what is there, and
// Write owes what the socket does not take: an error of a Write would be a
// tls.Conn's last.
type wire struct {
	net.Conn     // Go's socket, which the handshake uses
	fd       int // after leave; -1 before
	greet    int // bytes that may still be read before leave

	// Owned by who reads: the handshake, then Poll.
	peek       []byte
	start, end int  // peek[start:end] has come and is not within the tls.Conn yet
	dry        bool // the socket was empty
	in         records
	done       uint64 // records that the tls.Conn has no more to say of, at least

	mu   sync.Mutex // guards what follows; held during writes, which never wait
	out  []byte
	sent int         // out[sent:] is owed
	owes atomic.Bool // sent < len(out)
}

// errLater is what Read answers when the socket is empty. A tls.Conn keeps what
// it has of a record after an error that is temporary.
var errLater net.Error = laterError{}

type laterError struct{}

func (laterError) Error() string   { return "nothing more has come" }
func (laterError) Timeout() bool   { return true }
func (laterError) Temporary() bool { return true }

func newWire(s net.Conn) *wire { return &wire{Conn: s, fd: -1, greet: greetMost} }

// leave goes on with the descriptor, a duplicate of the socket's.
func (w *wire) leave(fd int) {
	w.fd = fd
	w.peek = make([]byte, peekLen)
}

func (w *wire) Read(p []byte) (n int, err error) {
	if w.fd < 0 {
		if w.greet == 0 {
			return 0, errTooMuch
		}
		n, err = w.Conn.Read(p[:min(len(p), w.greet)])
		w.greet -= n
		w.in.pass(p[:n])
		return n, err
	}
	n = copy(p, w.peek[w.start:w.end])
	w.start += n
	if n < len(p) && !w.dry {
		k, err := w.read(p[n:])
		n += k
		if n == 0 && err != nil {
			return 0, err
		}
	}
	if n == 0 {
		return 0, errLater
	}
	w.in.pass(p[:n])
	return n, nil
}

// read reads from the socket; 0 and nil when it is empty.
func (w *wire) read(p []byte) (int, error) {
	n, errno := read(w.fd, p)
	switch {
	case errno != 0 && later(errno):
		w.dry = true
		return 0, nil
	case errno != 0:
		return 0, errno
	case n == 0:
		return 0, io.EOF
	}
	w.dry = n < len(p)
	return n, nil
}

// holds tells whether the tls.Conn may have something to say though the socket
// is empty.
func (w *wire) holds() bool { return w.start < w.end || w.done != w.in.whole }

// look tells whether anything has come. It spares the tls.Conn, whose every Read
// makes garbage, those that are in vain.
func (w *wire) look() (bool, error) {
	w.dry = false
	if w.holds() {
		return true, nil
	}
	n, err := w.read(w.peek)
	w.start, w.end = 0, n
	return n > 0, err
}

// heard says what a Read of the tls.Conn into room for size bytes has answered.
func (w *wire) heard(n, size int, err error) {
	if err == errLater {
		w.done = w.in.whole // it would have gone on with the next
	} else if n < size {
		w.done++ // that record ended
	}
}

// Write owes p to the socket. It is called with locks of the tls.Conn held, by
// Send and Flush, and by Poll for answers to the peer.
func (w *wire) Write(p []byte) (int, error) {
	if w.fd < 0 {
		return w.Conn.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		w.out = make([]byte, 0, owedMost)
	}
	if len(w.out)+len(p) > cap(w.out) {
		return 0, errOwed
	}
	w.out = append(w.out, p...)
	w.owes.Store(true)
	return len(p), nil
}

// push writes what is owed, as far as the socket takes it. The error is an
// Errno.
func (w *wire) push() (moved bool, err error) {
	if !w.owes.Load() {
		return false, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, errno := write(w.fd, w.out[w.sent:])
	if errno != 0 {
		if later(errno) {
			return false, nil
		}
		return false, errno
	}
	w.sent += n
	if w.sent == len(w.out) {
		w.out, w.sent = w.out[:0], 0
		w.owes.Store(false)
	}
	return true, nil
}

// records counts the TLS records that pass, by the lengths they begin with.
type records struct {
	head  [5]byte
	have  int // bytes of head
	rest  int // bytes of the record's body to come
	whole uint64
}

func (r *records) pass(b []byte) {
	for len(b) > 0 {
		if r.have < len(r.head) {
			n := copy(r.head[r.have:], b)
			r.have += n
			b = b[n:]
			if r.have < len(r.head) {
				return
			}
			r.rest = int(r.head[3])<<8 | int(r.head[4])
		}
		n := min(r.rest, len(b))
		r.rest -= n
		b = b[n:]
		if r.rest == 0 {
			r.have = 0
			r.whole++
		}
	}
}
