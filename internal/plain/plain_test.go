package plain

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadFile(t *testing.T) {
	for _, n := range []int{0, 1, 511, 512, 513, 100_000} {
		name := filepath.Join(t.TempDir(), "file")
		want := bytes.Repeat([]byte("x"), n)
		require.NoError(t, os.WriteFile(name, want, 0o600))
		got, err := ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
	_, err := ReadFile(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ReadFile(t.TempDir())
	require.Error(t, err)
}

func TestRoot(t *testing.T) {
	want, err := os.ReadFile("/proc/self/cmdline")
	require.NoError(t, err)
	got, err := fs.ReadFile(Root{}, "proc/self/cmdline")
	require.NoError(t, err)
	require.Equal(t, want, got)
	for _, name := range []string{"/proc/self/cmdline", "../x", ""} {
		_, err := fs.ReadFile(Root{}, name)
		require.ErrorIs(t, err, fs.ErrInvalid)
	}
}
