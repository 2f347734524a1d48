package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSumsAreThoseOfTheirMessages: also where a stream goes on from a capsule, so that
// the first that is remembered has a high number.
func TestSumsAreThoseOfTheirMessages(t *testing.T) {
	for _, first := range []uint64{1, 2, 63, 64, 65, 3000, 1 << 20} {
		var s sums
		known := 0
		for seq := first; seq < first+300; seq++ {
			s.add(seq, uint32(seq))
			for k := uint64(0); k <= seq; k += 1 + (seq-min(seq, k+1))/500 {
				if sum := s.at(k); sum != 0 {
					require.Equal(t, uint32(k), sum, "first %d, last %d: the sum of message %d", first, seq, k)
					known++
				}
			}
			require.Equal(t, uint32(seq), s.at(seq))
		}
		require.Greater(t, known, 300*200/2)
		require.Len(t, s.ring, 512, "it grows with what it holds")
	}
}
