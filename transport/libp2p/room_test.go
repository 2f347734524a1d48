package libp2p_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport/libp2p"
)

// Room for one stranger is room for a member.
func TestRoomForOne(t *testing.T) {
	e := listen(t, libp2p.Options{Handshakes: 1})
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	_, err := listen(t, libp2p.Options{}).Dial(ctx, e.Addr())
	require.NoError(t, err)
}
