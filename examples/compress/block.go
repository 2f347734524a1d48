package main

import (
	"crypto/sha256"
	"encoding/binary"
)

// headerBytes is the length of what stands before the data in every block, raw
// or compressed, so that a block is one message and is never copied to be sent.
const headerBytes = 32

// A header describes a block.
type header struct {
	seq   int64 // from 0, in the order of the input
	raw   int64 // bytes of input in it
	total int64 // bytes of the whole input; 0 if unknown
	by    int64 // which rank compressed it
}

func (h header) put(msg []byte) {
	for i, v := range []int64{h.seq, h.raw, h.total, h.by} {
		binary.LittleEndian.PutUint64(msg[8*i:], uint64(v))
	}
}

func headerOf(msg []byte) header {
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(msg[8*i:])) }
	return header{seq: field(0), raw: field(1), total: field(2), by: field(3)}
}

// frameBytes bounds the length of a compressed block of n bytes: a header, three
// bytes for each 64 KiB of what does not compress, and a checksum.
func frameBytes(n int) int { return n + 3*(n>>16+1) + 32 }

// A verdict is what the reader says at the end.
type verdict struct {
	Whole bool // false: the input could not be read to its end
	Sum   [sha256.Size]byte
}
