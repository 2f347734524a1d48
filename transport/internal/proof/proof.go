// Package proof has the two ends of a connection show each other that they know the secret of their job. Neither tells
// it: who listens where a process of the job did until it died is dialed by the others, too, and must not learn it.
package proof

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// A Proof can be made by who knows the secret alone.
type Proof [Len]byte

// Len is the length of a Proof, in bytes.
const Len = 16

// Of is the proof of who knows the secret and has that part in a connection. It is for the connection that of
// identifies, by what both ends know and one of them has just chosen at random, and for no other. (HMAC-SHA256, RFC 2104,
// the first half; each argument with its length.)
func Of(secret [16]byte, part string, of ...[]byte) Proof {
	h := hmac.New(sha256.New, secret[:])
	for _, b := range append([][]byte{[]byte(part)}, of...) {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b))))
		h.Write(b)
	}
	return Proof(h.Sum(nil)[:Len])
}

// Is compares p with other bytes, in a time that tells nothing of it.
func (p Proof) Is(other []byte) bool { return hmac.Equal(p[:], other) }
