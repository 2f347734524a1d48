package fabric_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A translation joins endpoints like a router: what it has forgotten ends for the one who is outside, and who is
// inside hears of that only when he sends.
type translation struct {
	mu  sync.Mutex
	out []*net.TCPConn // to who is outside
	in  []*net.TCPConn
}

// listen tells where who is outside finds an endpoint, and where that is to listen.
func (r *translation) listen(t *testing.T) (outside, inside string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	inside = strings.Replace(ln.Addr().String(), "127.0.0.1", "127.0.0.2", 1)
	t.Cleanup(func() {
		ln.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range append(r.in, r.out...) {
			c.Close()
		}
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", inside)
			if err != nil {
				c.Close()
				continue
			}
			r.mu.Lock()
			in, out := c.(*net.TCPConn), d.(*net.TCPConn)
			r.in, r.out = append(r.in, in), append(r.out, out)
			r.mu.Unlock()
			go func() { io.Copy(in, out) }() // and no word of the end
			go func() {
				if _, err := io.Copy(out, in); err != nil { // it is forgotten
					in.SetLinger(0)
				}
				in.Close()
				out.Close()
			}()
		}
	}()
	return ln.Addr().String(), inside
}

// forget ends all connections, of which only who is outside is told.
func (r *translation) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.out {
		c.SetLinger(0)
		c.Close()
	}
	r.out = nil
}

// Who is called may not know yet that the connection there was is no more.
func TestCallOfAProcessThatHasNotHeardOfTheEnd(t *testing.T) {
	var fabrics [2]*fabric.Fabric
	var engines [2]*engine.Engine
	var addrs [2][]fabric.Addr
	r := new(translation)
	var calls sync.WaitGroup
	for i := range fabrics {
		var o tcp.Options
		if i == 0 {
			o.Advertise, o.Listen = r.listen(t)
		}
		ep, err := tcp.Listen(t.Context(), o)
		require.NoError(t, err)
		fabrics[i] = fabric.New(2, fabric.Options{Process: i, Networks: []fabric.Network{{Class: topology.LAN, Endpoint: ep}}, Log: slog.New(slog.DiscardHandler)})
		addrs[i] = fabrics[i].Addrs()
		cfg := engine.Config{Keep: true, Processes: [][]topology.Rank{{0}, {1}}, Process: i, Fail: func(err error) { t.Error(err) }}
		cfg.Connect = fabrics[i].Connect
		if i == 0 { // process 1 is not reached from here: it is called
			cfg.Connect = func(process int) {
				fabrics[0].Connect(process)
				calls.Go(func() { fabrics[1].Call(0) })
			}
		}
		engines[i] = engine.New(cfg)
	}
	nobody := []fabric.Addr{{Class: topology.LAN, Addr: "tcp:127.0.0.1:1"}}
	fabrics[0].Start(engines[0], [][]fabric.Addr{addrs[0], nobody})
	fabrics[1].Start(engines[1], addrs[:])
	t.Cleanup(func() {
		calls.Wait()
		for i := range engines {
			engines[i].Close()
			fabrics[i].Close()
		}
	})
	say := func(tag int) {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		in := engines[1].Box(1).Irecv(engine.Match{Peer: 0, Tag: 1}, make([]byte, 8))
		require.NoError(t, engines[0].Box(0).Send(ctx, send, engine.Match{Peer: 1, Tag: 1}, make([]byte, 8), engine.Standard))
		_, err := in.Wait(ctx, recv)
		require.NoError(t, err, "message %d", tag)
	}
	say(1)
	say(2)
	time.Sleep(300 * time.Millisecond)
	r.forget()
	say(3)
}
