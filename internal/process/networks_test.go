package process

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/transport"
)

// A relay that is lost, or addresses that are not watched any more, are said.
func TestANetworkSaysWhatItGoesOnWithout(t *testing.T) {
	stop := errors.New("far enough")
	n := transport.Network{Name: "n", Listen: func(ctx context.Context, s transport.Site) (transport.Endpoint, error) {
		require.NotNil(t, s.Log)
		require.True(t, s.Log.Enabled(ctx, slog.LevelWarn))
		require.False(t, s.Log.Enabled(ctx, slog.LevelInfo), "a job says little")
		return nil, stop
	}}
	w := control.Welcome{Token: make([]byte, 16), Options: control.Options{Transports: []string{"n"}}}
	_, err := new(Process).listen(t.TempDir(), w, []transport.Network{n})
	require.ErrorIs(t, err, stop)
}
