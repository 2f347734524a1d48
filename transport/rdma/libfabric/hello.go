package libfabric

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/rdma"
)

// A hello is what both ends say first on the side channel, who dialed before the
// other:
//
//	 0  magic     8
//	 8  proof    16   that the secret is known; zeros if the sender refuses
//	24  nonce    16   random
//	40  length    2   of what follows
//	42  pair      4
//	46  cookie    8
//	54  grants    8   where the sender's grants are; 0: it has none to show
//	62  key       8   of the grants
//	70  texts         each one byte of length and its bytes: why the sender refuses
//	                  or nothing, its address, its provider, the fabric addresses of
//	                  its two endpoints
type hello struct {
	proof             proof.Proof
	nonce             [16]byte
	pair              uint32
	cookie            uint64
	grants, grantsKey uint64
	refusal           string
	addr              string
	provider          string
	names             [rdma.Lanes]string
}

const (
	helloMagic = "mpivofi2"
	helloFixed = 42
	helloMost  = 2 << 10 // of what follows
	textMost   = 255
)

var (
	errHello  = errors.New("it does not speak this protocol")
	errSecret = errors.New("it is not of this job: the secret is another")
)

func (h hello) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, helloMagic...)
	b = append(b, h.proof[:]...)
	b = append(b, h.nonce[:]...)
	at := len(b)
	b = append(b, 0, 0)
	b = le.AppendUint32(b, h.pair)
	b = le.AppendUint64(b, h.cookie)
	b = le.AppendUint64(b, h.grants)
	b = le.AppendUint64(b, h.grantsKey)
	for _, text := range [...]string{h.refusal, h.addr, h.provider, h.names[0], h.names[1]} {
		text = text[:min(len(text), textMost)]
		b = append(b, byte(len(text)))
		b = append(b, text...)
	}
	le.PutUint16(b[at:], uint16(len(b)-at-2))
	return b
}

// readHello reads no further than it must: a stranger gets no further than the fixed part, as what shown gives, the proof
// for a nonce, is another. In an answer he may refuse, which takes no proof.
func readHello(r io.Reader, answer bool, shown func(nonce []byte) proof.Proof) (h hello, err error) {
	var fixed [helloFixed]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return h, err
	}
	if !bytes.HasPrefix(fixed[:], []byte(helloMagic)) {
		return h, errHello
	}
	copy(h.proof[:], fixed[8:])
	copy(h.nonce[:], fixed[24:])
	proved := shown(h.nonce[:]).Is(h.proof[:])
	if !proved && !answer {
		return h, errSecret
	}
	n := int(binary.LittleEndian.Uint16(fixed[40:]))
	if n > helloMost {
		return h, errHello
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, err
	}
	if err = h.parse(b); err == nil && !proved && h.refusal == "" {
		err = errSecret
	}
	return h, err
}

func (h *hello) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < 28 {
		return errHello
	}
	h.pair, h.cookie = le.Uint32(b), le.Uint64(b[4:])
	h.grants, h.grantsKey = le.Uint64(b[12:]), le.Uint64(b[20:])
	b = b[28:]
	for _, text := range [...]*string{&h.refusal, &h.addr, &h.provider, &h.names[0], &h.names[1]} {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return errHello
		}
		n := 1 + int(b[0])
		*text, b = string(b[1:n]), b[n:]
	}
	if len(b) != 0 || !printable(h.addr) || !printable(h.provider) || !printable(h.refusal) {
		return errHello
	}
	if h.refusal == "" && (!strings.HasPrefix(h.addr, Name+":") || h.names[0] == "" || h.names[1] == "") {
		return errHello
	}
	return nil
}

// printable tells whether s can be in an error and a log.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
