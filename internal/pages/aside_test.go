package pages

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What was set aside comes to be where the program wants it, wherever that is.
func TestMemoryMovesIntoPlace(t *testing.T) {
	for _, n := range []int{1, 4095, 4096, 4097, 1 << 20, 5<<20 + 123} {
		for _, skip := range []int{0, 16, 4096, 4112} {
			b, err := Aside(n)
			require.NoError(t, err)
			movesInto(t, b, skip)
		}
	}
}

// movesInto moves b into the middle of other memory, skip bytes from where that begins.
func movesInto(t *testing.T, b []byte, skip int) {
	n := len(b)
	for i := range b {
		b[i] = byte(i * 7 / 5)
	}
	heap := make([]byte, n+skip+100)
	into := heap[skip : skip+n]
	MoveInto(into, b)
	runtime.GC()
	for i := range into {
		if into[i] != byte(i*7/5) {
			t.Fatalf("%d bytes, %d on: byte %d is %d", n, skip, i, into[i])
		}
	}
	for i, x := range heap[skip+n:] {
		require.Zero(t, x, "byte %d beyond", i)
	}
	into[0], into[n-1] = 1, 2 // it is the program's
}

// Memory that is shared stays so: what comes there is in its other mappings.
func TestSharedMemoryStaysShared(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	const n = 1 << 20
	require.NoError(t, f.Truncate(n))
	var both [2][]byte
	for i := range both {
		both[i], err = unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		defer unix.Munmap(both[i])
	}
	b, err := Aside(n)
	require.NoError(t, err)
	b[0], b[n-1] = 1, 2
	MoveInto(both[0], b)
	require.Equal(t, []byte{1, 2}, []byte{both[1][0], both[1][n-1]})

	var r Reserve
	r.Fill(n, nil)
	defer r.Empty()
	r.Under(both[0])
	both[0][0] = 3
	require.Equal(t, byte(3), both[1][0])
}
