package main

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
)

// Who waits for a host to be empty is not told that the job has ended when its agent here has: another
// agent is asked, and where there is none that is an error.
func TestAwaitEmptyOutlivesTheAgentHere(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	said := new(strings.Builder)
	gone := rundir.Job{Name: "job", Dir: filepath.Join(rundir.Root(), "job")}
	require.ErrorContains(t, awaitEmpty(said, gone, "Z"), "who is still on host Z is not known")

	other, err := rundir.Make(rundir.Root(), "job-2")
	require.NoError(t, err)
	t.Cleanup(other.Remove)
	require.NoError(t, other.Belongs("job"))
	l, err := net.Listen("unix", rundir.AskSocket(other.Path))
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		json.NewDecoder(c).Decode(new(agent.Question)) // who hangs up before he is asked has answered nothing
		json.NewEncoder(c).Encode(agent.Answer{Events: []events.Event{{Seq: 1, Kind: events.JobStarted, Job: &events.Job{Name: "job"}}}})
	}()
	require.NoError(t, awaitEmpty(said, gone, "Z"))
	require.Equal(t, "no rank is on host Z any more\n", said.String())
}
