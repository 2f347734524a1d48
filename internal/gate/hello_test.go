//go:build linux

package gate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatAHelloLooksLike(t *testing.T) {
	first := hello(t)
	for n := range first {
		need, ok := TLS(first[:n])
		require.True(t, ok, n)
		require.Greater(t, need, n)
	}
	need, ok := TLS(first)
	require.True(t, ok)
	require.Equal(t, len(first), need)
	for _, at := range []int{0, 1, 3, 4, 5, 6, 7, 8, 9, 10} {
		b := append([]byte{}, first...)
		b[at] ^= 0x80
		_, ok := TLS(b)
		require.False(t, ok, "byte %d is another", at)
	}
	_, ok = TLS([]byte{22, 3, 1, 0xff, 0xff, 1, 0, 0xff, 0xfb, 3, 3})
	require.False(t, ok, "64 KiB are no hello")

	magic := Magic("mpiv", 40)
	need, ok = magic([]byte("mp"))
	require.True(t, ok)
	require.Equal(t, 40, need)
	_, ok = magic([]byte("mpjv"))
	require.False(t, ok)
}

// FuzzFirst: who was refused stays refused whatever follows, and what is asked for is
// within bounds and settled once it is known.
func FuzzFirst(f *testing.F) {
	f.Add(hello(f), uint16(7))
	f.Add([]byte{22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3}, uint16(3))
	f.Add([]byte("mpiv and so on"), uint16(2))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		part := b[:min(int(cut), len(b))]
		for _, first := range []func([]byte) (int, bool){TLS, Magic("mpiv", 40)} {
			early, ok := first(part)
			need, still := first(b)
			if !ok {
				require.False(t, still, "what follows makes a member of a stranger")
				continue
			}
			if !still {
				continue
			}
			require.LessOrEqual(t, need, firstMost)
			require.GreaterOrEqual(t, need, early)
			if len(part) >= early {
				require.Equal(t, early, need, "it had all that it needed")
			}
		}
	})
}
