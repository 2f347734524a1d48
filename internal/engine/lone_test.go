package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
)

// However a receive ends, and how many wait at a time: the op of a call that waits alone is
// there for the next, and nothing is pending.
func TestTheOpOfACallThatWaitsAloneIsGivenBack(t *testing.T) {
	e := New(Config{Processes: [][]topology.Rank{{0, 1}}, Stepped: true})
	t.Cleanup(func() { e.Close() })
	from, b := e.Box(0), e.Box(1)
	call := &Call{Op: "Recv"}
	ends := map[string]func(t *testing.T){
		"with a message": func(t *testing.T) {
			require.NoError(t, from.Send(t.Context(), call, Match{Peer: 1}, []byte("abc"), Standard))
			s, err := b.Recv(t.Context(), call, Match{Peer: 0}, make([]byte, 3))
			require.NoError(t, err)
			require.Equal(t, 3, s.Bytes)
		},
		"with one that is too long": func(t *testing.T) {
			require.NoError(t, from.Send(t.Context(), call, Match{Peer: 1}, []byte("abc"), Standard))
			_, err := b.Recv(t.Context(), call, Match{Peer: 0}, make([]byte, 2))
			require.ErrorIs(t, err, ErrTruncate)
		},
		"taken back": func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := b.Recv(ctx, call, Match{Peer: 0}, make([]byte, 3))
			require.ErrorIs(t, err, context.Canceled)
		},
		"beside another": func(t *testing.T) {
			ended := make(chan error)
			for tag := range int32(2) {
				go func() {
					_, err := b.Recv(t.Context(), call, Match{Peer: 0, Tag: tag}, make([]byte, 3))
					ended <- err
				}()
			}
			require.Eventually(t, func() bool { return b.busy.Get() && pending(b) == 2 }, time.Minute, time.Millisecond)
			for tag := range int32(2) {
				require.NoError(t, from.Send(t.Context(), call, Match{Peer: 1, Tag: tag}, []byte("abc"), Standard))
			}
			for range 2 {
				require.NoError(t, <-ended)
			}
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			end(t)
			require.NoError(t, b.Idle())
			require.False(t, b.busy.Get())
		})
	}
}

// pending is how many ops of b are in use.
func pending(b *Box) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.usedLocked()
}
