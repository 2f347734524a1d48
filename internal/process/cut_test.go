package process

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport/tcp"
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

// A process to whose host another only looks counts it as no stranger.
func TestWhoAsksAHostIsNoStranger(t *testing.T) {
	e, err := tcp.Listen(t.Context(), tcp.Options{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer e.Close()
	addr := strings.TrimPrefix(string(e.Addr()), tcp.Name+":")
	for range 5 {
		require.NoError(t, answers(t.Context(), []string{addr}))
	}
	stranger, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.Strangers() > 0 }, 20*time.Second, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // those before it have been seen by now
	require.EqualValues(t, 1, e.Strangers())
}
