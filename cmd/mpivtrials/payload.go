//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
)

// mix is a number that depends on every bit of its arguments. After splitmix64
// (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
func mix(parts ...uint64) uint64 {
	h := uint64(0x9E3779B97F4A7C15)
	for _, p := range parts {
		h += p + 0x9E3779B97F4A7C15
		h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
		h = (h ^ h>>27) * 0x94D049BB133111EB
		h ^= h >> 31
	}
	return h
}

// fill gives b the bytes that belong to key. Every word depends on the key and on
// its place, so that no part of one message passes for another's.
func fill(b []byte, key uint64) {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		x := (key + uint64(i)) * 0x9E3779B97F4A7C15
		binary.LittleEndian.PutUint64(b[i:], x^x>>29)
	}
	if i < len(b) {
		var last [8]byte
		x := (key + uint64(i)) * 0x9E3779B97F4A7C15
		binary.LittleEndian.PutUint64(last[:], x^x>>29)
		copy(b[i:], last[:])
	}
}

// A pair is a stream of messages from one rank to another. What its k-th message
// is follows from the seed, so that the receiver knows every byte of it.
type pair struct {
	seed     uint64
	from, to int
}

const largestMessage = 256 << 10

func (p pair) key(k uint64) uint64 { return mix(p.seed, uint64(p.from), uint64(p.to), k) }

// size of the k-th message: from 1 byte to 256 KiB, each magnitude as likely.
func (p pair) size(k uint64) int {
	h := p.key(k)
	low := 1 << (h % 19)
	return min(low+int((h>>8)%uint64(low)), largestMessage)
}

// message returns the k-th, in buf, which has room for the largest.
func (p pair) message(k uint64, buf []byte) []byte {
	b := buf[:p.size(k)]
	fill(b, p.key(k))
	return b
}

// reach is how far around the one that is due a message is looked for.
const reach = 256

// check notes in t what has come. spare has room for the largest message.
func (p pair) check(t *tally, got, spare []byte) {
	for d := range uint64(reach) {
		if k := t.next + d; bytes.Equal(got, p.message(k, spare)) {
			t.saw(k)
			return
		}
		if d > 0 && t.next >= d && bytes.Equal(got, p.message(t.next-d, spare)) {
			t.saw(t.next - d)
			return
		}
	}
	t.wrong++
	t.next++ // it stands for the one that was due
}
