package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func sumOf(t *testing.T, name string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return sha256.Sum256(b)
}

// plantTree makes a directory with all that a tar can hold without privileges.
func plantTree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	write := func(name string, content []byte, mode os.FileMode) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, content, mode))
	}
	write("a.txt", text(100_000), 0o644)
	write("empty", nil, 0o600)
	write("sub/deep/run.sh", []byte("#!/bin/sh\n"), 0o755)
	write("sub/ünïcode "+strings.Repeat("long", 50), []byte("x"), 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nothing in it"), 0o755))
	require.NoError(t, os.Symlink("../a.txt", filepath.Join(dir, "sub/link")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	return dir
}

// listing is what is in dir, by name: content, mode, and where links point.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		what := fi.Mode().String() + " "
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += string(b) + fi.ModTime().String()
		case fi.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += target
		}
		all[rel] = what
		return nil
	}))
	return all
}

func TestDirectoryUnpacksWithTar(t *testing.T) {
	for _, program := range []string{"zstd", "tar"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt-get install %s", program, program)
		}
	}
	dir := plantTree(t)
	opt := options{input: dir, output: dir + ".tar.zst", level: 1, block: 10_000, verify: true}
	_, err := compressWith(t.Context(), 4, opt)
	require.NoError(t, err)
	to := t.TempDir()
	out, err := exec.Command("sh", "-c", `zstd -dc "$0" | tar x -C "$1"`, opt.output, to).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, listing(t, dir), listing(t, filepath.Join(to, "tree")))
}

func TestDirectoryIsATar(t *testing.T) {
	dir := plantTree(t)
	opt := options{input: dir + "/.", output: dir + ".tar.zst", level: 1, block: 10_000}
	_, err := compressWith(t.Context(), 2, opt)
	require.NoError(t, err)
	var names []string
	for r := tar.NewReader(bytes.NewReader(decompress(t, opt.output))); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if h.Typeflag == tar.TypeSymlink {
			h.Name += " → " + h.Linkname
		}
		names = append(names, h.Name)
	}
	require.Equal(t, []string{"tree/", "tree/a.txt", "tree/dangling → nowhere", "tree/empty", "tree/nothing in it/",
		"tree/sub/", "tree/sub/deep/", "tree/sub/deep/run.sh", "tree/sub/link → ../a.txt",
		"tree/sub/ünïcode " + strings.Repeat("long", 50)}, names)
}

func TestAFileThatGoesAwayWhileTheTreeIsRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "z"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<20), 0o644))
	}
	src := openTree(dir)
	defer src.Close()
	_, err := io.ReadFull(src, make([]byte, 4<<10)) // it is at a
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, "z")))
	_, err = io.Copy(io.Discard, src)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, filepath.Join(dir, "z"))
}

func TestAFileThatBecomesShorter(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, make([]byte, 1<<20), 0o644))
	src, err := openSource(options{input: name})
	require.NoError(t, err)
	defer src.Close()
	_, err = io.ReadFull(src, make([]byte, 4<<10))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(name, 10_000))
	_, err = io.Copy(io.Discard, src)
	require.EqualError(t, err, "read "+name+": it ended after 10000 bytes, but had 1048576 when it was opened")
}

func TestClosingATreeEarlyEndsItsGoroutine(t *testing.T) {
	src := openTree(plantTree(t))
	_, err := src.Read(make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, src.Close()) // waits for it
}
