//go:build linux

package checkpoint

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func newDeterminants(t testing.TB) (*Determinants, string) {
	path := filepath.Join(directory(t), "rank.0.determinants")
	d, err := CreateDeterminants(path)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d, path
}

func openDeterminants(t testing.TB, path string) *Determinants {
	d, err := OpenDeterminants(path)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// requireRange checks that d has determinants first to end-1, and no others.
func requireRange(t testing.TB, d *Determinants, first, end uint64) {
	t.Helper()
	next := first
	for i, rec := range d.From(0) {
		if i != next || rec != determinantOf(i) {
			t.Fatalf("From yields %d: %v, want %d: %v", i, rec, next, determinantOf(next))
		}
		next++
	}
	require.Equal(t, end, next)
	require.Equal(t, first, d.First())
	require.Equal(t, end, d.Len())
	if first > 0 {
		_, ok := d.At(first - 1)
		require.False(t, ok, "what was truncated is there")
	}
	_, ok := d.At(end)
	require.False(t, ok)
	require.NoError(t, d.Err())
}

func TestOthersFindDeterminants(t *testing.T) {
	d, path := newDeterminants(t)
	others := openDeterminants(t, path)
	requireRange(t, others, 0, 0)
	rng := rand.New(rand.NewPCG(1, 1))
	first, end := uint64(0), uint64(0)
	for range 60 {
		for range rng.IntN(3000) {
			require.NoError(t, d.Append(determinantOf(end)))
			end++
		}
		first += rng.Uint64N(end-first+1) * rng.Uint64N(2)
		require.NoError(t, d.Truncate(first))
		requireRange(t, d, first, end)
		requireRange(t, others, first, end)
	}
	require.Greater(t, d.mask+1, uint64(leastRing), "the ring never grew")
	require.Greater(t, end, 2*(d.mask+1), "nor went round")
	requireRange(t, openDeterminants(t, path), first, end)

	require.NoError(t, d.Truncate(first-1))
	require.NoError(t, d.Truncate(end+1000))
	requireRange(t, d, end, end)
	requireRange(t, others, end, end)
}

func TestASuccessorAppends(t *testing.T) {
	d, path := newDeterminants(t)
	for i := range uint64(100) {
		require.NoError(t, d.Append(determinantOf(i)))
	}
	other := openDeterminants(t, path)
	require.ErrorIs(t, other.Append(determinantOf(100)), ErrBusy)
	require.ErrorIs(t, other.Truncate(3), ErrBusy)
	requireRange(t, other, 0, 100)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Append(Determinant{}), ErrClosed)
	require.ErrorIs(t, d.Truncate(3), ErrClosed)
	_, ok := d.At(1)
	require.False(t, ok)
	require.NoError(t, other.Append(determinantOf(100)))
	requireRange(t, other, 0, 101)

	_, err := CreateDeterminants(path)
	require.ErrorIs(t, err, fs.ErrExist)
	_, err = Open(path)
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestADamagedRecordEndsTheList(t *testing.T) {
	for at := range int64(recordLen) {
		d, path := newDeterminants(t)
		for i := range uint64(10) {
			require.NoError(t, d.Append(determinantOf(i)))
		}
		d.Close()
		damage(t, path, pageLen+4*int64(recordLen)+at)
		d = openDeterminants(t, path)
		requireRange(t, d, 0, 4)
		require.NoError(t, d.Append(determinantOf(4)))
		d.Close()
		requireRange(t, openDeterminants(t, path), 0, 5) // 5 to 9 do not come back; who appends would not look there
	}
}

// What is behind a damaged record would be lost in silence.
func TestADamagedRecordIsTold(t *testing.T) {
	d, path := newDeterminants(t)
	require.NoError(t, d.Whole())
	for i := range 10 {
		require.NoError(t, d.Append(Determinant{Seq: uint64(i)}))
	}
	require.NoError(t, d.Whole())
	require.NoError(t, openDeterminants(t, path).Whole())
	damage(t, path, pageLen+9*int64(recordLen))
	require.NoError(t, openDeterminants(t, path).Whole(), "the last may be one that a kill has torn")
	damage(t, path, pageLen+9*int64(recordLen)) // as it was
	for _, at := range []int64{8, 4} {          // one is behind it, or several are
		damage(t, path, pageLen+at*int64(recordLen))
		require.ErrorIs(t, openDeterminants(t, path).Whole(), ErrCorrupt)
	}
}

func TestADamagedHeaderIsAnError(t *testing.T) {
	for _, at := range []int64{0, ringWord, ringWord + 2, ringWord + 7, firstWord, firstWord + 2, firstWord + 6} {
		d, path := newDeterminants(t)
		require.NoError(t, d.Append(determinantOf(0)))
		reader := openDeterminants(t, path)
		d.Close()
		damage(t, path, at)
		_, err := OpenDeterminants(path)
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
		if at > 0 {
			_, ok := reader.At(0)
			require.False(t, ok)
			require.ErrorIs(t, reader.Err(), ErrCorrupt)
		}
	}
	_, path := newDeterminants(t)
	require.NoError(t, os.Truncate(path, pageLen+100))
	_, err := OpenDeterminants(path)
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestDeterminantsAreFollowedWhileTheyAreAppended(t *testing.T) {
	d, path := newDeterminants(t)
	reader := openDeterminants(t, path)
	const n = 300_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(n) {
			if err := d.Append(determinantOf(i)); err != nil {
				t.Error(err)
				return
			}
			if i%10_000 == 9_999 {
				if err := d.Truncate(i - i/3%5000); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	next := uint64(0)
	for next < n {
		for i, rec := range reader.From(next) {
			require.GreaterOrEqual(t, i, next)
			if rec != determinantOf(i) {
				t.Fatalf("determinant %d = %v", i, rec)
			}
			next = i + 1
		}
		require.NoError(t, reader.Err())
		select {
		case <-done:
			next = max(next, reader.First())
			if next == reader.Len() {
				require.EqualValues(t, n, next)
			}
		default:
		}
	}
	<-done
}

func TestAppendAllocatesNothing(t *testing.T) {
	d, _ := newDeterminants(t)
	i := uint64(0)
	one := func() {
		if err := d.Append(determinantOf(i)); err != nil {
			t.Error(err)
		}
		i++
	}
	one()
	require.Zero(t, testing.AllocsPerRun(1000, one))
}

// A blank becomes the list of whoever turns out to need one, in place of what was there; unused, it leaves nothing.
func TestABlankTakesAListsPlace(t *testing.T) {
	dir := t.TempDir()
	path, blank := filepath.Join(dir, "list"), filepath.Join(dir, "blank")
	require.NoError(t, os.WriteFile(blank, []byte("left by one that was killed"), 0o600))
	for round := range uint64(3) {
		b, err := NewBlank(blank)
		require.NoError(t, err)
		_, err = OpenDeterminants(blank)
		require.NoError(t, err)
		var records []Determinant
		for i := range round * leastRing { // none, what it has room for, and more
			records = append(records, determinantOf(i))
		}
		d, err := b.Replace(path, records)
		require.NoError(t, err)
		require.NoFileExists(t, blank)
		others := openDeterminants(t, path)
		requireRange(t, others, 0, round*leastRing)
		require.NoError(t, d.Append(determinantOf(round*leastRing)))
		requireRange(t, others, 0, round*leastRing+1)
		require.NoError(t, d.Close())
	}
	b, err := NewBlank(blank)
	require.NoError(t, err)
	b.Discard()
	require.NoFileExists(t, blank)

	b, err = NewBlank(blank)
	require.NoError(t, err)
	_, err = b.Replace(filepath.Join(dir, "nowhere", "list"), nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, blank)
}
