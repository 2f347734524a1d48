package proof

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAProofIsForWhatItIsOf(t *testing.T) {
	secret, other := [16]byte{1}, [16]byte{1, 15: 1}
	p := Of(secret, "dial", []byte("ab"), []byte("c"))
	require.True(t, p.Is(p[:]))
	all := []Proof{p,
		Of(other, "dial", []byte("ab"), []byte("c")),
		Of(secret, "answer", []byte("ab"), []byte("c")),
		Of(secret, "dial", []byte("ab"), []byte("d")),
		Of(secret, "dial", []byte("a"), []byte("bc")),
		Of(secret, "dial", []byte("abc")),
		Of(secret, "dialab", []byte("c")),
	}
	for i, a := range all {
		for j, b := range all {
			require.Equal(t, i == j, a.Is(b[:]), "%d and %d", i, j)
		}
	}
	require.False(t, p.Is(p[:Len-1]))
	require.False(t, p.Is(nil))
}
