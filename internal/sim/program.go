package sim

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/zeebo/xxh3"
)

// undisturbed is what each rank has after each iteration when nothing goes wrong.
func undisturbed(seed uint64, n, iterations int) (all [][]uint64) {
	accs := make([]uint64, n)
	for i := range iterations {
		next := make([]uint64, n)
		for to := range n {
			next[to] = accs[to]
			for from := range n {
				for k := range messages(seed, i, from, to) {
					next[to] = fold(next[to], text(accs[from], to, k, length(seed, i, from, to, k)))
				}
			}
		}
		accs = next
		all = append(all, accs)
	}
	return all
}

func mix(v ...uint64) uint64 {
	h := fnv.New64a()
	for _, x := range v {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], x)
		h.Write(b[:])
	}
	return h.Sum64()
}

// messages is how many messages one rank sends another in an iteration.
func messages(seed uint64, iteration, from, to int) int {
	return int((mix(seed, uint64(iteration), uint64(from), uint64(to)) >> 20) % 3)
}

// length is that of one of them, in bytes.
func length(seed uint64, iteration, from, to, k int) int {
	x := mix(seed, uint64(iteration), uint64(from), uint64(to), uint64(k)) >> 16
	if x%4 == 0 {
		return 8 + int((x>>8)%100_000)
	}
	return 8 + int((x>>8)%100)
}

func text(acc uint64, to, k, size int) []byte {
	b := make([]byte, (size+7)/8*8)
	x := mix(acc, uint64(to), uint64(k))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	return b[:size]
}

func fold(acc uint64, b []byte) uint64 { return xxh3.Hash(b)*31 + acc*6364136223846793005 + 1 }
