//go:build linux

package tcp

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"strings"
)

// version is that of the preamble and of the frames.
const version = 2

var magic = [4]byte{'m', 'p', 'i', 'v'}

// accepted is the byte with which an endpoint answers in lane 0 when it has both
// lanes of a connection.
const accepted = 0x06

// A preamble is the first on each socket that was dialed:
//
//	 0  magic    4 bytes
//	 4  version  1
//	 5  lane     1        0 or 1
//	 6  length   1        of addr
//	 7  zero     1
//	 8  secret  16
//	24  id      16        random, the same for both lanes
//	40  addr    length    of the endpoint that dials
type preamble struct {
	lane   uint8
	secret [16]byte
	id     id
	addr   string
}

type id [16]byte

const (
	preambleLen = 40 // without addr
	maxAddr     = 255
)

var errPreamble = errors.New("not the preamble of a connection")

func (p preamble) append(b []byte) []byte {
	b = append(b, magic[:]...)
	b = append(b, version, p.lane, uint8(len(p.addr)), 0)
	b = append(b, p.secret[:]...)
	b = append(b, p.id[:]...)
	return append(b, p.addr...)
}

// readPreamble reads as far as what it has read is what it must be: a stranger
// gets no further than the fixed part.
func readPreamble(r io.Reader, secret [16]byte) (p preamble, err error) {
	var b [preambleLen + maxAddr]byte
	if _, err := io.ReadFull(r, b[:preambleLen]); err != nil {
		return p, err
	}
	if !bytes.Equal(b[:4], magic[:]) || b[5] > 1 || b[7] != 0 {
		return p, errPreamble
	}
	if b[4] != version {
		return p, fmt.Errorf("%w of version %d: it has version %d", errPreamble, version, b[4])
	}
	p.lane = b[5]
	copy(p.secret[:], b[8:])
	copy(p.id[:], b[24:])
	if subtle.ConstantTimeCompare(p.secret[:], secret[:]) == 0 {
		return p, fmt.Errorf("%w of this job: the secret is another", errPreamble)
	}
	addr := b[preambleLen:][:b[6]]
	if _, err := io.ReadFull(r, addr); err != nil {
		return p, err
	}
	p.addr = string(addr)
	if !validAddr(p.addr) {
		return p, fmt.Errorf("%w: the address is none", errPreamble)
	}
	return p, nil
}

// validAddr tells whether a can be in a preamble, and printed.
func validAddr(a string) bool {
	for _, c := range []byte(a) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(a) <= maxAddr && strings.HasPrefix(a, Name+":")
}
