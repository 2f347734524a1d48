package crew

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What PATH has of the directory is of the program's, and a file that may be executed is a program
// whatever it is called.
func TestProgramsAreFoundAsAShellDoes(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	for _, name := range []string{"prog", "bin/other", "script.go"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "source.go"), []byte("package main\n"), 0o644))
	for path, want := range map[string]string{"prog": "prog", "other": "bin/other", "script.go": "script.go", "./prog": "prog"} {
		got, err := resolve(path, dir, ".:bin:/nowhere")
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, want), got)
	}
	_, err := resolve("./source.go", dir, "")
	require.ErrorContains(t, err, "is Go source; build it first")
}
