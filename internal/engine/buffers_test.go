package engine

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func buffersOf(s *slabs) *buffers { return &buffers{slabs: s} }

func TestBuffersAreApart(t *testing.T) {
	b := buffersOf(new(slabs))
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{1, 512, 513, 4 << 10, 16<<10 + 1, 64 << 10, slabMost, slabMost + 1}
	held := make([][]byte, 0, 1000)
	for range 2 { // fresh, then those again
		for i := range cap(held) {
			s := b.get(sizes[random.IntN(len(sizes))])
			full := s[:cap(s)]
			for k := range full {
				full[k] = byte(i)
			}
			held = append(held, s)
		}
		for i, s := range held {
			require.Equal(t, cap(s), bytes.Count(s[:cap(s)], []byte{byte(i)}), "buffer %d of %d bytes", i, len(s))
			b.put(s)
		}
		held = held[:0]
	}
}

func TestABufferIsUsedAgain(t *testing.T) {
	b := buffersOf(new(slabs))
	first := b.get(5000)
	b.put(first)
	require.Same(t, &first[0], &b.get(8000)[0], "of the same size, 8 KiB")
}

// However much comes at once, what is kept of it keeps few slabs from being garbage.
func TestFewBuffersAreOfSlabs(t *testing.T) {
	s := new(slabs)
	b := buffersOf(s)
	b.get(slabFrom) // from here on it is worth it
	fromSlab := func(n int) bool {
		before := len(s.rest)
		b.get(n)
		return len(s.rest) != before
	}
	require.False(t, fromSlab(slabMost+1))
	for _, size := range []int{4 << 10, 64 << 10} {
		got := 0
		for range 3 * classBytes / size {
			if fromSlab(size) {
				got += size
			}
		}
		require.Equal(t, classBytes, got, size)
	}
}
