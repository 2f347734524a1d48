package checkpoint_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
)

// What was found stays readable, be it overwritten, when its slot has become longer.
func TestPartsStayWhereTheyAre(t *testing.T) {
	a, err := checkpoint.Create(filepath.Join(t.TempDir(), "area"))
	require.NoError(t, err)
	defer a.Close()
	save := func(number uint64, n int) {
		require.NoError(t, a.Begin(number, checkpoint.Part{Bytes: make([]byte, n)}))
		require.NoError(t, a.End(nil))
	}
	save(1, 1)
	first, err := a.Latest()
	require.NoError(t, err)
	save(2, 1)
	save(3, 4<<20) // where the first was
	require.False(t, a.Has(1))
	require.Len(t, first.Parts[0], 1)
	require.Zero(t, first.Parts[0][0])
}

// A part that has grown in a snapshot that was abandoned is not compared with what it was in the one before.
func TestAPartThatGrewInAnAbandonedSnapshot(t *testing.T) {
	a, err := checkpoint.Create(filepath.Join(t.TempDir(), "area"))
	require.NoError(t, err)
	defer a.Close()
	part := make([]byte, 8<<20)
	require.NoError(t, a.Begin(1, checkpoint.Part{Bytes: part[:1<<20]}))
	require.NoError(t, a.End(nil))
	require.NoError(t, a.Begin(2, checkpoint.Part{Bytes: part}))
	part[len(part)-1] = 7
	require.NoError(t, a.Begin(3, checkpoint.Part{Bytes: part}))
	require.NoError(t, a.End(nil))
	snap, err := a.Latest()
	require.NoError(t, err)
	require.True(t, bytes.Equal(part, snap.Parts[0]))
}
