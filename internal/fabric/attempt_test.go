package fabric_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// A noted connection counts as open until Close, and has before each Send something else happen.
type noted struct {
	transport.Conn
	open   *atomic.Int32
	closed atomic.Bool
	before func()
}

func (c *noted) Send(m transport.Message) error {
	c.before()
	return c.Conn.Send(m)
}

func (c *noted) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// A path that answers when another is about to be taken is not needed: its connection is closed, or it would hold
// its descriptors for as long as the process lives.
func TestAnAnsweredPathThatIsNotTakenIsClosed(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN, topology.WAN)
	var w *world
	var open, onLAN, onWAN atomic.Int32
	await := func(path int, state string) {
		require.Eventually(t, func() bool { return strings.Contains(w.link(0, 1).Candidates[path].State, state) }, 20*time.Second, time.Millisecond)
	}
	before := []func(){1: func() {
		if onLAN.Add(1) == 2 { // the first asks whether process 1 is there, and this one to use the LAN
			await(2, "answered")
		}
	}, 2: func() {
		if onWAN.Add(1) == 1 {
			await(1, "taken")
		}
	}}
	w = newWorld(t, 2, func(p int) site {
		s := nets.site(t, p, plain)
		for i := 1; p == 0 && i <= 2; i++ {
			s.networks[i].Endpoint = &wrapped{s.networks[i].Endpoint, func(c transport.Conn) transport.Conn {
				open.Add(1)
				return &noted{Conn: c, open: &open, before: before[i]}
			}}
		}
		return s
	})
	w.say(0, 1)
	w.eventually(0, 1, topology.SAN)
	w.fabrics[0].Avoid([]int{1}, topology.SAN, time.Minute, "a test")
	w.eventually(0, 1, topology.LAN)
	require.Eventually(t, func() bool { return open.Load() == 1 }, 20*time.Second, time.Millisecond, "the connection over the WAN is left open")
}

// A deaf endpoint's dials end with their context, and it writes down whom it is to forget.
type deaf struct {
	transport.Endpoint
	dials, ends chan struct{}
	forgotten   chan transport.Addr
}

func (d *deaf) Dial(ctx context.Context, _ transport.Addr) (transport.Conn, error) {
	d.dials <- struct{}{}
	<-ctx.Done()
	d.ends <- struct{}{}
	return nil, ctx.Err()
}

func (d *deaf) Forget(a transport.Addr) { d.forgotten <- a }

func TestFenceEndsDialsAndHasEndpointsForget(t *testing.T) {
	nets := newMems(topology.LAN)
	d := &deaf{dials: make(chan struct{}, 9), ends: make(chan struct{}, 9), forgotten: make(chan transport.Addr, 9)}
	w := newWorld(t, 2, func(p int) site {
		return nets.site(t, p, func(e transport.Endpoint) transport.Endpoint {
			if p == 1 {
				return e
			}
			d.Endpoint = e
			return d
		})
	})
	w.fabrics[0].Connect(1)
	w.fabrics[0].Call(1)
	<-d.dials
	w.fabrics[0].Fence(1)
	require.Equal(t, transport.Addr("mem:lan1"), <-d.forgotten)
	select {
	case <-d.ends:
	case <-time.After(5 * time.Second): // the only path's dial ends after 10 s by itself
		t.Fatal("the dial goes on")
	}
}
