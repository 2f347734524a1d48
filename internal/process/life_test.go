package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
)

// Of a file whose latest snapshot was damaged the one before is found. What that lacks others
// have forgotten, so nobody goes on from it.
func TestNobodyGoesOnFromAnOlderSnapshotThanWasSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rank-0.1")
	a, err := checkpoint.Create(path)
	require.NoError(t, err)
	defer a.Close()
	for n := uint64(1); n <= 2; n++ {
		require.NoError(t, a.Begin(n, checkpoint.Part{}, checkpoint.Part{}))
		require.NoError(t, a.End([]byte("log")))
	}
	s, err := latest(a, 1) // of 2 nobody may have heard
	require.NoError(t, err)
	require.EqualValues(t, 2, s.Number)

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{77}, 1<<10+1<<9+8) // the number in the record of 2
	require.NoError(t, err)
	s, err = latest(a, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Number)
	_, err = latest(a, 2)
	require.ErrorIs(t, err, checkpoint.ErrCorrupt)
	require.ErrorContains(t, err, "it has snapshot 1, and no longer 2")
}
