package libp2p

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Where there is room for one stranger, who comes first is let in.
func TestThereIsRoomForOne(t *testing.T) {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1", Handshakes: 1})
	require.NoError(t, err)
	defer e.Close()
	require.True(t, (*gater)(e).InterceptAccept(nil))
}
