package pages

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// resident is how many bytes of b have memory.
func resident(t *testing.T, b []byte) (n int) {
	t.Helper()
	core := make([]byte, len(b)/page)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(at(b)), uintptr(len(b)), uintptr(at(core)))
	require.Zero(t, errno)
	for _, c := range core {
		n += int(c&1) * page
	}
	return n
}

func fill(r *Reserve, n int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Fill(n, nil)
	}()
	<-done
}

func TestAReserveHasMemoryThatIsThere(t *testing.T) {
	var r Reserve
	defer r.Empty()
	_, there := r.Aside(1)
	require.False(t, there)
	fill(&r, 8<<20+1)
	require.Len(t, r.left, 8<<20+page)

	b, there := r.Aside(3<<20 + 5) // of 4 MiB
	require.True(t, there)
	require.Equal(t, 3<<20, resident(t, b[:3<<20]))
	movesInto(t, b, 4096)
	c, there := r.Aside(1 << 20)
	require.True(t, there)
	movesInto(t, c, 16)

	_, there = r.Aside(5 << 20)
	require.False(t, there)
	require.False(t, r.Under(make([]byte, 5<<20)))
}

// What is put under memory is zero, and is there.
func TestAReserveGoesUnderMemory(t *testing.T) {
	var r Reserve
	defer r.Empty()
	fill(&r, 4<<20)
	heap := make([]byte, 4<<20)
	for i := range heap {
		heap[i] = 7
	}
	require.False(t, r.Under(heap[:underFrom-1]), "too short")
	require.False(t, r.Under(heap[16:1<<20]), "within a page")
	into := heap[8192:][:2<<20+100]
	require.True(t, r.Under(into))
	for i, x := range heap {
		want := byte(7)
		if i >= 8192 && i < 8192+2<<20 {
			want = 0
		}
		if x != want {
			t.Fatalf("byte %d is %d", i, x)
		}
	}
	into[5] = 1
}

// A reserve of which some was taken is filled again, and keeps what is left.
func TestAReserveIsFilledAgain(t *testing.T) {
	var r Reserve
	fill(&r, 4<<20)
	taken, _ := r.Aside(3 << 20)
	taken[0], taken[3<<20-1] = 1, 2
	fill(&r, 6<<20)
	require.Len(t, r.left, 6<<20)
	require.Equal(t, 6<<20, resident(t, r.left))
	require.Equal(t, []byte{1, 2}, []byte{taken[0], taken[3<<20-1]})
	GiveBack(taken)
	r.Empty()
	require.Empty(t, r.left)
	_, there := r.Aside(1)
	require.False(t, there)
	fill(&r, 1<<20)
	require.Len(t, r.left, 1<<20)
	r.Empty()
}

// Who takes, empties and ends while it is filled gets memory of his own, or none.
func TestAReserveIsUsedWhileItIsFilled(t *testing.T) {
	for range 20 {
		var r Reserve
		stopped := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Fill(64<<20, stopped)
		}()
		var taken [][]byte
		for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
			if b, there := r.Aside(300 << 10); there {
				require.Zero(t, b[len(b)-1])
				b[0], b[len(b)-1] = byte(len(taken)), 1
				taken = append(taken, b)
			}
		}
		r.Empty()
		close(stopped)
		<-done
		require.Empty(t, r.left)
		for i, b := range taken {
			require.Equal(t, byte(i), b[0])
			GiveBack(b)
		}
	}
}

// All who fill at once leave half of what the host could give.
func TestAReserveLeavesHalfToOthers(t *testing.T) {
	var r Reserve
	defer r.Empty()
	has := int64(100 << 20)
	done := make(chan bool)
	go func() {
		done <- r.fill(4*lookEvery*step, nil, func() (int64, bool) { // 70, 40, 10
			has -= 30 << 20
			return has, true
		})
	}()
	require.True(t, <-done)
	require.Len(t, r.left, lookEvery*step)
	b, there := r.Aside(lookEvery * step)
	require.True(t, there)
	b[0], b[len(b)-1] = 1, 2
	GiveBack(b)
}

func TestAvailableMemoryIsKnown(t *testing.T) {
	n, known := Available()
	require.True(t, known)
	require.Greater(t, n, int64(1<<20))
}
