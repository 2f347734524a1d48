package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// The mpiv program of these tests is this test binary, which talks until the file
// that this variable names is there.
const envProgram = "MPIVRUN_TEST_STOP"

func talk(ctx context.Context, world *mpiv.Comm) error {
	for {
		stop := []int{0}
		if _, err := os.Stat(os.Getenv(envProgram)); err == nil {
			stop[0] = 1
		}
		if err := mpiv.Allreduce(ctx, world, stop, stop, mpiv.Max); err != nil {
			return err
		}
		if stop[0] > 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(text)
}

func fileLines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
