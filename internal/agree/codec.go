package agree

import (
	"encoding/binary"
	"errors"
)

// ErrMessage is what bytes that are no message give.
var ErrMessage = errors.New("malformed message of an agreement")

const headLen = 4 + 1 + 4 + 8 + 4

// valued tells whether messages of kind k have a Value.
func (k Kind) valued() bool {
	return k == Contribute || k == Propose || k == Decide || k == Tell
}

// Append appends m to b, as one of the agreement with that number.
func (m Message) Append(b []byte, number uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, number)
	b = append(b, byte(m.Kind))
	if !m.Kind.valued() {
		return b
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(int32(m.Accepted)))
	b = binary.LittleEndian.AppendUint64(b, m.Value.Flag)
	b = binary.LittleEndian.AppendUint32(b, m.Value.Floor)
	for _, s := range []Set{m.Value.Failed, m.Value.Acked, m.Value.Quit} {
		for _, w := range s {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return b
}

// Parse reads what Append has written for a group of that size.
func Parse(b []byte, size int) (m Message, number uint32, err error) {
	if len(b) < 5 {
		return m, 0, ErrMessage
	}
	number, m.Kind = binary.LittleEndian.Uint32(b), Kind(b[4])
	words := (size + 63) / 64
	switch {
	case m.Kind == 0 || m.Kind >= kinds, !m.Kind.valued() && len(b) != 5:
		return m, 0, ErrMessage
	case !m.Kind.valued():
		return m, number, nil
	case len(b) != headLen+3*8*words:
		return m, 0, ErrMessage
	}
	m.Accepted = int(int32(binary.LittleEndian.Uint32(b[5:])))
	m.Value.Flag = binary.LittleEndian.Uint64(b[9:])
	m.Value.Floor = binary.LittleEndian.Uint32(b[17:])
	rest := b[headLen:]
	for _, s := range []*Set{&m.Value.Failed, &m.Value.Acked, &m.Value.Quit} {
		*s = NewSet(size)
		for i := range *s {
			(*s)[i] = binary.LittleEndian.Uint64(rest)
			rest = rest[8:]
		}
		if used := uint(size % 64); used > 0 && (*s)[words-1]>>used != 0 {
			return m, 0, ErrMessage
		}
	}
	if m.Accepted < nobody || m.Accepted >= size {
		return m, 0, ErrMessage
	}
	return m, number, nil
}

// MaxLen is how long a message of a group of that size is at most.
func MaxLen(size int) int { return headLen + 3*8*((size+63)/64) }
