package streams

import "sync/atomic"

// A ring carries bytes from one goroutine to another. head and tail count the
// bytes taken and put since the beginning; who puts owns tail, who takes owns
// head. Its length is a power of two.
type ring struct {
	buf        []byte
	head, tail atomic.Uint64
}

// free is where bytes can be put that lie together; nil when the ring is full.
func (r *ring) free() []byte {
	tail := r.tail.Load()
	room := uint64(len(r.buf)) - (tail - r.head.Load())
	at := tail & uint64(len(r.buf)-1)
	return r.buf[at:min(at+room, uint64(len(r.buf)))]
}

// from is what lies together from position pos on, up to end.
func (r *ring) from(pos, end uint64) []byte {
	at := pos & uint64(len(r.buf)-1)
	return r.buf[at:min(at+(end-pos), uint64(len(r.buf)))]
}

// put copies as much of p as there is room for, from position pos on, and says
// how much. It is not there for the other goroutine until tail says so.
func (r *ring) put(pos uint64, p []byte) int {
	n := min(len(p), len(r.buf)-int(pos-r.head.Load()))
	k := copy(r.from(pos, pos+uint64(n)), p[:n])
	copy(r.buf, p[k:n])
	return n
}

// copyTo fills p with what is at position pos and after it.
func (r *ring) copyTo(p []byte, pos uint64) {
	k := copy(p, r.from(pos, pos+uint64(len(p))))
	copy(p[k:], r.buf)
}
