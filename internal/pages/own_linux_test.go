package pages

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOwnMemoryIsPrivateAndNoFiles(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/file")
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(3*page)))
	const private, shared, anonymous = unix.MAP_PRIVATE, unix.MAP_SHARED, unix.MAP_ANONYMOUS
	for _, c := range []struct {
		name   string
		middle func(p unsafe.Pointer) // what becomes of the second of three pages
		own    bool
	}{
		{"all private", func(unsafe.Pointer) {}, true},
		{"of another mode", func(p unsafe.Pointer) { unix.Mprotect(unsafe.Slice((*byte)(p), page), unix.PROT_READ) }, true},
		{"shared", func(p unsafe.Pointer) { remapped(t, -1, p, shared|anonymous) }, false},
		{"a file's, shared", func(p unsafe.Pointer) { remapped(t, int(f.Fd()), p, shared) }, false},
		{"a file's, private", func(p unsafe.Pointer) { remapped(t, int(f.Fd()), p, private) }, false},
		{"none", func(p unsafe.Pointer) { require.NoError(t, unix.MunmapPtr(p, uintptr(page))) }, false},
	} {
		p, err := unix.MmapPtr(-1, 0, nil, uintptr(3*page), unix.PROT_READ|unix.PROT_WRITE, private|anonymous)
		require.NoError(t, err)
		c.middle(unsafe.Add(p, page))
		all := unsafe.Slice((*byte)(p), 3*page)
		require.Equal(t, c.own, Own(all), c.name)
		require.True(t, Own(all[:page]), "%s: what is before", c.name)
		require.True(t, Own(all[2*page:][:1]), "%s: what is behind", c.name)

		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		lines := func() func(uint64) (mapping, bool) { return read(strings.NewReader(string(maps))) }
		require.Equal(t, c.own, ownBy(lines(), all), "%s, as the lines tell it", c.name)
		require.True(t, ownBy(lines(), all[2*page:]), "%s: what is behind, as the lines tell it", c.name)
		require.NoError(t, unix.MunmapPtr(p, uintptr(3*page)))
	}
}

func remapped(t *testing.T, fd int, p unsafe.Pointer, flags int) {
	_, err := unix.MmapPtr(fd, 0, p, uintptr(page), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	require.NoError(t, err)
}

func BenchmarkOwn(b *testing.B) {
	mem := make([]byte, 1<<20)
	for b.Loop() {
		if !Own(mem) {
			b.Fatal("memory of the heap is somebody else's")
		}
	}
}
