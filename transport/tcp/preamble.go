//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport/internal/proof"
)

// version is that of the preamble and of the frames.
const version = 3

var magic = [4]byte{'m', 'p', 'i', 'v'}

// A preamble is the first on each socket that was dialed:
//
//	 0  magic    4 bytes
//	 4  version  1
//	 5  lane     1        0 or 1
//	 6  length   1        of addr
//	 7  zero     1
//	 8  proof   16        that the secret is known
//	24  id      16        random, the same for both lanes
//	40  addr    length    of the endpoint that dials
//
// When an endpoint has both lanes of a connection, it answers in lane 0 with 16 random bytes and a proof of its own. That of
// who dials, for those bytes, is the last: a preamble may have been heard by others and be said again.
type preamble struct {
	lane   uint8
	secret [16]byte
	id     id
	addr   string
	to     string // the endpoint that is dialed: see place
}

type id [16]byte

const (
	nonceLen  = 16 // of an answer
	answerLen = nonceLen + proof.Len
)

// shown is the proof in the preamble. Like the others it is of no use at another endpoint.
func (p preamble) shown() proof.Proof {
	return proof.Of(p.secret, "preamble", []byte{version, p.lane}, p.id[:], []byte(p.to))
}

// answer is the proof of the endpoint that is dialed, and last that of who dials.
func (p preamble) answer(nonce []byte) proof.Proof {
	return proof.Of(p.secret, "answer", p.id[:], nonce, []byte(p.to))
}

func (p preamble) last(nonce []byte) proof.Proof {
	return proof.Of(p.secret, "last", p.id[:], nonce, []byte(p.to))
}

const (
	preambleLen = 40 // without addr
	maxAddr     = 255
)

var errPreamble = errors.New("not the preamble of a connection")

func (p preamble) append(b []byte) []byte {
	b = append(b, magic[:]...)
	b = append(b, version, p.lane, uint8(len(p.addr)), 0)
	shown := p.shown()
	b = append(b, shown[:]...)
	b = append(b, p.id[:]...)
	return append(b, p.addr...)
}

// readPreamble reads as far as what it has read is what it must be: a stranger
// gets no further than the fixed part. own is the place at which it is read.
func readPreamble(r io.Reader, secret [16]byte, own string) (p preamble, err error) {
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
	p.lane, p.secret, p.to = b[5], secret, own
	copy(p.id[:], b[24:])
	if !p.shown().Is(b[8:24]) {
		return p, fmt.Errorf("%w of this job, or not for this endpoint: the secret is another", errPreamble)
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

// place is where an endpoint is that listens at a in that network. The loopback's addresses every host has: of those a proof
// tells whose they are.
func place(a string, network uint64) string {
	at, err := netip.ParseAddrPort(strings.TrimPrefix(a, Name+":"))
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return a
	}
	return fmt.Sprintf("%s in network %d of boot %s", a, network, boot())
}

// networkOf is the number of a socket's network namespace; 0 before Linux 5.14, where those of one machine are not told apart.
func networkOf(c syscall.RawConn) (network uint64) {
	_ = c.Control(func(fd uintptr) { network, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) })
	return network
}

// boot is a name of this machine until it is booted again.
var boot = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// validAddr tells whether a can be in a preamble, and printed.
func validAddr(a string) bool {
	for _, c := range []byte(a) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(a) <= maxAddr && strings.HasPrefix(a, Name+":")
}
