//go:build linux

package hugepages

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapped is n bytes that begin at a page, in a mapping that ends where they do; each is what mark says.
func mapped(t *testing.T, n int) []byte {
	t.Helper()
	all, err := unix.Mmap(-1, 0, n+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(all) })
	at := uintptr(unsafe.Pointer(unsafe.SliceData(all)))
	mem := all[(at/page+1)*page-at:][:n:n]
	require.NoError(t, unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE))
	for i := range mem {
		mem[i] = mark(i)
	}
	return mem
}

func mark(i int) byte { return byte(i * 7 >> 3) }

// huge is how many bytes of the mapping that mem is in are in huge pages.
func huge(t *testing.T, mem []byte) (bytes int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	var from, to uintptr
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			continue
		}
		if from <= at && at < to && strings.HasPrefix(lines.Text(), "AnonHugePages:") {
			_, err := fmt.Sscanf(lines.Text(), "AnonHugePages: %d kB", &bytes)
			require.NoError(t, err)
			return bytes << 10
		}
	}
	t.Fatal("the mapping is in no line of smaps")
	return 0
}

// fresh is a beginning, with huge pages or a reason to skip.
func fresh(t *testing.T) {
	t.Helper()
	Begin()
	if began.Load() == nil {
		t.Skip("the system has no huge pages: /sys/kernel/mm/transparent_hugepage/enabled")
	}
	spent.Store(-int64(time.Hour)) // however slow this machine is today
	clear(used[:])
	probe := mapped(t, page)
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(unsafe.Pointer(&probe[0])), page, unix.MADV_COLLAPSE); errno != 0 {
		t.Skipf("this kernel makes no pages huge when asked (it takes Linux 6.1): %v", errno)
	}
}

func TestWhatIsCopiedAgainIsInHugePages(t *testing.T) {
	fresh(t)
	mem := mapped(t, 4*page)
	body := mem[page-4096:][:64<<10] // in two pages
	for range again / len(body) {
		require.Zero(t, huge(t, mem))
		Used(body)
	}
	Used(body)
	require.Equal(t, 2*page, huge(t, mem))
	for i, b := range mem {
		if b != mark(i) {
			t.Fatalf("byte %d has changed", i)
		}
	}
}

func TestLongBodiesAreSeenToTheSecondTime(t *testing.T) {
	fresh(t)
	mem := mapped(t, 3*page)
	Used(mem)
	require.Zero(t, huge(t, mem))
	Used(mem)
	require.Equal(t, 3*page, huge(t, mem))
	before := spent.Load()
	Used(mem)
	require.Equal(t, before, spent.Load())
}

func TestPagesAreSeenToAgain(t *testing.T) {
	fresh(t)
	mem := mapped(t, page)
	Used(mem)
	Used(mem)
	require.Equal(t, page, huge(t, mem))
	require.NoError(t, unix.Madvise(mem[:page/2], unix.MADV_DONTNEED)) // as who gives memory back
	require.Zero(t, huge(t, mem))
	for n := 0; n < anew; n += again {
		require.Zero(t, huge(t, mem))
		Used(mem)
	}
	Used(mem)
	require.Equal(t, page, huge(t, mem))
}

func TestWhatCannotBeHugeStaysAsItIs(t *testing.T) {
	fresh(t)
	mem := mapped(t, page)
	require.NoError(t, unix.Mprotect(mem[page/2:], unix.PROT_READ)) // two kinds
	for range 3 {
		Used(mem)
	}
	require.Zero(t, huge(t, mem))
	require.Equal(t, mark(5), mem[5])
}

func TestAHundredthOfTheTime(t *testing.T) {
	was := spent.Load()
	defer spent.Store(was)
	spent.Store(int64(credit))
	require.True(t, mayTake(0))
	spent.Store(int64(credit + 10*time.Millisecond))
	require.False(t, mayTake(900*time.Millisecond))
	require.True(t, mayTake(time.Second))
}

func BenchmarkUsed(b *testing.B) {
	Begin()
	mem := make([]byte, 64<<10)
	for b.Loop() {
		Used(mem)
	}
}
