package process

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

func TestReportsNameCommunicatorsInALine(t *testing.T) {
	const name = "two\nlines"
	w := new(Process).wait(engine.WaitInfo{Needs: []engine.NeedInfo{{Peer: 1, Comm: name, Near: []engine.Near{{Peer: 2, Comm: name}}}}})
	require.Equal(t, `"two\nlines"`, w.Needs[0].Comm)
	require.Equal(t, `"two\nlines"`, w.Needs[0].Near[0].Comm)
}
