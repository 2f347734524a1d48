package fabric_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/tcp"
)

// The only path to a process swallows what is sent in the first handshake, and works from then on: as one that was cut
// for a moment, with its other end, or what stands between, having forgotten the connection.
func TestTheOnlyPathIsDialedAgain(t *testing.T) {
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer front.Close()
	behind := strings.Replace(front.Addr().String(), "127.0.0.1", "127.0.0.2", 1)
	var n atomic.Int32
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			if n.Add(1) <= 2 { // both lanes
				go io.Copy(io.Discard, c)
				continue
			}
			d, err := net.Dial("tcp", behind)
			if err != nil {
				c.Close()
				continue
			}
			go io.Copy(c, d)
			go io.Copy(d, c)
		}
	}()
	w := newWorld(t, 2, func(p int) site {
		o := tcp.Options{Listen: "127.0.0.1:0"}
		if p == 1 {
			o = tcp.Options{Listen: behind, Advertise: front.Addr().String()}
		}
		ep, err := tcp.Listen(t.Context(), o)
		require.NoError(t, err)
		return site{networks: []fabric.Network{{Class: topology.LAN, Endpoint: ep}}}
	})
	ctx, stop := context.WithTimeout(t.Context(), 28*time.Second)
	defer stop()
	r := w.box(1).Irecv(engine.Match{Peer: 0, Tag: 1}, make([]byte, 8))
	require.NoError(t, w.box(0).Send(ctx, send, engine.Match{Peer: 1, Tag: 1}, make([]byte, 8), engine.Standard))
	_, err = r.Wait(ctx, recv)
	require.NoError(t, err, "%d connections", n.Load())
}
