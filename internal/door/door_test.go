//go:build linux

package door

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// The oldest handshake makes room for one more, and is told so; who has ended needs none.
func TestHandshakesAreBounded(t *testing.T) {
	var s Handshakes
	var here, there [4]net.Conn
	for i := range here {
		here[i], there[i] = net.Pipe()
		defer here[i].Close()
	}
	s.Begin(here[0], 2)
	s.Begin(here[1], 2)
	require.NoError(t, s.Ended(here[0]))
	s.Begin(here[2], 2)
	s.Begin(here[3], 2)
	_, err := there[1].Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "it was closed")
	require.Error(t, s.Ended(here[1]))
	require.NoError(t, s.Ended(here[2]))
	require.NoError(t, s.Ended(here[3]))
	require.Empty(t, s.list)
}
