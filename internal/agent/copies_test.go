package agent

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
)

// A snapshot may be brought twice: its answer was lost, or a pair of hosts was parted and is
// one again before there is another.
func TestASnapshotThatIsBroughtTwiceIsKept(t *testing.T) {
	area := func() *checkpoint.Area {
		a, err := checkpoint.Create(filepath.Join(t.TempDir(), "area"))
		require.NoError(t, err)
		t.Cleanup(func() { a.Close() })
		return a
	}
	copies := area()
	s := &shelf{area: copies, replica: checkpoint.NewReplica(copies)}
	bring := func(from *checkpoint.Area) error {
		d, err := from.Delta(nil, pieceLen)
		require.NoError(t, err)
		if err := s.begin(beginning{Number: d.Number, Lengths: d.Lengths}); err != nil {
			return err
		}
		for chunk, err := range d.Chunks() {
			require.NoError(t, err)
			require.NoError(t, s.put(piece{Part: chunk.Part, Off: chunk.Off, Bytes: len(chunk.Data)}, chunk.Data))
		}
		return s.commit(d.Number, d.Sums.Sum())
	}
	one, other := area(), area()
	require.NoError(t, one.Save(24, []byte("what it was")))
	require.NoError(t, bring(one))
	require.NoError(t, bring(one))
	require.NoError(t, other.Save(24, []byte("another")))
	require.ErrorIs(t, bring(other), checkpoint.ErrDiffers)
	require.NoError(t, one.Save(25, []byte("what it is")))
	require.NoError(t, bring(one))
	require.NoError(t, other.Save(26, []byte("newer")))
	require.NoError(t, bring(other))
	snap, err := copies.Latest()
	require.NoError(t, err)
	require.Equal(t, "newer", string(snap.Parts[0]))
}
