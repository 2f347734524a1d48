package libp2p

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"
)

// A stuckHost is a host whose streams take no bytes, as when the peer's machine
// has stopped and the socket is full.
type stuckHost struct{ host.Host }

func (h stuckHost) NewStream(ctx context.Context, to peer.ID, p ...protocol.ID) (network.Stream, error) {
	s, err := h.Host.NewStream(ctx, to, p...)
	return &stuckStream{Stream: s, reset: make(chan struct{})}, err
}

type stuckStream struct {
	network.Stream
	once  sync.Once
	reset chan struct{}
}

func (s *stuckStream) Write([]byte) (int, error) {
	<-s.reset
	return 0, network.ErrReset
}

func (s *stuckStream) Reset() error {
	s.once.Do(func() { close(s.reset) })
	return s.Stream.Reset()
}

func TestDialEndsWithItsContextWhileThePeerTakesNothing(t *testing.T) {
	var ends [2]*Endpoint
	for i := range ends {
		e, err := Listen(t.Context(), Options{Address: "127.0.0.1"})
		require.NoError(t, err)
		defer e.Close()
		ends[i] = e
	}
	ends[0].host = stuckHost{ends[0].host}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := ends[0].Dial(ctx, ends[1].Addr())
		ended <- err
	}()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(10 * time.Second):
		t.Fatal("Dial goes on 10 s after its context ended")
	}
}
