//go:build linux

package checkpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// directory is one on tmpfs where there is one.
func directory(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "mpiv-checkpoint-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newArea(t testing.TB) (*Area, string) {
	path := filepath.Join(directory(t), "rank.0")
	a, err := Create(path)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a, path
}

func openArea(t testing.TB, path string) *Area {
	a, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

func requireLatest(t testing.TB, a *Area, number uint64, parts ...string) {
	t.Helper()
	snap, err := a.Latest()
	require.NoError(t, err)
	require.Equal(t, number, snap.Number)
	require.Len(t, snap.Parts, len(parts))
	for i, p := range parts {
		require.Equal(t, p, string(snap.Parts[i]))
	}
}

// save is a snapshot begun and ended. One of no parts has an empty one.
func save(a *Area, number uint64, parts ...[]byte) error {
	if len(parts) == 0 {
		parts = [][]byte{nil}
	}
	var first []Part
	last := len(parts) - 1
	for _, p := range parts[:last] {
		first = append(first, Part{Bytes: p})
	}
	if err := a.Begin(number, first...); err != nil {
		return err
	}
	return a.End(parts[last])
}

func TestOthersFindTheLatestSnapshot(t *testing.T) {
	a, path := newArea(t)
	b := openArea(t, path)
	for _, area := range []*Area{a, b} {
		_, err := area.Latest()
		require.ErrorIs(t, err, ErrNone)
	}
	require.NoError(t, save(a, 1, []byte("one"), nil, []byte("eins")))
	for _, area := range []*Area{a, b, openArea(t, path)} {
		requireLatest(t, area, 1, "one", "", "eins")
	}
	one, err := b.Latest()
	require.NoError(t, err)
	require.NoError(t, save(a, 7))
	require.Equal(t, "one", string(one.Parts[0]), "gone after one more")
	require.True(t, b.Has(1))
	long := string(bytes.Repeat([]byte("x"), 3<<20+1))
	require.NoError(t, save(a, 8, []byte("head"), []byte(long)))
	require.False(t, b.Has(1))
	require.True(t, b.Has(7))
	for _, area := range []*Area{a, b, openArea(t, path)} {
		requireLatest(t, area, 8, "head", long)
	}
	require.Len(t, one.Parts[0], 3)
	_ = one.Parts[0][2] // still memory, though it says something else
}

func TestASuccessorGoesOn(t *testing.T) {
	a, path := newArea(t)
	require.NoError(t, save(a, 1, []byte("a")))
	require.NoError(t, save(a, 2, []byte("b")))
	b := openArea(t, path)
	require.ErrorIs(t, save(b, 3, []byte("c")), ErrBusy)
	require.NoError(t, a.Close())
	require.ErrorIs(t, save(b, 2, []byte("c")), ErrNumber)
	require.NoError(t, save(b, 3, []byte("c")))
	requireLatest(t, b, 3, "c")
	require.True(t, b.Has(2), "the latest was overwritten, not the older")
}

func TestWhatIsRefused(t *testing.T) {
	a, path := newArea(t)
	_, err := Create(path)
	require.ErrorIs(t, err, fs.ErrExist)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1, "Create leaves something beside the file")

	require.ErrorIs(t, save(a, 0), ErrNumber)
	require.NoError(t, save(a, 5))
	require.ErrorIs(t, save(a, 5), ErrNumber)
	require.ErrorContains(t, save(a, 6, make([][]byte, maxParts+1)...), "parts")
	_, _, err = layout(nil, []int64{-1})
	require.ErrorContains(t, err, "part 0 of -1 bytes")
	_, _, err = layout(nil, []int64{maxBytes, 1})
	require.ErrorContains(t, err, "part 0")
	requireLatest(t, a, 5, "")

	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, save(a, 6), ErrClosed)
	_, err = a.Latest()
	require.ErrorIs(t, err, ErrClosed)
	_, err = a.Sums(5)
	require.ErrorIs(t, err, ErrClosed)
	require.False(t, a.Has(5))

	requireLatest(t, openArea(t, path), 5, "")
	require.NoError(t, os.Remove(path))
	_, err = Open(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("what is this"), 0o600))
	_, err = Open(path)
	require.ErrorIs(t, err, ErrCorrupt)
}

// damage changes a byte of the file.
func damage(t testing.TB, path string, at int64) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
}

func TestADamagedRecordLeavesTheOlderSnapshot(t *testing.T) {
	for at := range int64(6 * 8) {
		a, path := newArea(t)
		require.NoError(t, save(a, 1, []byte("a")))
		require.NoError(t, save(a, 2, []byte("b")))
		a.Close()
		damage(t, path, recordStart+int64(a.latest)*recordSpan+at)
		b := openArea(t, path)
		requireLatest(t, b, 1, "a")
		require.NoError(t, save(b, 2, []byte("again")))
		requireLatest(t, b, 2, "again")
		require.True(t, b.Has(1))
	}
}

func TestWhenNoRecordIsWholeThereIsAnError(t *testing.T) {
	a, path := newArea(t)
	require.NoError(t, save(a, 1, []byte("a")))
	require.NoError(t, save(a, 2, []byte("b")))
	a.Close()
	damage(t, path, recordStart+8)
	damage(t, path, slotStart+slotSpan) // of the table
	b := openArea(t, path)
	_, err := b.Latest()
	require.ErrorIs(t, err, ErrCorrupt)
	require.NoError(t, save(b, 1, []byte("anew")))
	requireLatest(t, b, 1, "anew")
}

func TestSaveAllocatesNothing(t *testing.T) {
	a, _ := newArea(t)
	first, last := []Part{{Bytes: make([]byte, 100)}}, make([]byte, 100<<10)
	number := uint64(0)
	save := func() {
		number++
		if err := errors.Join(a.Begin(number, first...), a.End(last)); err != nil {
			t.Error(err)
		}
	}
	save()
	save()
	require.Zero(t, testing.AllocsPerRun(100, save))
}

func TestRoomIsAnEighthMoreAtMost(t *testing.T) {
	for n := int64(1); n < maxBytes; n += n/3 + 1 {
		r := room(n)
		require.GreaterOrEqual(t, r, n)
		require.LessOrEqual(t, r, max(n+n/8+1, n+pageLen), "room(%d)", n)
		require.Zero(t, r%pageLen)
	}
	require.LessOrEqual(t, room(maxBytes), int64(slotSpan))
}

// What a reader is told is there while another saves is there.
func TestReadersSeeWholeSnapshotsWhileOneSaves(t *testing.T) {
	a, path := newArea(t)
	b := openArea(t, path)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := save(a, n, stateOf(n)...); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	last, whole := uint64(0), 0
	for whole < 500 {
		snap, err := b.Latest()
		if err != nil {
			require.True(t, last == 0 && errors.Is(err, ErrNone) || errors.Is(err, ErrGone), "Latest: %v", err)
			continue
		}
		require.GreaterOrEqual(t, snap.Number, last)
		last = snap.Number
		err = checkState(snap)
		if b.Has(snap.Number) {
			require.NoError(t, err)
			whole++
		}
	}
	close(stop)
	<-done
	snap, err := b.Latest()
	require.NoError(t, err)
	require.NoError(t, checkState(snap))
}
