//go:build linux

package checkpoint

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzOpen opens files with any bytes in them, of any length. With honest the
// records' sums are made to fit, so that what they say gets further.
func FuzzOpen(f *testing.F) {
	for _, n := range []uint64{1, 2, 3} {
		path := filepath.Join(f.TempDir(), "area")
		a, err := Create(path)
		require.NoError(f, err)
		for i := range n {
			require.NoError(f, save(a, i+1, []byte("some"), make([]byte, 100*i)))
		}
		slots := [2][]byte{}
		for i, s := range a.slots {
			if s.mem != nil {
				slots[i] = slices.Clone(s.mem[:300])
			}
		}
		f.Add(slices.Clone(a.header[:recordStart+recordSpan+48]), slots[0], slots[1], uint8(0), true)
		f.Add(slices.Clone(a.header[:recordStart+recordSpan+48]), slots[0], slots[1], uint8(2), false)
		a.Close()
	}
	f.Fuzz(func(t *testing.T, header, zero, one []byte, short uint8, honest bool) {
		path := filepath.Join(directory(t), "area")
		file, err := os.Create(path)
		require.NoError(t, err)
		defer file.Close()
		if len(header) > pageLen {
			header = header[:pageLen]
		}
		if honest && len(header) >= recordStart+recordSpan+48 {
			for i, table := range [][]byte{zero, one} {
				rec := header[recordStart+i*recordSpan:][:48]
				words := [5]uint64{}
				for k := range words {
					words[k] = binary.NativeEndian.Uint64(rec[8*k:])
				}
				n := min(8*words[2], uint64(len(table)))
				binary.NativeEndian.PutUint64(rec[40:], sumOf(table[:n], words))
			}
		}
		end := int64(0)
		for _, piece := range []struct {
			at   int64
			data []byte
		}{{0, header}, {slotStart, zero}, {slotStart + slotSpan, one}} {
			_, err := file.WriteAt(piece.data, piece.at)
			require.NoError(t, err)
			if len(piece.data) > 0 {
				end = piece.at + int64(len(piece.data))
			}
		}
		switch short % 4 {
		case 1:
			require.NoError(t, file.Truncate(end-end/4))
		case 2:
			require.NoError(t, file.Truncate(int64(len(header))))
		case 3:
			require.NoError(t, file.Truncate(max(end, pageLen)))
		}
		a, err := Open(path)
		if err != nil {
			return
		}
		defer a.Close()
		last := uint64(0)
		if snap, err := a.Latest(); err == nil {
			last = snap.Number
			sums, err := a.Sums(last)
			d, again := a.Delta(nil, 100)
			require.Equal(t, snap.Verify(), err)
			require.Equal(t, err, again)
			if err == nil {
				require.Equal(t, sums, d.Sums)
				n := int64(0)
				for c, err := range d.Chunks() {
					require.NoError(t, err)
					n += int64(len(c.Data))
				}
				require.Equal(t, d.Bytes, n)
			}
		}
		if last+1 == 0 {
			return
		}
		require.NoError(t, save(a, last+1, []byte("new")))
		requireLatest(t, openArea(t, path), last+1, "new")
		if last > 0 {
			require.True(t, a.Has(last), "the latest was overwritten")
		}
	})
}

func FuzzOpenDeterminants(f *testing.F) {
	path := filepath.Join(f.TempDir(), "determinants")
	d, err := CreateDeterminants(path)
	require.NoError(f, err)
	for i := range uint64(5) {
		require.NoError(f, d.Append(determinantOf(i)))
	}
	require.NoError(f, d.Truncate(2))
	f.Add(slices.Clone(d.header[:firstWord+8]), slices.Clone(d.mem[:6*recordLen]), uint64(leastRing), uint64(2), true)
	f.Add(slices.Clone(d.header[:firstWord+8]), slices.Clone(d.mem[:6*recordLen]), uint64(1), uint64(mostNumber), false)
	d.Close()
	f.Fuzz(func(t *testing.T, header, records []byte, ring, first uint64, honest bool) {
		path := filepath.Join(directory(t), "determinants")
		header = slices.Concat(header, make([]byte, pageLen))[:pageLen]
		if honest {
			binary.NativeEndian.PutUint64(header[ringWord:], pack(ring&(1<<48-1)))
			binary.NativeEndian.PutUint64(header[firstWord:], pack(first&(1<<48-1)))
		}
		require.NoError(t, os.WriteFile(path, slices.Concat(header, records), 0o600))
		if honest {
			require.NoError(t, os.Truncate(path, pageLen+int64(leastRing*recordLen)))
		}
		d, err := OpenDeterminants(path)
		if err != nil {
			return
		}
		defer d.Close()
		n, end := d.First(), d.Len()
		for i := range d.From(0) {
			require.Equal(t, n, i)
			n++
		}
		require.Equal(t, end, n)
		require.NoError(t, d.Append(determinantOf(end)))
		got, ok := openDeterminants(t, path).At(end)
		require.True(t, ok)
		require.Equal(t, determinantOf(end), got)
		require.Equal(t, end+1, d.Len(), "what was behind a damaged record came back")
	})
}
