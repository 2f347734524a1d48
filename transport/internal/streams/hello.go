package streams

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
)

// Version is that of Hello and of the frames.
const Version = 2

var magic = [4]byte{'m', 'p', 'i', 'v'}

// A Hello is the first on each stream that was opened, and the answer to it in
// lane 0:
//
//	 0  magic    4 bytes
//	 4  version  1
//	 5  lane     1        0 or 1
//	 6  length   2        of addr, least significant byte first
//	 8  length   2        of cert
//	10  zero     2
//	12  proof   16       that the secret is known
//	28  id      16        random, the same for both lanes
//	44  addr             of the endpoint that says Hello
//	    cert
type Hello struct {
	Lane  int
	Proof proof.Proof
	ID    [16]byte
	Addr  transport.Addr
	Cert  []byte // DER; empty where the network has shown it already
}

const (
	helloLen = 44
	maxAddr  = 4 << 10
	maxCert  = 4 << 10
)

// ErrHello is what ReadHello refuses with, but for errors of reading.
var ErrHello = errors.New("not the beginning of a connection")

// Append adds the bytes of h to b.
func (h Hello) Append(b []byte) []byte {
	b = append(b, magic[:]...)
	b = append(b, Version, uint8(h.Lane))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.Addr)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.Cert)))
	b = append(b, 0, 0)
	b = append(b, h.Proof[:]...)
	b = append(b, h.ID[:]...)
	b = append(b, h.Addr...)
	return append(b, h.Cert...)
}

// ReadHello reads a Hello of an endpoint of that network which shows that it knows the secret.
// It reads as far as what it has read is what it must be: a stranger gets no
// further than the fixed part.
func ReadHello(r io.Reader, network string, shown proof.Proof) (h Hello, err error) {
	var b [helloLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	if !bytes.Equal(b[:4], magic[:]) || b[5] > 1 || b[10] != 0 || b[11] != 0 {
		return h, ErrHello
	}
	if b[4] != Version {
		return h, fmt.Errorf("%w of version %d: it has version %d", ErrHello, Version, b[4])
	}
	h.Lane = int(b[5])
	copy(h.Proof[:], b[12:])
	copy(h.ID[:], b[28:])
	if !shown.Is(h.Proof[:]) {
		return h, fmt.Errorf("%w of this job: the secret is another", ErrHello)
	}
	addr, cert := int(binary.LittleEndian.Uint16(b[6:])), int(binary.LittleEndian.Uint16(b[8:]))
	if addr > maxAddr || cert > maxCert {
		return h, fmt.Errorf("%w: the address or the certificate is too long", ErrHello)
	}
	rest := make([]byte, addr+cert)
	if _, err := io.ReadFull(r, rest); err != nil {
		return h, err
	}
	h.Addr, h.Cert = transport.Addr(rest[:addr]), rest[addr:]
	if !ValidAddr(h.Addr, network) {
		return h, fmt.Errorf("%w: the address is none", ErrHello)
	}
	return h, nil
}

// ValidAddr tells whether a can be in a Hello, and printed.
func ValidAddr(a transport.Addr, network string) bool {
	for _, c := range []byte(a) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(a) <= maxAddr && strings.HasPrefix(string(a), network+":")
}
