//go:build linux

package tcp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// recorder is a Receiver that takes at most limit bytes of a body, and writes
// down what has arrived.
type recorder struct {
	limit  int
	placed []byte
	log    []byte
}

func (r *recorder) Place(header []byte, n int) []byte {
	r.placed = append(r.placed[:0], header...)
	return make([]byte, min(n, r.limit))
}

func (r *recorder) Receive(header, body []byte) bool { return transport.Receive(r, header, body) }
func (r *recorder) Arrived(header, body []byte)      { r.log = arrived(r.log, header, body) }
func (r *recorder) Pulled(uint64, error)             {}

func arrived(log, header, body []byte) []byte {
	log = append(log, header...)
	log = binary.LittleEndian.AppendUint32(log, uint32(len(body)))
	return append(log, body...)
}

// FuzzFrames compares the frames that an inLane finds, read in pieces of any
// length, with those found by looking at all bytes at once.
func FuzzFrames(f *testing.F) {
	many := append(frameOf(0, nil), frameOf(200, bytes.Repeat([]byte{1}, 200))...)
	f.Add(many, []byte{1, prefixLen, 3}, uint16(1000), uint8(0))
	f.Add(many, []byte{255}, uint16(10), uint8(3))
	f.Add(append(many, frameOf(maxBody+1, nil)...), []byte{7}, uint16(0), uint8(100))
	f.Fuzz(func(t *testing.T, stream, pieces []byte, limit uint16, bufLen uint8) {
		var want []byte
		lies := false
		for rest := stream; len(rest) >= prefixLen; {
			size := binary.LittleEndian.Uint64(rest)
			n := int(size)
			if lies = size > maxBody; lies || len(rest) < prefixLen+n {
				break
			}
			want = arrived(want, rest[lengthLen:prefixLen], rest[prefixLen:][:min(n, int(limit))])
			rest = rest[prefixLen+n:]
		}

		var l inLane
		l.init(0, prefixLen+int(bufLen))
		in := &recorder{limit: int(limit)}
		var err error
		for i := 0; len(stream) > 0 && err == nil; i++ {
			piece := len(stream)
			if len(pieces) > 0 {
				piece = 1 + int(pieces[i%len(pieces)])
			}
			body, buf := l.room()
			require.NotZero(t, len(buf)+len(body), "no room")
			n := copy(body, stream[:min(piece, len(stream))])
			n += copy(buf, stream[n:min(max(piece, n), len(stream))])
			stream = stream[n:]
			l.behind = n == len(body)+len(buf)
			l.filled(n)
			for more := true; more && err == nil; {
				more, err = l.deliver(in)
			}
		}
		require.Equal(t, want, in.log)
		require.Equal(t, lies, err == errLength)
	})
}

// FuzzRecords compares the records that are counted, in pieces of any length,
// with those found by looking at all bytes at once.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{23, 3, 3, 0, 2, 7, 7, 23, 3, 3, 0, 0, 23, 3, 3, 1}, []byte{1, 4})
	f.Fuzz(func(t *testing.T, stream, pieces []byte) {
		want := uint64(0)
		for rest := stream; len(rest) >= 5; want++ {
			n := 5 + int(binary.BigEndian.Uint16(rest[3:]))
			if len(rest) < n {
				break
			}
			rest = rest[n:]
		}
		var r records
		for i := 0; len(stream) > 0; i++ {
			n := len(stream)
			if len(pieces) > 0 {
				n = min(n, int(pieces[i%len(pieces)])+1)
			}
			r.pass(stream[:n])
			stream = stream[n:]
		}
		require.Equal(t, want, r.whole)
	})
}

// FuzzPreamble: what parses prints the same bytes.
func FuzzPreamble(f *testing.F) {
	const own = "tcp:127.0.0.1:4712"
	f.Add(preamble{lane: 1, id: id{6}, addr: "tcp:127.0.0.1:4711"}.append(nil))
	f.Add([]byte("mpiv"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var secret [16]byte
		if len(b) >= preambleLen { // nobody guesses a proof
			shown := preamble{lane: b[5], id: id(b[24:preambleLen]), to: own}.shown()
			copy(b[8:], shown[:])
		}
		r := bytes.NewReader(b)
		p, err := readPreamble(r, secret, own)
		if err != nil {
			return
		}
		require.Equal(t, b[:len(b)-r.Len()], p.append(nil))
		secret[3]++
		_, err = readPreamble(bytes.NewReader(b), secret, own)
		require.ErrorIs(t, err, errPreamble)
	})
}

var _ transport.Receiver = (*recorder)(nil)
