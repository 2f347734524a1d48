package dirty

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func open(t testing.TB) *Book {
	b, err := Open()
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// covered tells whether each byte of what was written to is in a range.
func covered(ranges []Range, at int) bool {
	for _, r := range ranges {
		if r.From <= at && at < r.To {
			return true
		}
	}
	return false
}

func TestWhatIsWrittenIsSeenOnce(t *testing.T) {
	b, page := open(t), os.Getpagesize()
	mem := make([]byte, 64*page+100)[50:] // no page of its own at either end
	require.NoError(t, b.Watch(mem))
	calm, err := b.Written(mem)
	require.NoError(t, err)
	require.Less(t, Total(calm), 2*page, "the ends alone")

	mem[10*page], mem[40*page+17], mem[41*page] = 1, 2, 3
	seen, err := b.Written(mem)
	require.NoError(t, err)
	for _, at := range []int{10 * page, 40*page + 17, 41 * page, 0, len(mem) - 1} {
		require.True(t, covered(seen, at), "byte %d", at)
	}
	require.Less(t, Total(seen), 6*page)
	again, err := b.Written(mem)
	require.NoError(t, err)
	require.Equal(t, calm, again)
	runtime.KeepAlive(mem)
}

// A copy that is kept up by ranges alone is the same in the end, while a goroutine writes.
func TestACopyFollows(t *testing.T) {
	b := open(t)
	mem := make([]byte, 4<<20)
	require.NoError(t, b.Watch(mem))
	into := make([]byte, len(mem))
	copy(into, mem)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		for range rng.IntN(300) {
			at := rng.IntN(len(mem))
			for i := at; i < min(at+rng.IntN(9000), len(mem)); i++ {
				mem[i] = byte(rng.Uint32())
			}
		}
		if rng.IntN(5) == 0 {
			runtime.GC()
		}
		ranges, err := b.Written(mem)
		require.NoError(t, err)
		for _, r := range ranges {
			copy(into[r.From:r.To], mem[r.From:r.To])
		}
		require.True(t, string(into) == string(mem))
	}
}

// What the system writes for a program is seen, too.
func TestAReadIntoMemoryIsSeen(t *testing.T) {
	b, page := open(t), os.Getpagesize()
	mem := make([]byte, 16*page)
	require.NoError(t, b.Watch(mem))
	f, err := os.Open("/dev/urandom")
	require.NoError(t, err)
	defer f.Close()
	n, err := f.Read(mem[5*page : 7*page])
	require.NoError(t, err)
	seen, err := b.Written(mem)
	require.NoError(t, err)
	require.True(t, covered(seen, 5*page) && covered(seen, 5*page+n-1))
}

func TestSmallPiecesAreAlwaysWritten(t *testing.T) {
	b := open(t)
	mem := make([]byte, 100)
	require.NoError(t, b.Watch(mem))
	seen, err := b.Written(mem)
	require.NoError(t, err)
	require.Equal(t, []Range{{0, 100}}, seen)
}

func TestNobodyWatchesMemoryThatIsNot(t *testing.T) {
	b := open(t)
	_, err := b.Written(make([]byte, 1<<20))
	require.Error(t, err)
}

// The book is of one mapping: what is written through another is not in it.
func TestSharedMemoryIsNotWatched(t *testing.T) {
	b := open(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(1<<20))
	mem, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	require.Error(t, b.Watch(mem))
	anonymous, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(anonymous)
	require.Error(t, b.Watch(anonymous), "a child may have it, too")
}

func TestMemoryIsWatchedAgain(t *testing.T) {
	b, page := open(t), os.Getpagesize()
	mem := make([]byte, 64*page)
	require.NoError(t, b.Watch(mem))
	require.NoError(t, b.Unwatch(mem))
	mem[10*page] = 1
	_, err := b.Written(mem)
	require.Error(t, err, "nobody watches")
	require.NoError(t, b.Watch(mem))
	mem[20*page] = 1
	seen, err := b.Written(mem)
	require.NoError(t, err)
	require.True(t, covered(seen, 20*page))
	require.False(t, covered(seen, 10*page), "that was before")
}

func BenchmarkWritten(b *testing.B) {
	const size = 256 << 20
	for _, c := range []struct {
		name  string
		every int
	}{{"nothing", 0}, {"1% of pages", 100}, {"every page", 1}} {
		b.Run(c.name, func(b *testing.B) {
			book := open(b)
			mem := make([]byte, size)
			for i := range mem {
				mem[i] = 1
			}
			require.NoError(b, book.Watch(mem))
			b.SetBytes(size)
			for b.Loop() {
				if c.every > 0 {
					for i := 0; i < size; i += 4096 * c.every {
						mem[i]++
					}
				}
				if _, err := book.Written(mem); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
