package engine_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

// A busy connection's polls take a while, once it is so: as where others have the core, or
// send all the time.
type busy struct {
	transport.Conn
	takes *atomic.Int64 // ns a poll; 0: as the connection itself
	moves bool
}

func (c busy) Poll(in transport.Receiver) (bool, error) {
	takes := c.takes.Load()
	if takes == 0 {
		return c.Conn.Poll(in)
	}
	time.Sleep(time.Duration(takes))
	_, err := c.Conn.Poll(in)
	return c.moves, err
}

// Who waits looks up from it soon, whatever moves meanwhile and however long each poll takes.
func TestWhoPollsLooksUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration
		moves bool
	}{{"while others' messages move", 100 * time.Microsecond, true}, {"while others have the core", 4 * time.Millisecond, false}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.NewNetwork(mem.Options{})
				var takes atomic.Int64
				w := newWorldOn(t, engine.Config{Keep: true, Crowded: !c.moves}, func(process int) transport.Endpoint {
					ep, err := network.Listen(strconv.Itoa(process))
					require.NoError(t, err)
					return wrapped{ep, func(conn transport.Conn) transport.Conn { return busy{conn, &takes, c.moves} }}
				}, 1, 1)
				w.ring(t, 8, 0)
				takes.Store(int64(c.takes))
				defer takes.Store(0)
				box, m := w.boxes[0], engine.Match{Peer: 1, Tag: 7}
				const patience, soon = 50 * time.Millisecond, 40 * time.Millisecond

				ctx, stop := context.WithTimeout(t.Context(), patience)
				defer stop()
				began := time.Now()
				_, err := box.Recv(ctx, recv, m, nil)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Less(t, time.Since(began), patience+soon, "its context has ended")

				r := box.Irecv(m, nil)
				began = time.Now()
				_, done, err := r.Test()
				require.NoError(t, err)
				require.False(t, done)
				require.Less(t, time.Since(began), soon, "one look is short")

				ended := make(chan error)
				go func() {
					_, err := r.Wait(t.Context(), recv)
					ended <- err
				}()
				time.Sleep(soon)
				require.Len(t, box.Waits(), 1, "who asks is told that it waits")
				began = time.Now()
				box.Abandon(m, "enough", slices.Values([]topology.Rank{}))
				require.ErrorContains(t, <-ended, "abandoned by rank 0: enough")
				require.Less(t, time.Since(began), soon)
			})
		})
	}
}
