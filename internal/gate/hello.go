//go:build linux

package gate

// TLS is Options.First where members speak TLS as crypto/tls does: a ClientHello
// that is one record. It looks at what each ClientHello has in common, and no further.
func TLS(b []byte) (need int, ok bool) {
	const (
		record, handshake = 5, 4 // bytes of the headers
		fixed             = record + handshake + 2
		least             = fixed + 32 // its random bytes
	)
	is := [...]func(c byte) bool{
		0:  func(c byte) bool { return c == 22 }, // a record of a handshake
		1:  func(c byte) bool { return c == 3 },
		2:  func(c byte) bool { return c >= 1 && c <= 3 },
		5:  func(c byte) bool { return c == 1 }, // a ClientHello
		6:  func(c byte) bool { return c == 0 },
		9:  func(c byte) bool { return c == 3 }, // "TLS 1.2", as 1.3 says too
		10: func(c byte) bool { return c == 3 },
	}
	for i, c := range b[:min(len(b), fixed)] {
		if is[i] != nil && !is[i](c) {
			return 0, false
		}
	}
	if len(b) < fixed {
		return fixed, true
	}
	n := int(b[3])<<8 | int(b[4])
	whole := int(b[7])<<8|int(b[8]) == n-handshake
	need = record + n
	return need, whole && need >= least && need <= firstMost
}

// Magic is Options.First where members begin with magic and send so many bytes at
// least.
func Magic(magic string, need int) func(b []byte) (int, bool) {
	return func(b []byte) (int, bool) {
		n := min(len(b), len(magic))
		return max(need, len(magic)), string(b[:n]) == magic[:n]
	}
}
