package process

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A host answers where a process listens, though that accepts nothing, and where nobody does;
// an address of no host does not.
func TestAHostAnswersForItsProcesses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, answers(t.Context(), []string{addr}), "nobody accepts")
	l.Close()
	require.NoError(t, answers(t.Context(), []string{addr}), "nobody listens")

	nowhere := "127.0.0.1:bad" // as an address that leads nowhere: no test sends packets to strangers
	begun := time.Now()
	require.Error(t, answers(t.Context(), []string{nowhere}))
	require.NoError(t, answers(t.Context(), []string{nowhere, addr}), "one of its addresses is enough")
	require.Less(t, time.Since(begun), 10*time.Second)
}
