package witness_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/witness"
)

func pages(t *testing.T) (agent, process *witness.Page) {
	dir := t.TempDir()
	agent, err := witness.Create(dir)
	require.NoError(t, err)
	process, err = witness.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { agent.Close(); process.Close() })
	return agent, process
}

// What one end says the other reads.
func TestPageIsShared(t *testing.T) {
	agent, process := pages(t)
	process.Record(3)
	process.AddFile()
	require.EqualValues(t, 3, agent.Recorded())
	require.EqualValues(t, 1, agent.Files())
	agent.Witness(2)
	require.EqualValues(t, 2, process.Witnessed())
}

// Wake ends a Sleep, and Close ends it for good.
func TestPageWakes(t *testing.T) {
	agent, process := pages(t)
	woken := make(chan bool)
	go func() { woken <- agent.Sleep() }()
	for done := false; !done; {
		process.Wake() // nothing, until the agent sleeps
		select {
		case on := <-woken:
			require.True(t, on)
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	go func() { woken <- agent.Sleep() }()
	require.NoError(t, agent.Close())
	require.False(t, <-woken)
}

func TestPageRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	_, err := witness.Open(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	for _, text := range []string{"", "short", string(make([]byte, 4096))} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "witness"), []byte(text), 0o600))
		_, err = witness.Open(dir)
		require.ErrorIs(t, err, os.ErrInvalid)
	}
}
