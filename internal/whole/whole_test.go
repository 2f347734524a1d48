package whole

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func text(s string) func(*os.File) error {
	return func(f *os.File) error {
		_, err := io.WriteString(f, s)
		return err
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	is, err := os.Lstat(path)
	require.NoError(t, err)
	return is.Mode()
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	usual := filepath.Join(dir, "usual")
	require.NoError(t, os.WriteFile(usual, nil, 0o666))

	require.NoError(t, Write(path, 0o666, text("one")))
	require.Equal(t, mode(t, usual), mode(t, path), "as others are made")
	require.NoError(t, os.Chmod(path, 0o640))
	held, err := os.Open(path)
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, Write(path, 0o666, text("two")))
	require.EqualValues(t, 0o640, mode(t, path), "for whom it was")
	old, err := io.ReadAll(held)
	require.NoError(t, err)
	require.Equal(t, "one", string(old))

	bad := errors.New("no more")
	require.ErrorIs(t, Write(path, 0o666, func(f *os.File) error { return errors.Join(text("half")(f), bad) }), bad)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "two", string(got))

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, Write(link, 0o666, text("three")))
	require.Equal(t, fs.ModeSymlink, mode(t, link).Type())
	got, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "three", string(got))

	require.NoError(t, os.Remove(path))
	require.NoError(t, Write(link, 0o666, text("four")))
	require.Equal(t, fs.ModeSymlink, mode(t, link).Type(), "though it led nowhere")
	got, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "four", string(got))

	require.ErrorIs(t, Write(filepath.Join(dir, "none", "file"), 0o666, text("")), fs.ErrNotExist)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "nothing else is left")
}

func TestWhatIsNoFileIsWrittenTo(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	require.ErrorIs(t, Write(pipe, 0o666, text("one")), unix.ENXIO)
	r, err := os.OpenFile(pipe, os.O_RDWR, 0)
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, Write(pipe, 0o666, text("one")))
	got := make([]byte, 3)
	_, err = io.ReadFull(r, got)
	require.NoError(t, err)
	require.Equal(t, "one", string(got))
	require.Equal(t, fs.ModeNamedPipe, mode(t, pipe).Type())
	require.ErrorContains(t, Write(t.TempDir(), 0o666, text("")), "is a directory")
}
