package mpiv

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/process"
)

// TestMain runs the tests, or is a process of a job of theirs, which takes its time to exit.
func TestMain(m *testing.M) {
	if process.Launched() {
		code := mainOf(func(ctx context.Context, world *Comm) error { return Barrier(ctx, world) }, nil)
		time.Sleep(1200 * time.Millisecond)
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestAProcessMayTakeItsTimeToExit(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "mpiv-main")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	var errs bytes.Buffer
	a, err := agent.Start(agent.Job{Programs: []agent.Program{{Ranks: 2, Path: self}}, Runtime: dir, Stderr: &errs})
	require.NoError(t, err)
	require.Zero(t, a.Wait(), "exit code of a job that has finished; it said %s", &errs)
}
