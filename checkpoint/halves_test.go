package checkpoint

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASnapshotInTwoHalves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "area")
	a, err := Create(path)
	require.NoError(t, err)
	defer a.Close()
	reader, err := Open(path)
	require.NoError(t, err)
	defer reader.Close()
	latest := func() Snapshot {
		s, err := reader.Latest()
		require.NoError(t, err)
		return s
	}
	state, log := bytes.Repeat([]byte("state"), 1000), bytes.Repeat([]byte("log"), 100_000) // which needs more room than was reserved
	require.ErrorContains(t, a.End(log), "none was begun")

	require.NoError(t, save(a, 1, state, nil))
	require.NoError(t, a.Begin(2, Part{Bytes: state}, Part{Bytes: []byte("more")}))
	require.EqualValues(t, 1, latest().Number, "the second half is missing")
	require.NoError(t, a.End(log))
	got := latest()
	require.EqualValues(t, 2, got.Number)
	require.Equal(t, [][]byte{state, []byte("more"), log}, got.Parts)

	require.NoError(t, a.Begin(3, Part{Bytes: state}))
	require.NoError(t, a.Begin(4, Part{Bytes: []byte("other")}), "what was begun before is forgotten")
	require.ErrorIs(t, a.Begin(2), ErrNumber)
	require.NoError(t, a.Begin(5))
	require.NoError(t, a.End(nil))
	require.Equal(t, [][]byte{{}}, latest().Parts)

	require.NoError(t, a.Begin(6, Part{Bytes: state}))
	require.NoError(t, save(a, 7, state))
	require.ErrorContains(t, a.End(log), "none was begun")
	require.EqualValues(t, 7, latest().Number)

	require.NoError(t, a.Begin(8, Part{Bytes: state}))
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.End(log), ErrClosed)
	require.EqualValues(t, 7, latest().Number)
}
