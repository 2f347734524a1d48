package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// TestMessagesAllocateNothing: in steady state neither a blocking nor a
// non-blocking message allocates, on either side.
func TestMessagesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, ranks := range layouts {
		for _, size := range []int{8, 4 << 10, 64 << 10} {
			for _, blocking := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %d bytes, blocking %v", name, size, blocking), func(t *testing.T) {
					w := newWorld(t, engine.Config{Keep: true}, ranks...)
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					echoed := make(chan struct{})
					go func() {
						defer close(echoed)
						buf := make([]byte, size)
						for echo(ctx, w.boxes[1], 0, buf, buf, blocking, false) == nil {
						}
					}()
					out, in := make([]byte, size), make([]byte, size)
					one := func() {
						if err := echo(ctx, w.boxes[0], 1, out, in, blocking, true); err != nil {
							t.Error(err)
						}
					}
					for range 500 {
						one()
					}
					require.Zero(t, testing.AllocsPerRun(500, one))
					stop()
					<-echoed
				})
			}
		}
	}
}

// echo sends out and receives in, or the other way round.
func echo(ctx context.Context, b *engine.Box, peer int32, out, in []byte, blocking, first bool) error {
	m := engine.Match{Peer: topology.Rank(peer), Tag: 1}
	if !blocking {
		r := b.Irecv(m, in)
		if !first {
			if _, err := r.Wait(ctx, recv); err != nil {
				return err
			}
		}
		s := b.Isend(m, out, engine.Standard)
		if _, err := s.Wait(ctx, send); err != nil {
			return err
		}
		if first {
			_, err := r.Wait(ctx, recv)
			return err
		}
		return nil
	}
	if first {
		if err := b.Send(ctx, send, m, out, engine.Standard); err != nil {
			return err
		}
	}
	if _, err := b.Recv(ctx, recv, m, in); err != nil {
		return err
	}
	if !first {
		return b.Send(ctx, send, m, out, engine.Standard)
	}
	return nil
}
